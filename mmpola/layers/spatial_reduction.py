"""Reduce the number of keys and values by Pola-PVT's strided convolution, and interpolate back to all tokens."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from mmpola.layers.padding import cells, pad_to_cells
from mmpola.layers.position import Grid


def reduce_tokens(x: Tensor, grid: Grid, conv: nn.Conv2d, norm: nn.LayerNorm) -> tuple[Tensor, Grid]:
    """Reduce tokens [B, N, C] on `grid` to [B, M, C] and their grid by a convolution whose kernel equals its stride.

    If the stride does not divide the map, its last row and column are repeated, so that every token is read and no
    window of the convolution is partly empty, even if the map is smaller than one window.
    """
    ratio = conv.stride[0]
    maps = x.unflatten(1, grid).permute(0, 3, 1, 2)
    maps = pad_to_cells(maps, grid, ratio, channels_last=False, mode='replicate')
    return norm(conv(maps).flatten(2).transpose(1, 2)), cells(grid, ratio)


def spread_tokens(x: Tensor, tokens: int) -> Tensor:
    """Interpolate [B, M, C] to [B, tokens, C] linearly along the flattened sequence, as the released models do.

    The dtype is kept, also where autocast interpolates in float32.
    """
    if x.shape[1] == tokens:
        return x
    return F.interpolate(x.transpose(1, 2), size=tokens, mode='linear').transpose(1, 2).to(x.dtype)
