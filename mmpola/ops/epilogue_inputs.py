"""What the epilogue accepts: one validated bundle that every backend reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mmpola.ops.numerics import DTYPES


@dataclass(frozen=True, eq=False)
class EpilogueInputs:
    """The arguments of `mix_and_gate`, checked by `validate_epilogue`."""

    attended: Tensor  # [B, N, H, D]
    values: Tensor  # [B, N, H, D]
    gate: Tensor  # [B, N, C], C = H * D
    weight: Tensor  # [D or C, 1, k, k], k odd
    bias: Tensor | None  # [D or C]
    grid: Sequence[int]  # (h, w), h * w = N

    def tensors(self) -> list[Tensor | None]:
        """Every tensor that may ask for a gradient, in a fixed order."""
        return [self.attended, self.values, self.gate, self.weight, self.bias]


def validate_epilogue(inputs: EpilogueInputs) -> None:
    """Raise TypeError or ValueError naming the argument, the rule and what came."""
    attended, weight, bias = inputs.attended, inputs.weight, inputs.bias
    named = {'attended': attended, 'values': inputs.values, 'gate': inputs.gate, 'weight': weight, 'bias': bias}
    for name, x in named.items():
        if not isinstance(x, Tensor):
            if name == 'bias' and x is None:
                continue
            raise TypeError(f'{name}: expected a tensor, got {type(x).__name__}')
        if x.dtype not in DTYPES:
            raise TypeError(f'{name}: expected float16, bfloat16, float32 or float64, got {_short(x.dtype)}')
        if name in ('values', 'gate') and x.dtype != attended.dtype:
            raise TypeError(f'{name}: expected the dtype of attended, {_short(attended.dtype)}, got {_short(x.dtype)}')
        if x.device != attended.device:
            raise ValueError(f'{name}: expected the device of attended, {attended.device}, got {x.device}')
    if attended.ndim != 4:
        raise ValueError(f'attended: expected [B, N, H, D], got {list(attended.shape)}')
    batch, tokens, heads, dim = attended.shape
    if inputs.values.shape != attended.shape:
        raise ValueError(f'values: expected {list(attended.shape)} like attended, got {list(inputs.values.shape)}')
    channels = heads * dim
    if tuple(inputs.gate.shape) != (batch, tokens, channels):
        raise ValueError(f'gate: expected [B, N, H * D] = {[batch, tokens, channels]}, got {list(inputs.gate.shape)}')
    if weight.ndim != 4 or weight.shape[0] not in (dim, channels) or weight.shape[1] != 1:
        raise ValueError(
            f'weight: expected [D, 1, k, k] or [C, 1, k, k] with D={dim}, C={channels}, got {list(weight.shape)}'
        )
    if weight.shape[2] != weight.shape[3] or weight.shape[2] % 2 == 0:
        raise ValueError(f'weight: expected a square kernel of odd side k, got {list(weight.shape[2:])}')
    if bias is not None and tuple(bias.shape) != (weight.shape[0],):
        raise ValueError(f'bias: expected {[weight.shape[0]]} like weight, got {list(bias.shape)}')
    if len(inputs.grid) != 2 or inputs.grid[0] * inputs.grid[1] != tokens:
        raise ValueError(f'grid: expected (h, w) with h * w = N = {tokens}, got {tuple(inputs.grid)}')


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix('torch.')
