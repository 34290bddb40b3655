"""Softmax attention in shifted windows, as Swin's (the softmax stages of Pola-Swin), on maps of any size."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from mmpola.layers.position import Grid


def effective_shift(grid: Grid, window_size: int, shift: int) -> Grid:
    """The (row, column) shift: none along a side that fits into one window, where it would only cut tokens apart."""
    rows, columns = (shift if side > window_size else 0 for side in grid)
    return rows, columns


def window_mask(grid: Grid, window_size: int, shift: int, device: torch.device) -> Tensor | None:
    """Which token pairs of each window may see each other: [windows, s*s, s*s] bool; None if all may.

    Two tokens may if they are neighbours in the map, not brought together by the cyclic shift, and if both or neither
    are padding: real tokens never read padding.
    """
    shifts = effective_shift(grid, window_size, shift)
    if not any(shifts) and not any(side % window_size for side in grid):
        return None
    labels = []
    for side, side_shift in zip(grid, shifts, strict=True):
        position = torch.arange(-(-side // window_size) * window_size, device=device)
        wrapped = position >= len(position) - side_shift
        label = torch.where(position.roll(-side_shift) >= side, 2, wrapped.long())
        labels.append(label.unflatten(0, (-1, window_size)))  # [windows along the side, s]
    rows, columns = labels
    region = 3 * rows[:, None, :, None] + columns[None, :, None, :]  # [wh, ww, s, s]
    padded = (rows == 2)[:, None, :, None] | (columns == 2)[None, :, None, :]
    region = region.masked_fill(padded, 9).flatten(2).flatten(0, 1)
    return region.unsqueeze(1) == region.unsqueeze(2)


class WindowAttention(nn.Module):
    """Multi-head softmax attention in (shifted) windows with relative position biases (Swin, ICCV 2021, sec. 3.2).

    Args:
        dim: channels C.
        num_heads: heads H.
        window_size: side s of a window, in tokens.
        shift: 0, or the cyclic shift of every other block (s // 2).
        qkv_bias: bias of the projection to q, k, v.
        drop: dropout after the output projection.
    """

    relative_position_index: Tensor

    def __init__(
        self, dim: int, num_heads: int, window_size: int, *, shift: int = 0, qkv_bias: bool = True, drop: float = 0.0
    ) -> None:
        super().__init__()
        self.num_heads, self.window_size, self.shift = num_heads, window_size, shift
        self.qkv = nn.Linear(dim, 3 * dim, bias=qkv_bias)
        self.relative_position_bias_table = nn.Parameter(torch.zeros((2 * window_size - 1) ** 2, num_heads))
        self.register_buffer('relative_position_index', _relative_position_index(window_size), persistent=False)
        self.proj = nn.Linear(dim, dim)
        self.drop = nn.Dropout(drop)

    def forward(self, x: Tensor, grid: Grid, mask: Tensor | None) -> Tensor:
        """x [B, N, C] on the token grid; mask of `window_mask` for this grid and shift -> [B, N, C]."""
        size, (rows, columns) = self.window_size, grid
        shift_rows, shift_columns = effective_shift(grid, size, self.shift)
        maps = x.unflatten(1, grid)
        if rows % size or columns % size:  # padding by nothing would copy the map, and so would rolling by nothing
            maps = F.pad(maps, (0, 0, 0, -columns % size, 0, -rows % size))
        if shift_rows or shift_columns:
            maps = maps.roll((-shift_rows, -shift_columns), dims=(1, 2))
        windows_high = maps.shape[1] // size
        windows = rearrange(maps, 'b (wh s) (ww t) c -> (b wh ww) (s t) c', s=size, t=size)
        q, k, v = rearrange(self.qkv(windows), 'b n (three h d) -> three b h n d', three=3, h=self.num_heads)
        bias = self._position_bias(q.dtype)
        if mask is not None:
            bias = bias.masked_fill(~mask.unsqueeze(1), float('-inf')).repeat(x.shape[0], 1, 1, 1)
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        windows = self.proj(rearrange(attended, 'b h n d -> b n (h d)'))
        pattern = '(b wh ww) (s t) c -> b (wh s) (ww t) c'
        maps = rearrange(windows, pattern, b=x.shape[0], wh=windows_high, s=size, t=size)
        if shift_rows or shift_columns:
            maps = maps.roll((shift_rows, shift_columns), dims=(1, 2))
        return self.drop(maps[:, :rows, :columns].flatten(1, 2))

    def _position_bias(self, dtype: torch.dtype) -> Tensor:
        """[1, H, s*s, s*s]."""
        tokens = self.window_size**2
        bias = self.relative_position_bias_table[self.relative_position_index.flatten()]
        return bias.to(dtype).unflatten(0, (tokens, tokens)).permute(2, 0, 1).unsqueeze(0)


def _relative_position_index(window_size: int) -> Tensor:
    """[s*s, s*s]: the row of the bias table for each pair of positions in a window."""
    side = torch.arange(window_size)
    rows, columns = (x.flatten() for x in torch.meshgrid(side, side, indexing='ij'))
    row_offset = rows[:, None] - rows[None, :] + window_size - 1
    return row_offset * (2 * window_size - 1) + columns[:, None] - columns[None, :] + window_size - 1
