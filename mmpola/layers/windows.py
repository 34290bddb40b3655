"""Softmax attention in shifted windows of a token map of any size (Swin, ICCV 2021, sec. 3.2).

`Windows` is the definition of cutting, masking and joining: pad the map, roll it, cut it.
`IndexedWindows` computes the same faster, by moving whole tokens with indices that are cached
between forward passes; eager PyTorch uses it. Compilers and exporters need the variants in
traced_windows.py. `find_windows` chooses between them.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from timm.layers import resize_rel_pos_bias_table_simple
from torch import Tensor, nn
from torch.autograd import Function

from mmpola.layers.initial_weights import draw_layer, draw_table
from mmpola.layers.token_maps import Grid, covering_grid, pad_to_cells
from mmpola.ops.numerics import accumulation_dtype, autocast_dtype
from mmpola.ops.tracing import CacheKey, cache_key, is_traced

CACHE_SIZE = 16
"""Combinations of grid and shift whose windows are cached: the stages of a pyramid need four."""


class WindowAttention(nn.Module):
    """Multi-head softmax attention in shifted windows with position biases (Swin, sec. 3.2).

    Parameters are named as in the released Swin weights. timm's Swin, unlike this layer, lets
    tokens of a map that the window does not divide attend to the padding.

    Args:
        dim: channels C.
        num_heads: heads H.
        window_size: side s of a window, in tokens.
        shift: cyclic shift of the map in tokens: 0, or s // 2 in every second block.
        qkv_bias: bias of the projection to q, k and v.
        proj_drop: dropout rate after the output projection.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        window_size: int,
        *,
        shift: int = 0,
        qkv_bias: bool = True,
        proj_drop: float = 0.0,
    ) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.window_size = window_size
        self.shift = shift
        self.qkv = nn.Linear(dim, 3 * dim, bias=qkv_bias)
        self.relative_position_bias_table = nn.Parameter(
            torch.empty((2 * window_size - 1) ** 2, num_heads)
        )
        self.proj = nn.Linear(dim, dim)
        self.proj_drop = nn.Dropout(proj_drop)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the projections and the table of biases as Swin and the authors do."""
        draw_layer(self.qkv)
        draw_table(self.relative_position_bias_table)
        draw_layer(self.proj)

    def forward(self, x: Tensor, windows: Windows) -> Tensor:
        """x [B, N, C] and the windows of its map, see `find_windows` -> [B, N, C]."""
        x = x.to(autocast_dtype(x))  # before `cut` copies x; the projection would convert it after
        q, k, v = self.qkv(windows.cut(x)).chunk(3, dim=-1)
        q = q.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)  # [B * windows, H, s*s, D]
        k = k.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
        v = v.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
        tokens = self.window_size**2
        bias = self.relative_position_bias_table[windows.position_index.flatten()]
        bias = bias.to(q.dtype).unflatten(0, (tokens, tokens))
        bias = bias.permute(2, 0, 1).unsqueeze(0)  # [1, H, s*s, s*s]
        if windows.mask is not None:
            bias = bias + windows.mask.to(q.dtype)
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=bias).transpose(1, 2)
        if windows.is_exported:
            # The exporter may replace the attention by one with other strides after recording views
            attended = attended.clone(memory_format=torch.contiguous_format)
        out = self.proj(attended.flatten(2))
        return self.proj_drop(windows.join(out))


def relative_position_index(window_size: int, device: torch.device) -> Tensor:
    """Compute the row of Swin's bias table for each pair of tokens of a window: int64 [s*s, s*s].

    The row is (2s - 1) (row_p - row_q + s - 1) + column_p - column_q + s - 1 for the tokens p, q.
    """
    side = 2 * window_size - 1  # offsets along each side
    token = torch.arange(window_size**2, device=device)
    row = token // window_size
    column = token - row * window_size
    place = side * row + column
    largest_offset = (side + 1) * (window_size - 1)
    return place[:, None] - place + largest_offset


def find_windows(x: Tensor, grid: Grid, window_size: int, shift: int) -> Windows:
    """Return the windows of a map, in the variant for an exporter, a compiler or eager PyTorch.

    Args:
        x: the tokens [B, N, C].
        grid: (h, w) of the map, N = h * w.
        window_size: side s of a window, in tokens.
        shift: cyclic shift in tokens, see `WindowAttention`.
    """
    key = cache_key(x)
    if key is not None:
        return cached_windows(key, x.shape[0], grid, window_size, shift, autocast_dtype(x))
    if is_traced():
        from mmpola.layers.traced_windows import traced_windows  # a variant of the classes below

        return traced_windows(x, grid, window_size, shift)
    return Windows(x, grid, window_size, shift)


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
        window_rows, window_columns: number of windows in a column and in a row of the map.
        position_index: `relative_position_index` of a window.
        mask: [B * windows, 1, s*s, s*s], added to attention logits: -inf between two tokens of a
            window if only the shift brought them together, or if exactly one of them is padding,
            else 0. None if every entry is 0; never None for compilers and exporters, because that
            decision would fix the image size.
        is_exported: whether an exporter records the windows.
    """

    is_exported = False

    def __init__(self, x: Tensor, grid: Grid, window_size: int, shift: int) -> None:
        self.batch = x.shape[0]
        self.grid = grid
        self.window_size = window_size
        self.window_rows, self.window_columns = covering_grid(grid, window_size)
        # 0 for one window, else `shift`; an `if` would fix the image size for compilers
        self.shift_rows = shift * (1 - 1 // self.window_rows)
        self.shift_columns = shift * (1 - 1 // self.window_columns)
        self.position_index = relative_position_index(window_size, x.device)
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
        """Compute the row and column of all tokens in the padded, rolled map, window by window.

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
        token: int64 [windows * s*s], the token at each place in the windows; any token at padding.
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
    key: CacheKey,
    batch: int,
    grid: Grid,
    window_size: int,
    shift: int,
    dtype: torch.dtype,
) -> IndexedWindows:
    """Return windows from a cache; `key` is what `cache_key` returns."""
    device, _ = key
    with torch.inference_mode(False):  # else autograd could not save them later
        x = torch.empty(batch, 0, 0, device=device, dtype=dtype)
        return IndexedWindows(x, grid, window_size, shift)


def resize_bias_table(table: Tensor, window_size: int) -> Tensor:
    """Resize Swin's table of relative position biases bicubically to another window size.

    Half-precision tables are interpolated in float32 (timm would do it in their own dtype); the
    dtype is kept.

    Args:
        table: [(2s-1)^2, H] for windows of side s.
        window_size: the new s.
    """
    shape = ((2 * window_size - 1) ** 2, table.shape[1])
    wide = table.to(accumulation_dtype(table.dtype))
    resized = resize_rel_pos_bias_table_simple(wide, (window_size, window_size), shape)
    return resized.to(table.dtype).contiguous()
