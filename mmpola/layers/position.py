"""Resizing of learned position tables from the grid they were trained on to the grid at hand."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from mmpola.ops.numerics import accumulation_dtype

Grid = tuple[int, int]
"""(rows, columns) of a token map."""


def resize_table(table: Tensor, source: Grid, target: Grid) -> Tensor:
    """[1, h*w, C] learned on `source` -> [1, h'*w', C] on `target`, bilinear; unchanged on its own grid."""
    if source == target:
        return table
    maps = table.unflatten(1, source).permute(0, 3, 1, 2)
    resized = F.interpolate(maps.to(accumulation_dtype(table.dtype)), size=target, mode='bilinear', align_corners=False)
    return resized.to(table.dtype).flatten(2).transpose(1, 2)


def resize_bias_table(table: Tensor, window_size: int) -> Tensor:
    """[(2s-1)^2, H] position biases of windows of s -> those of `window_size`, bicubic as Swin resizes them."""
    source, target = round(table.shape[0] ** 0.5), 2 * window_size - 1
    if source == target:
        return table
    maps = table.T.unflatten(1, (source, source)).unsqueeze(0)
    maps = maps.to(accumulation_dtype(table.dtype))
    resized = F.interpolate(maps, size=(target, target), mode='bicubic', align_corners=False)
    return resized.to(table.dtype)[0].flatten(1).T.contiguous()
