"""Fewer keys and values than tokens: Pola-PVT's strided convolution, and the interpolation back to all tokens."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from mmpola.layers.position import Grid


def reduced_grid(grid: Grid, ratio: int) -> Grid:
    """Return the grid after a stride of `ratio`: (h, w) -> (ceil(h / ratio), ceil(w / ratio))."""
    rows, columns = grid
    return -(-rows // ratio), -(-columns // ratio)


def reduce_tokens(x: Tensor, grid: Grid, conv: nn.Conv2d, norm: nn.LayerNorm) -> tuple[Tensor, Grid]:
    """Reduce tokens [B, N, C] on `grid` to [B, M, C] and their grid by a convolution whose kernel equals its stride.

    If the stride does not divide the map, its last row and column are repeated: every token is read, no cell is partly
    empty, and a map smaller than one cell works.
    """
    rows, columns = grid
    ratio = conv.stride[0]
    maps = x.unflatten(1, grid).permute(0, 3, 1, 2)
    if rows % ratio or columns % ratio:
        padding = (0, (ratio - columns % ratio) % ratio, 0, (ratio - rows % ratio) % ratio)
        maps = F.pad(maps, padding, mode='replicate')
    return norm(conv(maps).flatten(2).transpose(1, 2)), reduced_grid(grid, ratio)


def spread_tokens(x: Tensor, tokens: int) -> Tensor:
    """Interpolate [B, M, C] to [B, tokens, C] linearly along the flattened sequence, as the released models do."""
    if x.shape[1] == tokens:
        return x
    return F.interpolate(x.transpose(1, 2), size=tokens, mode='linear').transpose(1, 2)
