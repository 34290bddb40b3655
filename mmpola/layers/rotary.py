"""The angles of PolaFormer++'s rotary position embedding over a token grid (E10)."""

from __future__ import annotations

import torch
from torch import Tensor

from mmpola.layers.position import Grid

BASE = 10000.0


def rotary_tables(grid: Grid, channels: int, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """(cos, sin), each [h * w, channels], for interleaved channel pairs.

    Channels [: channels / 2] turn with the row, the others with the column, by 1 / 10000^linspace(0, 1, channels / 4).

    Args:
        grid: (h, w).
        channels: of what is turned, a multiple of 4: 2D features in linear attention, D channels in softmax attention.
        device, dtype: of the tables.
    """
    exponents = torch.linspace(0, 1, channels // 4, device=device, dtype=dtype)
    angles = BASE**-exponents
    rows, columns = (torch.arange(side, device=device, dtype=dtype)[:, None] * angles for side in grid)

    def table(of_rows: Tensor, of_columns: Tensor) -> Tensor:
        """[h, channels / 4] and [w, channels / 4], each angle for both channels of its pair -> [h * w, channels]."""
        over_rows = of_rows.repeat_interleave(2, dim=-1)[:, None].expand(*grid, -1)
        over_columns = of_columns.repeat_interleave(2, dim=-1)[None].expand(*grid, -1)
        return torch.cat([over_rows, over_columns], dim=-1).flatten(0, 1)

    return table(rows.cos(), columns.cos()), table(rows.sin(), columns.sin())
