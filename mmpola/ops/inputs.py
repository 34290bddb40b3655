"""The validated arguments of both operators: one bundle each, which every backend reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from mmpola.ops.feature_map import ExpMap, FeatureMap, PowerMap
from mmpola.ops.numerics import DTYPES


class AttentionTensors(NamedTuple):
    """The differentiable tensors of `polarity_attention`, in the order that every backend uses.

    `exponent` and `scale` belong to a PowerMap, `same` and `opposite` to an ExpMap; those of the other map are None.
    """

    q: Tensor  # [B, N, H, D]
    k: Tensor  # [B, M, H, D]
    v: Tensor  # [B, M, H, D]
    key_position: Tensor | None = None  # [M, H, D]
    exponent: Tensor | None = None  # [H, D]
    scale: Tensor | None = None  # [H, D]
    same: Tensor | None = None  # [H, 2D]
    opposite: Tensor | None = None  # [H, 2D]


@dataclass(frozen=True, eq=False)
class AttentionInputs:
    """The arguments of `polarity_attention`, checked by `validate_attention`."""

    q: Tensor  # [B, N, H, D]
    k: Tensor  # [B, M, H, D]
    v: Tensor  # [B, M, H, D]
    feature_map: FeatureMap
    key_position: Tensor | None  # [M, H, D]
    rotary: tuple[Tensor, Tensor] | None  # (cos, sin), each [N, 2D]
    eps: float

    def tensors(self) -> AttentionTensors:
        """Return the differentiable tensors."""
        return AttentionTensors(self.q, self.k, self.v, self.key_position, **self.feature_map.parameters())

    @classmethod
    def from_tensors(
        cls, tensors: AttentionTensors, rotary: tuple[Tensor, Tensor] | None, eps: float
    ) -> AttentionInputs:
        """Build the inputs whose `tensors()` are `tensors`."""
        q, k, v, key_position, exponent, scale, same, opposite = tensors
        feature_map: FeatureMap
        if exponent is not None:
            feature_map = PowerMap(exponent, scale)
        else:
            assert same is not None and opposite is not None
            feature_map = ExpMap(same, opposite)
        return cls(q, k, v, feature_map, key_position, rotary, eps)


class MixAndGateTensors(NamedTuple):
    """The differentiable tensors of `mix_and_gate`, in the order that every backend uses."""

    attended: Tensor  # [B, N, H, D]
    values: Tensor  # [B, N, H, D]
    gate: Tensor  # [B, N, C], C = H * D
    weight: Tensor  # [D or C, 1, k, k], or [D or C, 1, 1, k] of a sequence; k odd
    bias: Tensor | None  # [D or C]


@dataclass(frozen=True, eq=False)
class MixAndGateInputs:
    """The arguments of `mix_and_gate`, checked by `validate_mix_and_gate`."""

    attended: Tensor  # [B, N, H, D]
    values: Tensor  # [B, N, H, D]
    gate: Tensor  # [B, N, C], C = H * D
    weight: Tensor  # [D or C, 1, k, k], k odd; of a sequence [D or C, 1, k]
    bias: Tensor | None  # [D or C]
    grid: Sequence[int]  # (h, w), h * w = N; of a sequence (N,)

    def as_map(self) -> MixAndGateInputs:
        """Return the inputs with two axes, as every backend expects them: a sequence is a map of one row.

        The grid of a sequence becomes (1, N) and its weight [D or C, 1, 1, k].
        """
        if len(self.grid) == 2:
            return self
        return replace(self, weight=self.weight.unsqueeze(2), grid=(1, *self.grid))

    def tensors(self) -> MixAndGateTensors:
        """Return the differentiable tensors."""
        return MixAndGateTensors(self.attended, self.values, self.gate, self.weight, self.bias)


def validate_attention(inputs: AttentionInputs) -> None:
    """Check types, dtypes, devices and shapes of the arguments of `polarity_attention`.

    Raises:
        TypeError: an argument is not a tensor or feature map, has an unsupported dtype, or is k or v with another dtype
            than q.
        ValueError: a shape or a device does not fit.
    """
    q, feature_map = inputs.q, inputs.feature_map
    if not isinstance(feature_map, (PowerMap, ExpMap)):
        raise TypeError(f'feature_map: expected PowerMap or ExpMap, got {type(feature_map).__name__}')
    parameters = {f'feature_map.{name}': x for name, x in feature_map.parameters().items()}
    named = {'q': q, 'k': inputs.k, 'v': inputs.v, 'key_position': inputs.key_position, **parameters}
    for name, x in named.items():
        _expect_tensor(name, x, optional=name in ('key_position', 'feature_map.scale'))
    for name, x in (('q', q), ('k', inputs.k), ('v', inputs.v)):
        _expect_supported_dtype(name, x)
        _expect_same_dtype(name, x, 'q', q)
        _expect_same_device(name, x, 'q', q)
    if q.ndim != 4:
        raise ValueError(f'q: expected [B, N, H, D], got {list(q.shape)}')
    batch, _, heads, dim = q.shape
    if dim % 2 or dim == 0:
        raise ValueError(f'q: expected an even head dimension D (values split into two streams), got D={dim}')
    for name, x in (('k', inputs.k), ('v', inputs.v)):
        if x.ndim != 4 or (x.shape[0], *x.shape[2:]) != (batch, heads, dim):
            raise ValueError(
                f'{name}: expected [B, M, H, D] with B={batch}, H={heads}, D={dim} like q, got {list(x.shape)}'
            )
    keys = inputs.k.shape[1]
    if keys == 0:
        raise ValueError('k: expected at least one key (M >= 1), got M=0')
    if inputs.v.shape[1] != keys:
        raise ValueError(f'v: expected M={keys} like k, got {list(inputs.v.shape)}')
    width = dim if isinstance(feature_map, PowerMap) else 2 * dim
    for name, parameter in parameters.items():
        _expect_parameter(name, parameter, [heads, width], q)
    _expect_parameter('key_position', inputs.key_position, [keys, heads, dim], q)
    if inputs.rotary is not None:
        _validate_rotary(inputs)


def _validate_rotary(inputs: AttentionInputs) -> None:
    q, rotary = inputs.q, inputs.rotary
    if not isinstance(inputs.feature_map, ExpMap):
        raise ValueError('rotary: expected feature_map to be an ExpMap, got PowerMap')
    if not isinstance(rotary, tuple) or len(rotary) != 2:
        raise TypeError(f'rotary: expected (cos, sin), got {type(rotary).__name__}')
    queries, keys, dim = q.shape[1], inputs.k.shape[1], q.shape[3]
    if queries != keys:
        raise ValueError(f'rotary: expected as many keys as queries (one table serves both), got N={queries}, M={keys}')
    for name, table in zip(('cos', 'sin'), rotary, strict=True):
        _expect_parameter(f'rotary {name}', table, [queries, 2 * dim], q)


def validate_mix_and_gate(inputs: MixAndGateInputs) -> None:
    """Check types, dtypes, devices and shapes of the arguments of `mix_and_gate`.

    Raises:
        TypeError: an argument is not a tensor, has an unsupported dtype, or is values or gate with another dtype than
            attended.
        ValueError: a shape or a device does not fit.
    """
    attended, weight, bias = inputs.attended, inputs.weight, inputs.bias
    for name, x in inputs.tensors()._asdict().items():
        _expect_tensor(name, x, optional=name == 'bias')
        if x is not None:
            _expect_supported_dtype(name, x)
            if name in ('values', 'gate'):
                _expect_same_dtype(name, x, 'attended', attended)
            _expect_same_device(name, x, 'attended', attended)
    if attended.ndim != 4:
        raise ValueError(f'attended: expected [B, N, H, D], got {list(attended.shape)}')
    batch, tokens, heads, dim = attended.shape
    if inputs.values.shape != attended.shape:
        raise ValueError(f'values: expected {list(attended.shape)} like attended, got {list(inputs.values.shape)}')
    is_grid = len(inputs.grid) in (1, 2) and not any(isinstance(side, float) or side < 0 for side in inputs.grid)
    if not is_grid or prod(inputs.grid) != tokens:
        raise ValueError(f'grid: expected (N,) or (h, w) with h * w = N = {tokens}, got {tuple(inputs.grid)}')
    channels = heads * dim
    if tuple(inputs.gate.shape) != (batch, tokens, channels):
        raise ValueError(f'gate: expected [B, N, H * D] = {[batch, tokens, channels]}, got {list(inputs.gate.shape)}')
    is_sequence = len(inputs.grid) == 1
    side = 'k' if is_sequence else 'k, k'
    if weight.ndim != 2 + len(inputs.grid) or weight.shape[0] not in (dim, channels) or weight.shape[1] != 1:
        raise ValueError(
            f'weight: expected [D, 1, {side}] or [C, 1, {side}] with D={dim}, C={channels}, got {list(weight.shape)}'
        )
    if weight.shape[2] != weight.shape[-1] or weight.shape[2] % 2 == 0:
        kind = 'a kernel of odd length' if is_sequence else 'a square kernel of odd side'
        raise ValueError(f'weight: expected {kind} k, got {list(weight.shape[2:])}')
    if bias is not None and tuple(bias.shape) != (weight.shape[0],):
        raise ValueError(f'bias: expected {[weight.shape[0]]} like weight, got {list(bias.shape)}')


def _expect_tensor(name: str, x: object, *, optional: bool) -> None:
    if not isinstance(x, Tensor) and not (optional and x is None):
        raise TypeError(f'{name}: expected a tensor, got {type(x).__name__}')


def _expect_supported_dtype(name: str, x: Tensor) -> None:
    if x.dtype not in DTYPES:
        raise TypeError(f'{name}: expected float16, bfloat16, float32 or float64, got {_short(x.dtype)}')


def _expect_same_dtype(name: str, x: Tensor, other_name: str, other: Tensor) -> None:
    if x.dtype != other.dtype:
        raise TypeError(f'{name}: expected the dtype of {other_name}, {_short(other.dtype)}, got {_short(x.dtype)}')


def _expect_same_device(name: str, x: Tensor, other_name: str, other: Tensor) -> None:
    if x.device != other.device:
        raise ValueError(f'{name}: expected the device of {other_name}, {other.device}, got {x.device}')


def _expect_parameter(name: str, x: Tensor | None, shape: list[int], q: Tensor) -> None:
    """Check a tensor that may have another dtype than q."""
    if x is None:
        return
    if list(x.shape) != shape:
        raise ValueError(f'{name}: expected {shape}, got {list(x.shape)}')
    _expect_supported_dtype(name, x)
    _expect_same_device(name, x, 'q', q)


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix('torch.')
