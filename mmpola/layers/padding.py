"""Padding of token maps whose sides a patch, a window or a stride does not divide."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from mmpola.layers.position import Grid
from mmpola.ops.numerics import is_traced


def cells(grid: Grid, size: int) -> Grid:
    """Return how many cells of `size` x `size` cover a map: (ceil(h / size), ceil(w / size))."""
    return (grid[0] + size - 1) // size, (grid[1] + size - 1) // size


def pad_to_cells(x: Tensor, grid: Grid, size: int, *, channels_last: bool, mode: str = 'constant') -> Tensor:
    """Pad a map below and on the right so that cells of `size` x `size` divide it.

    Compilers and exporters record the padding even where it is 0, so that their graph serves every image size. The
    amounts are written so that the padded sides simplify to multiples of `size`: nested remainders would make symbolic
    shapes grow with every layer.

    Args:
        x: [B, C, h, w], or [B, h, w, C] with `channels_last`.
        grid: (h, w).
        size: side of a cell.
        channels_last: where the channels are.
        mode: of torch.nn.functional.pad: 'constant' pads with zeros, 'replicate' (not with `channels_last`) with the
            last row and column.
    """
    rows, columns = grid
    if not is_traced() and rows % size == 0 and columns % size == 0:
        return x
    high, wide = cells(grid, size)
    amounts = (0, wide * size - columns, 0, high * size - rows)
    return F.pad(x, (0, 0, *amounts) if channels_last else amounts, mode=mode)
