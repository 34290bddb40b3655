"""The arguments of both operators, one bundle each, and the checks of their tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import torch
from torch import Tensor

from mmpola.ops.features import ExpMap, FeatureMap, PowerMap
from mmpola.ops.numerics import DTYPES

Rotary = tuple[Tensor, Tensor] | None


@dataclass(frozen=True, eq=False)
class AttentionInputs:
    """The arguments of `polarity_attention`, checked by `validate_attention`."""

    q: Tensor  # [B, N, H, D]
    k: Tensor  # [B, M, H, D]
    v: Tensor  # [B, M, H, D]
    feature_map: FeatureMap
    key_position: Tensor | None  # [M, H, D]
    rotary: Rotary  # (cos, sin), each [N, 2D]
    eps: float

    def tensors(self) -> tuple[Any, ...]:
        """Return the differentiable tensors: q, k, v, key position, two of the feature map."""
        first, second = self.feature_map.parameters().values()
        return self.q, self.k, self.v, self.key_position, first, second

    def to(self, dtype: torch.dtype) -> AttentionInputs:
        """Convert every tensor to a dtype."""
        feature_map = self.feature_map
        if isinstance(feature_map, PowerMap):
            scale = feature_map.scale
            if scale is not None:
                scale = scale.to(dtype)
            feature_map = PowerMap(feature_map.exponent.to(dtype), scale)
        else:
            feature_map = ExpMap(feature_map.same.to(dtype), feature_map.opposite.to(dtype))
        key_position = self.key_position
        if key_position is not None:
            key_position = key_position.to(dtype)
        rotary = self.rotary
        if rotary is not None:
            rotary = (rotary[0].to(dtype), rotary[1].to(dtype))
        q = self.q.to(dtype)
        k = self.k.to(dtype)
        v = self.v.to(dtype)
        return AttentionInputs(q, k, v, feature_map, key_position, rotary, self.eps)


@dataclass(frozen=True, eq=False)
class MixAndGateInputs:
    """The arguments of `mix_and_gate`, checked by `validate_mix_and_gate`."""

    attended: Tensor  # [B, N, H, D]
    values: Tensor  # [B, N, H, D]
    gate: Tensor  # [B, N, C], C = H * D
    weight: Tensor  # [D or C, 1, k, k], k odd; for a sequence [D or C, 1, k]
    bias: Tensor | None  # [D or C]
    grid: Sequence[int]  # (h, w), h * w = N; for a sequence (N,)

    def tensors(self) -> tuple[Any, ...]:
        """Return the differentiable tensors: all but the grid."""
        return self.attended, self.values, self.gate, self.weight, self.bias

    def as_map(self) -> MixAndGateInputs:
        """Return a sequence as a map of one row: grid (1, N), weight [D or C, 1, 1, k]."""
        return replace(self, weight=self.weight.unsqueeze(2), grid=(1, *self.grid))


TOKENS = ('B', 'N', 'H', 'D')
KEYS = ('B', 'M', 'H', 'D')

Row = tuple[str, Tensor, tuple[str, ...] | None]
"""Name, tensor and axes of an argument; None: any shape."""


def validate_attention(inputs: AttentionInputs) -> None:
    """Check types, dtypes, devices and shapes of the arguments of `polarity_attention`.

    Raises:
        TypeError: an argument is not a tensor or feature map, has an unsupported dtype, or is k or
            v with another dtype than q.
        ValueError: a shape or a device does not fit.
    """
    feature_map = inputs.feature_map
    position = inputs.key_position
    rotary = inputs.rotary
    if not isinstance(feature_map, (PowerMap, ExpMap)):
        raise TypeError(
            f'feature_map: expected PowerMap or ExpMap, got {type(feature_map).__name__}'
        )
    table: list[Row] = [('q', inputs.q, TOKENS), ('k', inputs.k, KEYS), ('v', inputs.v, KEYS)]
    if position is not None:
        table.append(('key_position', position, ('M', 'H', 'D')))
    if isinstance(feature_map, PowerMap):
        table.append(('feature_map.exponent', feature_map.exponent, ('H', 'D')))
        if feature_map.scale is not None:
            table.append(('feature_map.scale', feature_map.scale, ('H', 'D')))
    else:
        table.append(('feature_map.same', feature_map.same, ('H', '2D')))
        table.append(('feature_map.opposite', feature_map.opposite, ('H', '2D')))
    if rotary is not None:
        if not isinstance(feature_map, ExpMap):
            raise ValueError('rotary: expected feature_map to be an ExpMap, got PowerMap')
        if not isinstance(rotary, tuple) or len(rotary) != 2:
            raise TypeError(f'rotary: expected (cos, sin), got {type(rotary).__name__}')
        table.append(('rotary cos', rotary[0], ('N', '2D')))
        table.append(('rotary sin', rotary[1], ('N', '2D')))
    sizes = _check_tensors(table)
    if sizes['D'] % 2 or sizes['D'] == 0:
        rule = 'an even head dimension D (values split into two streams)'
        raise ValueError(f'q: expected {rule}, got D={sizes["D"]}')
    if sizes['M'] == 0:
        raise ValueError('k: expected at least one key (M >= 1), got M=0')
    if rotary is not None and sizes['N'] != sizes['M']:
        rule = 'as many keys as queries (one table serves both)'
        raise ValueError(f'rotary: expected {rule}, got N={sizes["N"]}, M={sizes["M"]}')


def validate_mix_and_gate(inputs: MixAndGateInputs) -> None:
    """Check types, dtypes, devices and shapes of the arguments of `mix_and_gate`.

    Raises:
        TypeError: an argument is not a tensor, has an unsupported dtype, or is values or gate with
            another dtype than attended.
        ValueError: a shape or a device does not fit.
    """
    weight = inputs.weight
    bias = inputs.bias
    grid = inputs.grid
    table: list[Row] = [
        ('attended', inputs.attended, TOKENS),
        ('values', inputs.values, TOKENS),
        ('gate', inputs.gate, ('B', 'N', 'C')),
        ('weight', weight, None),
    ]
    if bias is not None:
        table.append(('bias', bias, None))
    sizes = _check_tensors(table)
    tokens = sizes['N']
    dim = sizes['D']
    channels = sizes['C']
    if not (is_grid(grid) or is_grid(grid, axes=1)) or prod(grid) != tokens:
        raise ValueError(f'grid: expected (N,) or (h, w) with h * w = N = {tokens}, got {grid!r}')
    shape = weight.shape
    fits = weight.ndim == 2 + len(grid) and shape[0] in (dim, channels) and shape[1] == 1
    fits = fits and shape[2] == shape[-1] and shape[2] % 2 == 1
    if not fits:
        window = 'k' if len(grid) == 1 else 'k, k'
        rule = f'[D, 1, {window}] or [C, 1, {window}] with D={dim}, C={channels} and k odd'
        raise ValueError(f'weight: expected {rule}, got {list(shape)}')
    if bias is not None and tuple(bias.shape) != (shape[0],):
        raise ValueError(f'bias: expected {[shape[0]]} like weight, got {list(bias.shape)}')


def is_grid(value: Any, axes: int = 2) -> bool:
    """Whether a value is a sequence of `axes` sides, which may be tensors or symbols."""
    if not isinstance(value, Sequence) or len(value) != axes:
        return False
    return all(not isinstance(side, float) and side >= 0 for side in value)


def _check_tensors(table: Sequence[Row]) -> dict[str, int]:
    """Check types, dtypes, devices and axes, and return the size of each axis.

    The tensor of the first row has the axes [B, N, H, D], which give 2D and C = H * D. All tensors
    must have its device, and those with a batch axis its dtype.
    """
    like_name, like, _ = table[0]
    sizes: dict[str, int] = {}
    for name, x, axes in table:
        if not isinstance(x, Tensor):
            raise TypeError(f'{name}: expected a tensor, got {type(x).__name__}')
        if x.dtype not in DTYPES:
            rule = 'float16, bfloat16, float32 or float64'
            raise TypeError(f'{name}: expected {rule}, got {_dtype_name(x.dtype)}')
        if x.device != like.device:
            rule = f'the device of {like_name}, {like.device}'
            raise ValueError(f'{name}: expected {rule}, got {x.device}')
        if axes is None:
            continue
        if axes[0] == 'B' and x.dtype != like.dtype:
            rule = f'the dtype of {like_name}, {_dtype_name(like.dtype)}'
            raise TypeError(f'{name}: expected {rule}, got {_dtype_name(x.dtype)}')
        fits = x.ndim == len(axes)
        if fits:
            for axis, size in zip(axes, x.shape, strict=True):
                fits = fits and sizes.setdefault(axis, size) == size
        if not fits:
            rule = f'[{", ".join(axes)}]'
            known = [f'{axis}={sizes[axis]}' for axis in axes if axis in sizes]
            if known:
                rule += f' with {", ".join(known)}'
            raise ValueError(f'{name}: expected {rule}, got {list(x.shape)}')
        if x is like:
            sizes['2D'] = 2 * sizes['D']
            sizes['C'] = sizes['H'] * sizes['D']
    return sizes


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix('torch.')
