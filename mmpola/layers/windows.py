"""Cutting a token map of any size into shifted windows, masking them and joining them (Swin, ICCV 2021, sec. 3.2).

Exported programs gather each window's tokens by their index instead of padding, rolling and
permuting the map: ONNX cannot roll by an amount that depends on the image size, and a tensor with a
dimension for the rows and columns of windows would restrict torch.export's program to images with
as many of them, one or several, as its sample.

Compiled programs call the operators `mmpola::window_mask`, `cut_windows` and `join_windows`, into
which compilers do not look: torch.compile would fuse the arithmetic of symbolic sizes into its
kernels, which takes minutes and fails for some models (torch 2.11).

Everything else moves whole tokens by their index too, and keeps the indices and the mask of the
last grids.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import torch
from einops import rearrange
from torch import Tensor
from torch.autograd import Function

from mmpola.layers.patches import ceil_div, pad_to_cells
from mmpola.layers.positions import Grid
from mmpola.ops.tracing import is_compiled, is_exported, is_traced, may_keep, stream_of

KEPT = 16
"""Grids and shifts whose tables are kept: the stages of a pyramid need four."""


def effective_shift(grid: Grid, window_size: int, shift: int) -> Grid:
    """Return the (row, column) shift: 0 along a side that fits into one window, where a shift would separate tokens."""
    high, wide = ceil_div(grid, window_size)
    # 1 // windows is 1 for one window and else 0, without a branch that would fix the image size
    # under tracing
    return shift * (1 - 1 // high), shift * (1 - 1 // wide)


def window_mask(x: Tensor, grid: Grid, window_size: int, shift: int) -> Tensor | None:
    """Compute which pairs of tokens in a window attend to each other: [B * windows, s*s, s*s] bool.

    None if all do; compilers and exporters always get a mask, since asking would fix the image
    size.

    Two tokens do not if only the cyclic shift brought them into the same window, or if exactly one
    of them is padding. Real tokens therefore never read padding.

    Args:
        x: the tokens [B, N, C], of which B and the device are used.
        grid: (h, w) of the token map before padding.
        window_size: side s of a window, in tokens.
        shift: cyclic shift in tokens, see `WindowAttention`.
    """
    shifts = effective_shift(grid, window_size, shift)
    if is_compiled():
        return mask_operator(x, *grid, window_size, *shifts)
    if not is_traced() and not any(shifts) and not any(side % window_size for side in grid):
        return None
    return _kept_or_new_mask(x, grid, window_size, shifts)


def cut_windows(x: Tensor, grid: Grid, window_size: int, shift: int) -> Tensor:
    """Cut tokens [B, N, C] on `grid` into windows [B * windows, s*s, C] of side s = `window_size`.

    The map is padded to a multiple of s and rolled by the `effective_shift` first. The values of
    padding are unspecified: `window_mask` keeps real tokens from reading them.
    """
    shifts, (high, wide) = effective_shift(grid, window_size, shift), ceil_div(grid, window_size)
    if is_exported():
        sources = []
        positions = _positions_in_windows(grid, window_size, x.device)
        for position, side, windows, side_shift in zip(
            positions, grid, (high, wide), shifts, strict=True
        ):
            source, length = position + side_shift, windows * window_size
            sources.append(
                torch.where(source < length, source, source - length).clamp_max(side - 1)
            )
        rows, columns = sources
        tokens = x.index_select(1, rows * grid[1] + columns).flatten(0, 1)
        return tokens.unflatten(0, (x.shape[0] * high * wide, window_size**2))
    if is_compiled():
        return cut_operator(x, *grid, window_size, *shifts)
    if may_keep(x):
        return _cut_by_index(x, grid, window_size, shifts)
    return _cut(x, grid, window_size, shifts)


def join_windows(windows: Tensor, grid: Grid, window_size: int, shift: int, batch: int) -> Tensor:
    """Join windows [B * windows, s*s, C] to the tokens [B, N, C] on `grid`: the inverse of `cut_windows`."""
    shifts, (high, wide) = effective_shift(grid, window_size, shift), ceil_div(grid, window_size)
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
    if is_compiled():
        return join_operator(windows, *grid, window_size, *shifts, batch)
    if may_keep(windows):
        return _join_by_index(windows, grid, window_size, shifts)
    return _join(windows, grid, window_size, shifts, batch)


class Places(NamedTuple):
    """Where the tokens of a map are in its windows, all int64.

    Args:
        token: the token at each place, window by window [windows * s*s]; any token at a place of
            padding.
        place: the place of each token [N].
        padding: the places of padding.
    """

    token: Tensor
    place: Tensor
    padding: Tensor


@lru_cache(maxsize=KEPT)
def _kept_places(
    stream: torch.cuda.Stream | None,
    device: torch.device,
    grid: Grid,
    window_size: int,
    shifts: Grid,
) -> Places:
    with torch.inference_mode(False):  # else autograd could not save them later
        tokens = grid[0] * grid[1]
        numbers = torch.arange(1, tokens + 1, device=device).view(
            1, tokens, 1
        )  # padding is numbered 0
        numbers = _cut(numbers, grid, window_size, shifts).flatten() - 1
        order = numbers.argsort()  # padding first, then the tokens in their order
        missing = len(numbers) - tokens
        return Places(numbers.clamp_min(0), order[missing:], order[:missing])


@lru_cache(maxsize=KEPT)
def _kept_mask(
    stream: torch.cuda.Stream | None,
    device: torch.device,
    batch: int,
    grid: Grid,
    window_size: int,
    shifts: Grid,
) -> Tensor:
    with torch.inference_mode(False):
        return _mask(torch.empty(batch, device=device), grid, window_size, shifts)


def _kept_or_new_mask(x: Tensor, grid: Grid, window_size: int, shifts: Grid) -> Tensor:
    """Compute `_mask`, or return the one that is kept."""
    if may_keep(x):
        return _kept_mask(stream_of(x), x.device, x.shape[0], grid, window_size, shifts)
    return _mask(x, grid, window_size, shifts)


def _cut_by_index(x: Tensor, grid: Grid, window_size: int, shifts: Grid) -> Tensor:
    """Compute `_cut` with places that are kept; never a view of x."""
    places = _kept_places(stream_of(x), x.device, grid, window_size, shifts)
    return _CutWindows.apply(x, window_size, places)


def _join_by_index(windows: Tensor, grid: Grid, window_size: int, shifts: Grid) -> Tensor:
    """Compute `_join` with places that are kept; never a view of the windows."""
    places = _kept_places(stream_of(windows), windows.device, grid, window_size, shifts)
    return _JoinWindows.apply(windows, window_size, places)


class _CutWindows(Function):
    """Move tokens [B, N, C] to windows [B * windows, s*s, C], whose padding is 0."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, window_size: int, places: Places) -> Tensor:
        ctx.window_size = window_size
        ctx.places = places
        windows = x.index_select(1, places.token)
        if len(places.padding):
            windows.index_fill_(1, places.padding, 0)
        return windows.view(-1, window_size**2, x.shape[2])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return _JoinWindows.apply(grad, ctx.window_size, ctx.places), None, None


class _JoinWindows(Function):
    """Move windows [B * windows, s*s, C] to tokens [B, N, C], without padding."""

    @staticmethod
    def forward(ctx: Any, windows: Tensor, window_size: int, places: Places) -> Tensor:
        ctx.window_size = window_size
        ctx.places = places
        return windows.reshape(-1, len(places.token), windows.shape[2]).index_select(
            1, places.place
        )

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return _CutWindows.apply(grad, ctx.window_size, ctx.places), None, None


def _mask(x: Tensor, grid: Grid, window_size: int, shifts: Grid) -> Tensor:
    """Compute `window_mask` where some tokens do not attend to each other."""
    batch, (high, wide) = x.shape[0], ceil_div(grid, window_size)
    positions = _positions_in_windows(grid, window_size, x.device)
    labels = []
    for position, side, windows, side_shift in zip(
        positions, grid, (high, wide), shifts, strict=True
    ):
        wrapped = (
            position >= windows * window_size - side_shift
        )  # brought here from the other end by the shift
        padded = (position + side_shift >= side) & ~wrapped
        labels.append(torch.where(padded, 2, wrapped.long()))
    rows, columns = labels
    region = (3 * rows + columns).masked_fill(
        (rows == 2) | (columns == 2), 9
    )  # all padding is one region, numbered 9
    region = region.repeat(batch).view(batch * high * wide, window_size**2)
    return region.unsqueeze(1) == region.unsqueeze(2)


def _cut(x: Tensor, grid: Grid, window_size: int, shifts: Grid) -> Tensor:
    """Pad, roll and cut tokens [B, N, C] into windows; a view where that is possible."""
    maps = pad_to_cells(x.unflatten(1, grid), grid, window_size, channels_last=True)
    if is_traced() or any(shifts):  # rolling by 0 would copy the map
        maps = maps.roll((-shifts[0], -shifts[1]), dims=(1, 2))
    return rearrange(maps, 'b (wh s) (ww t) c -> (b wh ww) (s t) c', s=window_size, t=window_size)


def _join(windows: Tensor, grid: Grid, window_size: int, shifts: Grid, batch: int) -> Tensor:
    """Join windows to tokens [B, N, C], roll back and remove the padding."""
    (high, wide), pattern = ceil_div(grid, window_size), '(b wh ww) (s t) c -> b (wh s) (ww t) c'
    maps = rearrange(windows, pattern, b=batch, wh=high, ww=wide, s=window_size, t=window_size)
    if is_traced() or any(shifts):
        maps = maps.roll(shifts, dims=(1, 2))
    return maps[:, : grid[0], : grid[1]].flatten(1, 2)


def _positions_in_windows(
    grid: Grid, window_size: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Compute rows and columns, in the padded map, of all tokens window by window: int64 [windows * s*s] each."""
    high, wide = ceil_div(grid, window_size)
    index = torch.arange(high * wide * window_size**2, device=device)
    window, inside = index // window_size**2, index % window_size**2
    window_row = window // wide
    window_column = (
        window - window_row * wide
    )  # ONNX has no remainder of a divisor that depends on the image size
    return (
        window_row * window_size + inside // window_size,
        window_column * window_size + inside % window_size,
    )


@torch.library.custom_op('mmpola::window_mask', mutates_args=())
def mask_operator(
    x: Tensor, rows: int, columns: int, window_size: int, shift_rows: int, shift_columns: int
) -> Tensor:
    """Compute `_mask`; a copy, because a compiled program may overwrite the result of an operator."""
    return _kept_or_new_mask(x, (rows, columns), window_size, (shift_rows, shift_columns)).clone()


@torch.library.custom_op('mmpola::cut_windows', mutates_args=())
def cut_operator(
    x: Tensor, rows: int, columns: int, window_size: int, shift_rows: int, shift_columns: int
) -> Tensor:
    """Compute `_cut`; the result of an operator must not share memory with its input."""
    if may_keep(x):
        return _cut_by_index(x, (rows, columns), window_size, (shift_rows, shift_columns))
    windows = _cut(x, (rows, columns), window_size, (shift_rows, shift_columns))
    return windows.clone(memory_format=torch.contiguous_format)


@torch.library.custom_op('mmpola::join_windows', mutates_args=())
def join_operator(
    windows: Tensor,
    rows: int,
    columns: int,
    window_size: int,
    shift_rows: int,
    shift_columns: int,
    batch: int,
) -> Tensor:
    """Compute `_join`."""
    if may_keep(windows):
        return _join_by_index(windows, (rows, columns), window_size, (shift_rows, shift_columns))
    tokens = _join(windows, (rows, columns), window_size, (shift_rows, shift_columns), batch)
    return tokens.clone(memory_format=torch.contiguous_format)


@mask_operator.register_fake
def _(x: Tensor, rows: int, columns: int, window_size: int, *_: int) -> Tensor:
    high, wide = ceil_div((rows, columns), window_size)
    return x.new_empty(x.shape[0] * high * wide, window_size**2, window_size**2, dtype=torch.bool)


@cut_operator.register_fake
def _(x: Tensor, rows: int, columns: int, window_size: int, *_: int) -> Tensor:
    high, wide = ceil_div((rows, columns), window_size)
    return x.new_empty(x.shape[0] * high * wide, window_size**2, x.shape[2])


@join_operator.register_fake
def _(
    windows: Tensor, rows: int, columns: int, window_size: int, row: int, column: int, batch: int
) -> Tensor:
    return windows.new_empty(batch, rows * columns, windows.shape[2])


def _keep_sizes(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.batch, ctx.sizes = inputs[0].shape[0], inputs[1:]


# Each is the other's gradient: padding is zero on the way in and dropped on the way out.
cut_operator.register_autograd(
    lambda ctx, grad: (join_operator(grad, *ctx.sizes, ctx.batch), *[None] * 5),
    setup_context=_keep_sizes,
)
join_operator.register_autograd(
    lambda ctx, grad: (cut_operator(grad, *ctx.sizes[:-1]), *[None] * 6), setup_context=_keep_sizes
)
