"""Cutting a token map of any size into shifted windows, masking them and joining them (Swin, ICCV 2021, sec. 3.2).

Exported programs gather each window's tokens by their index instead of padding, rolling and permuting the map: ONNX
cannot roll by an amount that depends on the image size, and a tensor with a dimension for the rows and columns of
windows would restrict torch.export's program to images with as many of them, one or several, as its sample.
"""

from __future__ import annotations

import torch
from einops import rearrange
from torch import Tensor

from mmpola.layers.padding import cells, pad_to_cells
from mmpola.layers.position import Grid
from mmpola.ops.numerics import is_exported, is_traced


def effective_shift(grid: Grid, window_size: int, shift: int) -> Grid:
    """Return the (row, column) shift: 0 along a side that fits into one window, where a shift would separate tokens."""
    # 1 // windows is 1 for one window and else 0, without a branch that would fix the image size under tracing
    rows, columns = (shift * (1 - 1 // windows) for windows in cells(grid, window_size))
    return rows, columns


def window_mask(grid: Grid, window_size: int, shift: int, batch: int, device: torch.device) -> Tensor | None:
    """Compute which pairs of tokens in a window attend to each other: [B * windows, s*s, s*s] bool.

    None if all do; compilers and exporters always get a mask, since asking would fix the image size.

    Two tokens do not if only the cyclic shift brought them into the same window, or if exactly one of them is padding.
    Real tokens therefore never read padding.

    Args:
        grid: (h, w) of the token map before padding.
        window_size: side s of a window, in tokens.
        shift: cyclic shift in tokens, see `WindowAttention`.
        batch: number of images B.
        device: of the mask.
    """
    shifts = effective_shift(grid, window_size, shift)
    if not is_traced() and not any(shifts) and not any(side % window_size for side in grid):
        return None
    high, wide = cells(grid, window_size)
    positions = _positions_in_windows(grid, window_size, device)
    labels = []
    for position, side, windows, side_shift in zip(positions, grid, (high, wide), shifts, strict=True):
        wrapped = position >= windows * window_size - side_shift  # brought here from the other end by the shift
        padded = (position + side_shift >= side) & ~wrapped
        labels.append(torch.where(padded, 2, wrapped.long()))
    rows, columns = labels
    region = (3 * rows + columns).masked_fill((rows == 2) | (columns == 2), 9)  # all padding is one region, numbered 9
    region = region.repeat(batch).view(batch * high * wide, window_size**2)
    return region.unsqueeze(1) == region.unsqueeze(2)


def cut_windows(x: Tensor, grid: Grid, window_size: int, shift: int) -> Tensor:
    """Cut tokens [B, N, C] on `grid` into windows [B * windows, s*s, C] of side s = `window_size`.

    The map is padded to a multiple of s and rolled by the `effective_shift` first. The values of padding are
    unspecified: `window_mask` keeps real tokens from reading them.
    """
    shifts, (high, wide) = effective_shift(grid, window_size, shift), cells(grid, window_size)
    if is_exported():
        sources = []
        positions = _positions_in_windows(grid, window_size, x.device)
        for position, side, windows, side_shift in zip(positions, grid, (high, wide), shifts, strict=True):
            source, length = position + side_shift, windows * window_size
            sources.append(torch.where(source < length, source, source - length).clamp_max(side - 1))
        rows, columns = sources
        tokens = x.index_select(1, rows * grid[1] + columns).flatten(0, 1)
        return tokens.unflatten(0, (x.shape[0] * high * wide, window_size**2))
    maps = pad_to_cells(x.unflatten(1, grid), grid, window_size, channels_last=True)
    if is_traced() or any(shifts):  # rolling by 0 would copy the map
        maps = maps.roll((-shifts[0], -shifts[1]), dims=(1, 2))
    return rearrange(maps, 'b (wh s) (ww t) c -> (b wh ww) (s t) c', s=window_size, t=window_size)


def join_windows(windows: Tensor, grid: Grid, window_size: int, shift: int, batch: int) -> Tensor:
    """Join windows [B * windows, s*s, C] to the tokens [B, N, C] on `grid`: the inverse of `cut_windows`."""
    shifts, (high, wide) = effective_shift(grid, window_size, shift), cells(grid, window_size)
    if is_exported():
        token = torch.arange(grid[0] * grid[1], device=windows.device)
        row = token // grid[1]
        column = token - row * grid[1] - shifts[1]
        row = row - shifts[0]
        row = torch.where(row < 0, row + high * window_size, row)
        column = torch.where(column < 0, column + wide * window_size, column)
        window = row // window_size * wide + column // window_size
        inside = row % window_size * window_size + column % window_size
        tokens = windows.flatten(0, 1).unflatten(0, (batch, high * wide * window_size**2))
        return tokens.index_select(1, window * window_size**2 + inside)
    pattern = '(b wh ww) (s t) c -> b (wh s) (ww t) c'
    maps = rearrange(windows, pattern, b=batch, wh=high, ww=wide, s=window_size, t=window_size)
    if is_traced() or any(shifts):
        maps = maps.roll(shifts, dims=(1, 2))
    return maps[:, : grid[0], : grid[1]].flatten(1, 2)


def _positions_in_windows(grid: Grid, window_size: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Compute rows and columns, in the padded map, of all tokens window by window: int64 [windows * s*s] each."""
    high, wide = cells(grid, window_size)
    index = torch.arange(high * wide * window_size**2, device=device)
    window, inside = index // window_size**2, index % window_size**2
    window_row = window // wide
    window_column = window - window_row * wide  # ONNX has no remainder of a divisor that depends on the image size
    return window_row * window_size + inside // window_size, window_column * window_size + inside % window_size
