"""Depth-wise convolution of tokens by PyTorch, in the layout of linear layers, and the epilogue on it (E14)."""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor

from mmpola.ops.epilogue_inputs import EpilogueInputs
from mmpola.ops.numerics import without_autocast


def convolve_tokens(x: Tensor, weight: Tensor, bias: Tensor | None, grid: Sequence[int]) -> Tensor:
    """Depth-wise convolution of the map that tokens form, zeros around it, size kept.

    Args:
        x: [B, N, C] on the token grid.
        weight: [C, 1, k, k], or [C / H, 1, k, k]: then every head of H uses the same one; k odd.
        bias: one entry per channel of `weight`, or None.
        grid: (h, w) with h * w = N.

    Returns:
        [B, N, C].
    """
    channels = x.shape[-1]
    heads = channels // weight.shape[0]
    # Tokens by channels is the memory of a channels-last map, so sharing the kernel by repeating it copies no values.
    maps = x.unflatten(1, grid).permute(0, 3, 1, 2)
    weight = weight.repeat(heads, 1, 1, 1)
    bias = None if bias is None else bias.repeat(heads)
    mixed = F.conv2d(maps, weight, bias, padding=weight.shape[-1] // 2, groups=channels)
    return mixed.flatten(2).transpose(1, 2)


def reference_epilogue(inputs: EpilogueInputs) -> Tensor:
    """y [B, N, C] (E14) under ordinary autograd: the `reference` backend and the meaning of the others."""
    values = inputs.values.flatten(2)
    weight = inputs.weight.to(values.dtype)
    bias = None if inputs.bias is None else inputs.bias.to(values.dtype)
    with without_autocast(values.device):
        return (inputs.attended.flatten(2) + convolve_tokens(values, weight, bias, inputs.grid)) * inputs.gate
