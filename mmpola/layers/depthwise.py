"""Depth-wise convolution of tokens by a layer's kernel."""

from __future__ import annotations

from torch import Tensor, nn

from mmpola.layers.position import Grid
from mmpola.ops import depthwise


def convolve_tokens(x: Tensor, kernel: nn.Conv2d, grid: Grid) -> Tensor:
    """x [B, N, C] on the token grid (h, w), N = h * w, through a depth-wise kernel of C channels -> [B, N, C]."""
    return depthwise.convolve_tokens(x, kernel.weight, kernel.bias, grid)
