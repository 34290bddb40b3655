"""Shifted windows of a token map of any size (Swin, ICCV 2021, sec. 3.2): cut, mask and join.

`Windows` is the definition: pad the map, roll it, cut it. `IndexedWindows` computes the same
faster, by moving whole tokens with indices that are cached between forward passes; eager PyTorch
uses it. Compilers and exporters need the variants in traced_windows.py. `find_windows` in
softmax.py chooses between them.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from einops import rearrange
from torch import Tensor
from torch.autograd import Function

from mmpola.layers.patches import covering_grid, pad_to_cells
from mmpola.layers.positions import Grid
from mmpola.ops.tracing import is_traced

CACHE_SIZE = 16
"""Combinations of grid and shift whose windows are cached: the stages of a pyramid need four."""


class Windows:
    """The windows of side s that cover a token map, after a cyclic shift.

    The map is padded to a multiple of s. A side that fits into one window is not shifted: a shift
    would only separate its tokens.

    Args:
        x: tokens [B, N, C]; only B, device and dtype are read, so N and C may be 0.
        grid: (h, w) of the map before padding, in tokens.
        window_size: s.
        shift: cyclic shift in tokens, 0 or s // 2.

    Attributes:
        window_rows, window_columns: number of windows below and beside each other.
        mask: [B * windows, 1, s*s, s*s], added to attention logits: -inf between two tokens of a
            window if only the shift brought them together, or if exactly one of them is padding,
            else 0. None if every entry is 0; never None for compilers and exporters, because that
            decision would fix the image size.
    """

    def __init__(self, x: Tensor, grid: Grid, window_size: int, shift: int) -> None:
        self.batch = x.shape[0]
        self.grid = grid
        self.window_size = window_size
        self.window_rows, self.window_columns = covering_grid(grid, window_size)
        # 0 for one window, else `shift`; an `if` would fix the image size for compilers
        self.shift_rows = shift * (1 - 1 // self.window_rows)
        self.shift_columns = shift * (1 - 1 // self.window_columns)
        self.mask = self.make_mask(x)

    def cut(self, x: Tensor) -> Tensor:
        """Cut tokens [B, N, C] on `grid` into windows [B * windows, s*s, C]; padding is 0."""
        maps = x.unflatten(1, self.grid)
        maps = pad_to_cells(maps, self.grid, self.window_size, channels_last=True)
        maps = maps.roll((-self.shift_rows, -self.shift_columns), dims=(1, 2))
        side = self.window_size
        return rearrange(maps, 'b (wh s) (ww t) c -> (b wh ww) (s t) c', s=side, t=side)

    def join(self, windows: Tensor) -> Tensor:
        """Join windows [B * windows, s*s, C] to tokens [B, N, C]: the inverse of `cut`."""
        maps = rearrange(
            windows,
            '(b wh ww) (s t) c -> b (wh s) (ww t) c',
            b=self.batch,
            wh=self.window_rows,
            ww=self.window_columns,
            s=self.window_size,
            t=self.window_size,
        )
        maps = maps.roll((self.shift_rows, self.shift_columns), dims=(1, 2))
        return maps[:, : self.grid[0], : self.grid[1]].flatten(1, 2)

    def make_mask(self, x: Tensor) -> Tensor | None:
        """Compute the attribute `mask`."""
        padded_rows = self.window_rows * self.window_size
        padded_columns = self.window_columns * self.window_size
        if not is_traced():
            shifted = self.shift_rows > 0 or self.shift_columns > 0
            if not shifted and self.grid == (padded_rows, padded_columns):
                return None
        rows, columns = self.positions(x.device)
        row_region = _region(rows, self.grid[0], padded_rows, self.shift_rows)
        column_region = _region(columns, self.grid[1], padded_columns, self.shift_columns)
        is_padding = (row_region == PADDING_REGION) | (column_region == PADDING_REGION)
        region = (3 * row_region + column_region).masked_fill(is_padding, 9)  # 0 ... 8 are in use
        region = region.repeat(self.batch)
        windows = self.batch * self.window_rows * self.window_columns
        region = region.view(windows, 1, self.window_size**2)
        is_hidden = region.unsqueeze(2) != region.unsqueeze(3)
        zeros = torch.zeros(is_hidden.shape, device=x.device, dtype=x.dtype)
        return zeros.masked_fill(is_hidden, float('-inf'))

    def positions(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Compute row and column, in the padded and rolled map, of all tokens, window by window.

        Returns:
            Two int64 tensors [windows * s*s].
        """
        tokens_per_window = self.window_size**2
        tokens = self.window_rows * self.window_columns * tokens_per_window
        index = torch.arange(tokens, device=device)
        window = index // tokens_per_window
        inside = index % tokens_per_window
        window_row = window // self.window_columns
        # Not `%`: ONNX has no remainder for a divisor that depends on the image size
        window_column = window - window_row * self.window_columns
        rows = window_row * self.window_size + inside // self.window_size
        columns = window_column * self.window_size + inside % self.window_size
        return rows, columns


PADDING_REGION = 2
"""The number that `_region` gives to padding."""


def _region(position: Tensor, side: int, padded_side: int, shift: int) -> Tensor:
    """Number the parts of a rolled side: 0 in place, 1 from its other end, PADDING_REGION."""
    is_wrapped = position >= padded_side - shift
    is_padding = (position + shift >= side) & ~is_wrapped
    return torch.where(is_padding, PADDING_REGION, is_wrapped.long())


class IndexedWindows(Windows):
    """The same windows, cut and joined by the indices of whole tokens.

    Each way is one pass over memory, and its gradient is the other way: padding is 0 in the windows
    and dropped when they are joined.

    Attributes:
        token: int64 [windows * s*s], the token at each place in the windows; at padding any token.
        place: int64 [N], the place of each token.
        padding: int64, the places of padding.
    """

    def __init__(self, x: Tensor, grid: Grid, window_size: int, shift: int) -> None:
        super().__init__(x, grid, window_size, shift)
        tokens = grid[0] * grid[1]
        numbers = torch.arange(1, tokens + 1, device=x.device).view(1, tokens, 1)
        number_at_place = super().cut(numbers).flatten()  # 0 where there is padding
        padded = len(number_at_place) - tokens
        order = number_at_place.argsort()  # padding first, then the tokens in their order
        self.token = (number_at_place - 1).clamp_min(0)
        self.place = order[padded:]
        self.padding = order[:padded]

    def cut(self, x: Tensor) -> Tensor:
        """Cut tokens [B, N, C] into windows [B * windows, s*s, C]; never a view of x."""
        return _CutByIndex.apply(x, self)

    def join(self, windows: Tensor) -> Tensor:
        """Join windows [B * windows, s*s, C] to tokens [B, N, C]; never a view of the windows."""
        return _JoinByIndex.apply(windows, self)


class _CutByIndex(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, windows: IndexedWindows) -> Tensor:
        ctx.windows = windows
        tokens = x.index_select(1, windows.token)
        if len(windows.padding):
            tokens.index_fill_(1, windows.padding, 0)
        return tokens.view(-1, windows.window_size**2, x.shape[2])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _JoinByIndex.apply(grad, ctx.windows), None


class _JoinByIndex(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, windows: IndexedWindows) -> Tensor:
        ctx.windows = windows
        tokens = x.reshape(-1, len(windows.token), x.shape[2])
        return tokens.index_select(1, windows.place)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _CutByIndex.apply(grad, ctx.windows), None


@lru_cache(maxsize=CACHE_SIZE)
def cached_windows(
    stream: torch.cuda.Stream | None,
    batch: int,
    grid: Grid,
    window_size: int,
    shift: int,
    device: torch.device,
    dtype: torch.dtype,
) -> IndexedWindows:
    """Return windows from a cache; `stream` is what `stream_of` returns."""
    with torch.inference_mode(False):  # else autograd could not save them later
        x = torch.empty(batch, 0, 0, device=device, dtype=dtype)
        return IndexedWindows(x, grid, window_size, shift)
