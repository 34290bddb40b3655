"""The windows of windows.py in forms that exporters and compilers record for any image size."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mmpola.layers.token_maps import Grid, covering_grid
from mmpola.layers.windows import IndexedWindows, Windows, cached_windows
from mmpola.ops.tracing import cache_key


def traced_windows(x: Tensor, grid: Grid, window_size: int, shift: int) -> Windows:
    """Return the windows of a map for the exporter, compiler or tracer that records the call."""
    if is_exported():
        return ExportedWindows(x, grid, window_size, shift)
    if torch.compiler.is_compiling():
        return CompiledWindows(x, grid, window_size, shift)
    return Windows(x, grid, window_size, shift)  # for torch.jit.trace


def is_exported() -> bool:
    """Whether torch.export is recording, by itself or for ONNX; False in torch < 2.7.

    Reads the flag behind `torch.compiler.is_exporting`, since torch.compile replaces that by True.
    """
    return getattr(torch.compiler, '_is_exporting_flag', False)


class ExportedWindows(Windows):
    """The windows for torch.export and ONNX: tokens are gathered by indices that are computed.

    ONNX cannot roll by an amount that depends on the image size. And no tensor may have a dimension
    for the rows or the columns of windows: torch.export treats dimensions of size 1 differently, so
    its program would only serve images that, like the sample, have one or several of them.
    """

    is_exported = True

    def cut(self, x: Tensor) -> Tensor:
        """Cut tokens [B, N, C] into windows [B * windows, s*s, C]; padding repeats a token."""
        rows, columns = self.positions(x.device)
        padded_rows = self.window_rows * self.window_size
        padded_columns = self.window_columns * self.window_size
        row = _unrolled(rows + self.shift_rows, padded_rows).clamp_max(self.grid[0] - 1)
        column = _unrolled(columns + self.shift_columns, padded_columns).clamp_max(self.grid[1] - 1)
        tokens = x.index_select(1, row * self.grid[1] + column).flatten(0, 1)
        windows = x.shape[0] * self.window_rows * self.window_columns
        return tokens.unflatten(0, (windows, self.window_size**2))

    def join(self, windows: Tensor) -> Tensor:
        """Join windows [B * windows, s*s, C] to tokens [B, N, C]."""
        side = self.window_size
        token = torch.arange(self.grid[0] * self.grid[1], device=windows.device)
        map_row = token // self.grid[1]
        map_column = token - map_row * self.grid[1]
        row = _rolled(map_row - self.shift_rows, self.window_rows * side)
        column = _rolled(map_column - self.shift_columns, self.window_columns * side)
        window = row // side * self.window_columns + column // side
        inside = row % side * side + column % side
        places = self.window_rows * self.window_columns * side**2
        tokens = windows.flatten(0, 1).unflatten(0, (self.batch, places))
        return tokens.index_select(1, window * side**2 + inside)


def _unrolled(position: Tensor, side: int) -> Tensor:
    """Bring positions beyond the end of a side back to its start."""
    return torch.where(position < side, position, position - side)


def _rolled(position: Tensor, side: int) -> Tensor:
    """Bring positions before the start of a side to its end."""
    return torch.where(position < 0, position + side, position)


class CompiledWindows(Windows):
    """The windows for torch.compile: mask, cut and join are operators that it does not look into.

    Otherwise it fuses the arithmetic of symbolic sizes into its kernels, which takes minutes and
    fails for some models (torch 2.11).
    """

    def __init__(self, x: Tensor, grid: Grid, window_size: int, shift: int) -> None:
        self.shift = shift
        super().__init__(x, grid, window_size, shift)

    def cut(self, x: Tensor) -> Tensor:
        """Cut tokens [B, N, C] into windows [B * windows, s*s, C]."""
        rows, columns = self.grid
        return cut_operator(x, rows, columns, self.window_size, self.shift)

    def join(self, windows: Tensor) -> Tensor:
        """Join windows [B * windows, s*s, C] to tokens [B, N, C]."""
        rows, columns = self.grid
        return join_operator(windows, rows, columns, self.window_size, self.shift, self.batch)

    def make_mask(self, x: Tensor) -> Tensor:
        """Compute the mask of `Windows`, never None."""
        rows, columns = self.grid
        constant = x.detach()  # the mask has no gradient, and its operator no backward pass
        return mask_operator(constant, rows, columns, self.window_size, self.shift)


def _eager_windows(x: Tensor, batch: int, grid: Grid, window_size: int, shift: int) -> Windows:
    """Return the windows that the operators use when they run, if possible from the cache."""
    key = cache_key(x)
    if key is None:
        return IndexedWindows(x.new_empty(batch, 0, 0), grid, window_size, shift)
    return cached_windows(key, batch, grid, window_size, shift, x.dtype)


@torch.library.custom_op('mmpola::window_mask', mutates_args=())
def mask_operator(x: Tensor, rows: int, columns: int, window_size: int, shift: int) -> Tensor:
    """Return the mask of `Windows` for the tokens x [B, N, C], in x's dtype."""
    windows = _eager_windows(x, x.shape[0], (rows, columns), window_size, shift)
    if windows.mask is not None:
        return windows.mask.clone()  # a compiled program may overwrite the result of an operator
    tokens = window_size**2
    number = x.shape[0] * windows.window_rows * windows.window_columns
    return x.new_zeros(number, 1, tokens, tokens)


@torch.library.custom_op('mmpola::cut_windows', mutates_args=())
def cut_operator(x: Tensor, rows: int, columns: int, window_size: int, shift: int) -> Tensor:
    """Compute `Windows.cut`."""
    windows = _eager_windows(x, x.shape[0], (rows, columns), window_size, shift)
    return windows.cut(x)


@torch.library.custom_op('mmpola::join_windows', mutates_args=())
def join_operator(
    windows: Tensor, rows: int, columns: int, window_size: int, shift: int, batch: int
) -> Tensor:
    """Compute `Windows.join`."""
    eager = _eager_windows(windows, batch, (rows, columns), window_size, shift)
    return eager.join(windows)


@mask_operator.register_fake
def _(x: Tensor, rows: int, columns: int, window_size: int, shift: int) -> Tensor:
    window_rows, window_columns = covering_grid((rows, columns), window_size)
    tokens = window_size**2
    return x.new_empty(x.shape[0] * window_rows * window_columns, 1, tokens, tokens)


@cut_operator.register_fake
def _(x: Tensor, rows: int, columns: int, window_size: int, shift: int) -> Tensor:
    window_rows, window_columns = covering_grid((rows, columns), window_size)
    return x.new_empty(x.shape[0] * window_rows * window_columns, window_size**2, x.shape[2])


@join_operator.register_fake
def _(windows: Tensor, rows: int, columns: int, window_size: int, shift: int, batch: int) -> Tensor:
    return windows.new_empty(batch, rows * columns, windows.shape[2])


def _save_cut_sizes(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, ctx.rows, ctx.columns, ctx.window_size, ctx.shift = inputs
    ctx.batch = x.shape[0]


def _cut_gradient(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    dx = join_operator(grad, ctx.rows, ctx.columns, ctx.window_size, ctx.shift, ctx.batch)
    return dx, None, None, None, None


def _save_join_sizes(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, ctx.rows, ctx.columns, ctx.window_size, ctx.shift, _ = inputs


def _join_gradient(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    d_windows = cut_operator(grad, ctx.rows, ctx.columns, ctx.window_size, ctx.shift)
    return d_windows, None, None, None, None, None


cut_operator.register_autograd(_cut_gradient, setup_context=_save_cut_sizes)
join_operator.register_autograd(_join_gradient, setup_context=_save_join_sizes)
