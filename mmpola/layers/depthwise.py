"""Depth-wise convolution of tokens, without leaving the layout of linear layers."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from mmpola.layers.position import Grid


def convolve_tokens(x: Tensor, kernel: nn.Conv2d, grid: Grid) -> Tensor:
    """Depth-wise convolution of the map that tokens form, size kept.

    Args:
        x: [B, N, C] on the token grid.
        kernel: depth-wise, of C channels, or of C / H channels: then every head of H uses the same one.
        grid: (h, w) with h * w = N.

    Returns:
        [B, N, C].
    """
    channels = x.shape[-1]
    heads = channels // kernel.out_channels
    # Tokens by channels is the memory of a channels-last map, so sharing the kernel by repeating it copies no values.
    maps = x.unflatten(1, grid).permute(0, 3, 1, 2)
    weight = kernel.weight.repeat(heads, 1, 1, 1)
    bias = None if kernel.bias is None else kernel.bias.repeat(heads)
    mixed = F.conv2d(maps, weight, bias, padding=kernel.padding, groups=channels)
    return mixed.flatten(2).transpose(1, 2)


def mix_and_gate(attended: Tensor, values: Tensor, gate: Tensor, kernel: nn.Conv2d, grid: Grid) -> Tensor:
    """y = (o + DWC(v)) * g (E9).

    Args:
        attended: o [B, N, H, D].
        values: v [B, N, H, D] on the token grid.
        gate: g [B, N, C], C = H * D.
        kernel: depth-wise convolution of C channels, or of D channels shared by all heads.
        grid: (h, w) with h * w = N.

    Returns:
        y [B, N, C].
    """
    return (attended.flatten(2) + convolve_tokens(values.flatten(2), kernel, grid)) * gate
