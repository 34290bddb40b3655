"""The angles of PolaFormer++'s rotary position embedding on a token grid (E10)."""

from __future__ import annotations

import torch
from torch import Tensor

from mmpola.layers.position import Grid

BASE = 10000.0


def rotary_tables(grid: Grid, channels: int, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Compute (cos, sin) of the rotation angles, each [h * w, channels], for interleaved channel pairs.

    The first half of the channels rotates with the row, the second half with the column. The angular frequencies are
    10000^-linspace(0, 1, channels / 4); timm's rotary embeddings space theirs by arange(n) / n instead.

    Args:
        grid: (h, w).
        channels: channels to rotate, a multiple of 4: 2D features in linear attention, D channels in softmax attention.
        device, dtype: of the tables.
    """
    frequencies = BASE ** -torch.linspace(0, 1, channels // 4, device=device, dtype=dtype)
    rows, columns = (torch.arange(side, device=device, dtype=dtype)[:, None] * frequencies for side in grid)

    def table(by_row: Tensor, by_column: Tensor) -> Tensor:
        """[h, channels / 4] and [w, channels / 4] -> [h * w, channels], each angle for both channels of its pair."""
        row_half = by_row.repeat_interleave(2, dim=-1)[:, None].expand(*grid, -1)
        column_half = by_column.repeat_interleave(2, dim=-1)[None].expand(*grid, -1)
        return torch.cat([row_half, column_half], dim=-1).flatten(0, 1)

    return table(rows.cos(), columns.cos()), table(rows.sin(), columns.sin())
