"""Fewer keys and values than tokens: the strided convolution of Pola-PVT, and the way back to all tokens."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from mmpola.layers.position import Grid


def reduced_grid(grid: Grid, ratio: int) -> Grid:
    """(h, w) -> (ceil(h / ratio), ceil(w / ratio))."""
    rows, columns = grid
    return -(-rows // ratio), -(-columns // ratio)


def reduce_tokens(x: Tensor, grid: Grid, conv: nn.Conv2d, norm: nn.LayerNorm) -> tuple[Tensor, Grid]:
    """Tokens [B, N, C] -> [B, M, C] and their grid, one for each cell of the convolution's stride.

    A map that the stride does not divide is continued by its last row and column: every token is read, no cell is
    partly empty, and a map smaller than one cell works.
    """
    rows, columns = grid
    ratio = conv.stride[0]
    maps = x.unflatten(1, grid).permute(0, 3, 1, 2)
    if rows % ratio or columns % ratio:
        maps = F.pad(maps, (0, -columns % ratio, 0, -rows % ratio), mode='replicate')
    return norm(conv(maps).flatten(2).transpose(1, 2)), reduced_grid(grid, ratio)


def spread_tokens(x: Tensor, tokens: int) -> Tensor:
    """[B, M, C] -> [B, tokens, C] by 1-D linear interpolation over the flattened sequence, as in training."""
    if x.shape[1] == tokens:
        return x
    return F.interpolate(x.transpose(1, 2), size=tokens, mode='linear').transpose(1, 2)
