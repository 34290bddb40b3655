"""What the operator accepts: one validated bundle that every backend reads."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mmpola.ops.feature_map import ExpMap, FeatureMap, PowerMap
from mmpola.ops.numerics import DTYPES


@dataclass(frozen=True, eq=False)
class AttentionInputs:
    """The arguments of `polarity_attention`, checked by `validate`."""

    q: Tensor  # [B, N, H, D]
    k: Tensor  # [B, M, H, D]
    v: Tensor  # [B, M, H, D]
    feature_map: FeatureMap
    key_position: Tensor | None  # [M, H, D]
    rotary: tuple[Tensor, Tensor] | None  # (cos, sin), each [N, 2D]
    eps: float

    def tensors(self) -> list[Tensor | None]:
        """Every tensor that may ask for a gradient, in a fixed order."""
        return [self.q, self.k, self.v, self.key_position, *self.feature_map.parameters().values()]


def validate(inputs: AttentionInputs) -> None:
    """Raise TypeError or ValueError naming the argument, the rule and what came."""
    q, feature_map = inputs.q, inputs.feature_map
    if not isinstance(feature_map, (PowerMap, ExpMap)):
        raise TypeError(f'feature_map: expected PowerMap or ExpMap, got {type(feature_map).__name__}')
    named = {'q': q, 'k': inputs.k, 'v': inputs.v, 'key_position': inputs.key_position}
    named |= {f'feature_map.{name}': x for name, x in feature_map.parameters().items()}
    for name, x in named.items():
        may_be_none = name in ('key_position', 'feature_map.scale')
        if not isinstance(x, Tensor) and not (x is None and may_be_none):
            raise TypeError(f'{name}: expected a tensor, got {type(x).__name__}')
    for name, x in (('q', q), ('k', inputs.k), ('v', inputs.v)):
        if x.dtype not in DTYPES:
            raise TypeError(f'{name}: expected float16, bfloat16, float32 or float64, got {_short(x.dtype)}')
        if x.dtype != q.dtype:
            raise TypeError(f'{name}: expected the dtype of q, {_short(q.dtype)}, got {_short(x.dtype)}')
        if x.device != q.device:
            raise ValueError(f'{name}: expected the device of q, {q.device}, got {x.device}')
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
    sizes = feature_map.feature_sizes(dim)
    for name, parameter in feature_map.parameters().items():
        if parameter is not None:
            _expect_shape(f'feature_map.{name}', parameter, [heads, sizes[name]], q)
    if inputs.key_position is not None:
        _expect_shape('key_position', inputs.key_position, [keys, heads, dim], q)
    if inputs.rotary is not None:
        _validate_rotary(inputs)


def _validate_rotary(inputs: AttentionInputs) -> None:
    q, rotary = inputs.q, inputs.rotary
    if not isinstance(inputs.feature_map, ExpMap):
        raise ValueError('rotary: expected an ExpMap beside it, got PowerMap')
    if not isinstance(rotary, tuple) or len(rotary) != 2:
        raise TypeError(f'rotary: expected (cos, sin), got {type(rotary).__name__}')
    queries, keys, dim = q.shape[1], inputs.k.shape[1], q.shape[3]
    if queries != keys:
        raise ValueError(f'rotary: expected as many keys as queries (one table serves both), got N={queries}, M={keys}')
    for name, table in zip(('cos', 'sin'), rotary, strict=True):
        _expect_shape(f'rotary {name}', table, [queries, 2 * dim], q)


def _expect_shape(name: str, x: Tensor, shape: list[int], q: Tensor) -> None:
    if list(x.shape) != shape:
        raise ValueError(f'{name}: expected {shape}, got {list(x.shape)}')
    if x.dtype not in DTYPES:
        raise TypeError(f'{name}: expected float16, bfloat16, float32 or float64, got {_short(x.dtype)}')
    if x.device != q.device:
        raise ValueError(f'{name}: expected the device of q, {q.device}, got {x.device}')


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix('torch.')
