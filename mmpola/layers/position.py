"""Resizing of learned position tables to another grid of tokens or another window."""

from __future__ import annotations

import torch.nn.functional as F
from timm.layers import resize_rel_pos_bias_table_simple
from torch import Tensor

from mmpola.ops.numerics import accumulation_dtype, is_traced

Grid = tuple[int, int]
"""(rows, columns) of a token map."""


def resize_table(table: Tensor, source: Grid, target: Grid) -> Tensor:
    """Resize a position table [1, h*w, C] of grid `source` to [1, h'*w', C] of grid `target`, bilinearly.

    Half-precision tables are interpolated in float32; the dtype is kept. With equal grids the table itself is returned,
    except while tracing, where comparing would fix the image size.
    """
    if not is_traced() and source == target:
        return table
    maps = table.unflatten(1, source).permute(0, 3, 1, 2)
    resized = F.interpolate(maps.to(accumulation_dtype(table.dtype)), size=target, mode='bilinear', align_corners=False)
    return resized.to(table.dtype).flatten(2).transpose(1, 2)


def resize_bias_table(table: Tensor, window_size: int) -> Tensor:
    """Resize a relative position bias table [(2s-1)^2, H] of windows of side s to `window_size`, bicubically as Swin.

    Half-precision tables are interpolated in float32 (timm would do it in their own dtype); the dtype is kept.
    """
    shape = ((2 * window_size - 1) ** 2, table.shape[1])
    wide = table.to(accumulation_dtype(table.dtype))
    return resize_rel_pos_bias_table_simple(wide, (window_size, window_size), shape).to(table.dtype).contiguous()
