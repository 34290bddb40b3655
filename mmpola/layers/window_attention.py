"""Swin's softmax attention in shifted windows (the `S` stages of Pola-Swin), on maps of any size."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from einops import rearrange
from timm.layers import gen_relative_position_index
from torch import Tensor, nn

from mmpola.layers.padding import cells, pad_to_cells
from mmpola.layers.position import Grid
from mmpola.ops.numerics import is_traced


def effective_shift(grid: Grid, window_size: int, shift: int) -> Grid:
    """Return the (row, column) shift: 0 along a side that fits into one window, where a shift would separate tokens."""
    rows, columns = (shift * torch.sym_min(1, (side - 1) // window_size) for side in grid)  # without a branch on sizes
    return rows, columns


def window_mask(grid: Grid, window_size: int, shift: int, device: torch.device) -> Tensor | None:
    """Compute which pairs of tokens in a window attend to each other: [windows, s*s, s*s] bool.

    None if all do; compilers and exporters always get a mask, since asking would fix the image size.

    Two tokens do not if only the cyclic shift brought them into the same window, or if exactly one of them is padding.
    Real tokens therefore never read padding.

    Args:
        grid: (h, w) of the token map before padding.
        window_size: side s of a window, in tokens.
        shift: cyclic shift in tokens, see `WindowAttention`.
        device: device of the mask.
    """
    shifts = effective_shift(grid, window_size, shift)
    if not is_traced() and not any(shifts) and not any(side % window_size for side in grid):
        return None
    labels = []
    for side, windows, side_shift in zip(grid, cells(grid, window_size), shifts, strict=True):
        length = windows * window_size
        position = torch.arange(length, device=device)
        wrapped = position >= length - side_shift  # brought here from the other end by the shift
        padded = (position + side_shift) % length >= side
        label = torch.where(padded, 2, wrapped.long())
        labels.append(label.unflatten(0, (-1, window_size)))  # [windows along the side, s]
    rows, columns = labels
    region = 3 * rows[:, None, :, None] + columns[None, :, None, :]  # [wh, ww, s, s]
    padding = (rows == 2)[:, None, :, None] | (columns == 2)[None, :, None, :]
    region = region.masked_fill(padding, 9).flatten(2).flatten(0, 1)  # all padding is one region, numbered 9
    return region.unsqueeze(1) == region.unsqueeze(2)


class WindowAttention(nn.Module):
    """Multi-head softmax attention in (shifted) windows with relative position biases (Swin, ICCV 2021, sec. 3.2).

    Parameter names are those of the released Swin weights. timm's Swin, unlike this layer, lets tokens of a map that
    the window does not divide attend to the padding.

    Args:
        dim: channels C.
        num_heads: heads H.
        window_size: side s of a window, in tokens.
        shift: cyclic shift of the map in tokens: 0, or s // 2 in every second block.
        qkv_bias: bias of the projection to q, k and v.
        drop: dropout rate after the output projection.
    """

    relative_position_index: Tensor

    def __init__(
        self, dim: int, num_heads: int, window_size: int, *, shift: int = 0, qkv_bias: bool = True, drop: float = 0.0
    ) -> None:
        super().__init__()
        self.num_heads, self.window_size, self.shift = num_heads, window_size, shift
        self.qkv = nn.Linear(dim, 3 * dim, bias=qkv_bias)
        self.relative_position_bias_table = nn.Parameter(torch.zeros((2 * window_size - 1) ** 2, num_heads))
        index = gen_relative_position_index((window_size, window_size))  # [s*s, s*s], rows of the bias table
        self.register_buffer('relative_position_index', index, persistent=False)
        self.proj = nn.Linear(dim, dim)
        self.drop = nn.Dropout(drop)

    def forward(self, x: Tensor, grid: Grid, mask: Tensor | None) -> Tensor:
        """x [B, N, C] on the token grid (h, w), mask = window_mask(grid, window_size, shift, device) -> [B, N, C]."""
        size, (rows, columns), (high, wide) = self.window_size, grid, cells(grid, self.window_size)
        shift_rows, shift_columns = effective_shift(grid, size, self.shift)
        is_shifted = is_traced() or shift_rows or shift_columns  # rolling by 0 would copy the map
        maps = pad_to_cells(x.unflatten(1, grid), grid, size, channels_last=True)
        if is_shifted:
            maps = maps.roll((-shift_rows, -shift_columns), dims=(1, 2))
        windows = rearrange(maps, 'b (wh s) (ww t) c -> (b wh ww) (s t) c', s=size, t=size)
        q, k, v = rearrange(self.qkv(windows), 'b n (three h d) -> three b h n d', three=3, h=self.num_heads)
        bias = self._position_bias(q.dtype)
        if mask is not None:
            bias = bias.masked_fill(~mask.unsqueeze(1), float('-inf')).repeat(x.shape[0], 1, 1, 1)
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        windows = self.proj(rearrange(attended, 'b h n d -> b n (h d)'))
        pattern = '(b wh ww) (s t) c -> b (wh s) (ww t) c'
        maps = rearrange(windows, pattern, b=x.shape[0], wh=high, ww=wide, s=size, t=size)
        if is_shifted:
            maps = maps.roll((shift_rows, shift_columns), dims=(1, 2))
        return self.drop(maps[:, :rows, :columns].flatten(1, 2))

    def _position_bias(self, dtype: torch.dtype) -> Tensor:
        """Look up the position biases [1, H, s*s, s*s] of all token pairs of a window."""
        tokens = self.window_size**2
        bias = self.relative_position_bias_table[self.relative_position_index.flatten()]
        return bias.to(dtype).unflatten(0, (tokens, tokens)).permute(2, 0, 1).unsqueeze(0)
