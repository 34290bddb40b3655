"""The windows of windows.py for exporters and compilers, which record them for any image size."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mmpola.layers.patches import covering_grid
from mmpola.layers.positions import Grid
from mmpola.layers.windows import IndexedWindows, Windows, kept_windows
from mmpola.ops.tracing import may_keep, stream_of


class ExportedWindows(Windows):
    """The windows for torch.export and ONNX: tokens are gathered by indices that are computed.

    ONNX cannot roll by an amount that depends on the image size. A tensor with a dimension for the
    rows and one for the columns of windows would restrict the program of torch.export to images
    with as many of them, one or several, as its sample.
    """

    def cut(self, x: Tensor) -> Tensor:
        """Cut tokens [B, N, C] into windows [B * windows, s*s, C]; padding repeats a token."""
        rows, columns = self.positions(x.device)
        padded_rows = self.high * self.window_size
        padded_columns = self.wide * self.window_size
        row = _unrolled(rows + self.shift_rows, padded_rows).clamp_max(self.grid[0] - 1)
        column = _unrolled(columns + self.shift_columns, padded_columns).clamp_max(self.grid[1] - 1)
        tokens = x.index_select(1, row * self.grid[1] + column).flatten(0, 1)
        windows = x.shape[0] * self.high * self.wide
        return tokens.unflatten(0, (windows, self.window_size**2))

    def join(self, windows: Tensor) -> Tensor:
        """Join windows [B * windows, s*s, C] to tokens [B, N, C]."""
        side = self.window_size
        token = torch.arange(self.grid[0] * self.grid[1], device=windows.device)
        map_row = token // self.grid[1]
        map_column = token - map_row * self.grid[1]
        row = _rolled(map_row - self.shift_rows, self.high * side)
        column = _rolled(map_column - self.shift_columns, self.wide * side)
        window = row // side * self.wide + column // side
        inside = row % side * side + column % side
        tokens = windows.flatten(0, 1).unflatten(0, (self.batch, self.high * self.wide * side**2))
        return tokens.index_select(1, window * side**2 + inside)


def _unrolled(position: Tensor, side: int) -> Tensor:
    """Bring positions beyond the end of a side back to its start."""
    return torch.where(position < side, position, position - side)


def _rolled(position: Tensor, side: int) -> Tensor:
    """Bring positions before the start of a side to its end."""
    return torch.where(position < 0, position + side, position)


class CompiledWindows(Windows):
    """The windows for torch.compile: one operator each, into which the compiler does not look.

    It would fuse the arithmetic of symbolic sizes into its kernels, which takes minutes and fails
    for some models (torch 2.11).
    """

    def __init__(self, x: Tensor, grid: Grid, window_size: int, shift: int) -> None:
        self.shift = shift
        super().__init__(x, grid, window_size, shift)

    def cut(self, x: Tensor) -> Tensor:
        """Cut tokens [B, N, C] into windows [B * windows, s*s, C]."""
        return cut_operator(x, *self.grid, self.window_size, self.shift)

    def join(self, windows: Tensor) -> Tensor:
        """Join windows [B * windows, s*s, C] to tokens [B, N, C]."""
        return join_operator(windows, *self.grid, self.window_size, self.shift, self.batch)

    def make_mask(self, x: Tensor) -> Tensor:
        """Compute the mask of `Windows`, never None."""
        return mask_operator(x, *self.grid, self.window_size, self.shift)


def _windows(x: Tensor, batch: int, grid: Grid, window_size: int, shift: int) -> Windows:
    """Return windows for an operator that runs."""
    if may_keep(x):
        return kept_windows(stream_of(x), batch, grid, window_size, shift, x.device, x.dtype)
    return IndexedWindows(x.new_empty(batch, 0, 0), grid, window_size, shift)


@torch.library.custom_op('mmpola::window_mask', mutates_args=())
def mask_operator(x: Tensor, rows: int, columns: int, window_size: int, shift: int) -> Tensor:
    """Return the mask of `Windows` for the tokens x [B, N, C], in x's dtype."""
    windows = _windows(x, x.shape[0], (rows, columns), window_size, shift)
    if windows.mask is not None:
        return windows.mask.clone()  # a compiled program may overwrite the result of an operator
    tokens = window_size**2
    return x.new_zeros(x.shape[0] * windows.high * windows.wide, 1, tokens, tokens)


@torch.library.custom_op('mmpola::cut_windows', mutates_args=())
def cut_operator(x: Tensor, rows: int, columns: int, window_size: int, shift: int) -> Tensor:
    """Compute `Windows.cut`."""
    return _windows(x, x.shape[0], (rows, columns), window_size, shift).cut(x)


@torch.library.custom_op('mmpola::join_windows', mutates_args=())
def join_operator(
    windows: Tensor, rows: int, columns: int, window_size: int, shift: int, batch: int
) -> Tensor:
    """Compute `Windows.join`."""
    return _windows(windows, batch, (rows, columns), window_size, shift).join(windows)


@mask_operator.register_fake
def _(x: Tensor, rows: int, columns: int, window_size: int, shift: int) -> Tensor:
    high, wide = covering_grid((rows, columns), window_size)
    tokens = window_size**2
    return x.new_empty(x.shape[0] * high * wide, 1, tokens, tokens)


@cut_operator.register_fake
def _(x: Tensor, rows: int, columns: int, window_size: int, shift: int) -> Tensor:
    high, wide = covering_grid((rows, columns), window_size)
    return x.new_empty(x.shape[0] * high * wide, window_size**2, x.shape[2])


@join_operator.register_fake
def _(windows: Tensor, rows: int, columns: int, window_size: int, shift: int, batch: int) -> Tensor:
    return windows.new_empty(batch, rows * columns, windows.shape[2])


def _keep_cut_sizes(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, *ctx.sizes = inputs
    ctx.batch = x.shape[0]


def _cut_gradient(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    return join_operator(grad, *ctx.sizes, ctx.batch), None, None, None, None


def _keep_join_sizes(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, *ctx.sizes, _ = inputs


def _join_gradient(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    return cut_operator(grad, *ctx.sizes), None, None, None, None, None


cut_operator.register_autograd(_cut_gradient, setup_context=_keep_cut_sizes)
join_operator.register_autograd(_join_gradient, setup_context=_keep_join_sizes)
