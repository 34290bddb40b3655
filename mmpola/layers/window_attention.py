"""Swin's softmax attention in shifted windows (the `S` stages of Pola-Swin), on maps of any size."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from einops import rearrange
from timm.layers import gen_relative_position_index
from torch import Tensor, nn

from mmpola.layers.position import Grid
from mmpola.layers.windows import cut_windows, join_windows
from mmpola.ops.numerics import is_exported


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
        """x [B, N, C] on the token grid (h, w) and mask [B * windows, s*s, s*s] of `window_mask` -> [B, N, C]."""
        windows = cut_windows(x, grid, self.window_size, self.shift)
        q, k, v = rearrange(self.qkv(windows), 'b n (three h d) -> three b h n d', three=3, h=self.num_heads)
        bias = self._position_bias(q.dtype)
        if mask is not None:
            bias = bias.masked_fill(~mask.unsqueeze(1), float('-inf'))
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=bias).transpose(1, 2)
        if is_exported():  # the exporter may replace the attention by one with other strides, after recording views
            attended = attended.clone(memory_format=torch.contiguous_format)
        windows = self.proj(attended.flatten(2))
        return self.drop(join_windows(windows, grid, self.window_size, self.shift, x.shape[0]))

    def _position_bias(self, dtype: torch.dtype) -> Tensor:
        """Look up the position biases [1, H, s*s, s*s] of all token pairs of a window."""
        tokens = self.window_size**2
        bias = self.relative_position_bias_table[self.relative_position_index.flatten()]
        return bias.to(dtype).unflatten(0, (tokens, tokens)).permute(2, 0, 1).unsqueeze(0)
