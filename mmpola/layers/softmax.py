"""Softmax attention of the `S` stages: over all tokens, or in Swin's shifted windows."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from timm.layers import gen_relative_position_index
from torch import Tensor, nn

from mmpola.layers.initial_weights import draw_layer, draw_table
from mmpola.layers.patches import reduce_tokens
from mmpola.layers.positions import Grid, rotate_queries_and_keys
from mmpola.layers.traced_windows import CompiledWindows, ExportedWindows
from mmpola.layers.windows import Windows, cached_windows
from mmpola.ops import mix_and_gate
from mmpola.ops.backends import check_backend_name
from mmpola.ops.numerics import autocast_dtype
from mmpola.ops.tracing import is_compiled, is_exported, may_cache, stream_of


class SpatialReductionAttention(nn.Module):
    """Multi-head softmax attention to keys and values of a reduced map (PVT, sec. 3.3).

    Args:
        dim: channels C.
        num_heads: heads H.
        sr_ratio: stride of the convolution before the keys and values; 1 for none.
        qkv_bias: bias of the projections to q, k and v.
        proj_drop: dropout rate after the output projection.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        sr_ratio: int = 1,
        qkv_bias: bool = True,
        proj_drop: float = 0.0,
    ) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.sr_ratio = sr_ratio
        self.q = nn.Linear(dim, dim, bias=qkv_bias)
        self.kv = nn.Linear(dim, 2 * dim, bias=qkv_bias)
        self.proj = nn.Linear(dim, dim)
        self.proj_drop = nn.Dropout(proj_drop)
        if sr_ratio > 1:
            self.sr = nn.Conv2d(dim, dim, kernel_size=sr_ratio, stride=sr_ratio)
            self.norm = nn.LayerNorm(dim)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the projections as the authors do; the convolution keeps PyTorch's weights."""
        draw_layer(self.q)
        draw_layer(self.kv)
        draw_layer(self.proj)

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        """x [B, N, C] on the token grid (h, w), N = h * w -> [B, N, C]."""
        q = self.q(x)
        if self.sr_ratio > 1:
            x, _ = reduce_tokens(x, grid, self.sr, self.norm)
        k, v = self.kv(x).chunk(2, dim=-1)
        q = q.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)  # [B, H, N, D]
        k = k.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)  # [B, H, M, D]
        v = v.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
        attended = F.scaled_dot_product_attention(q, k, v)
        return self.proj_drop(self.proj(attended.transpose(1, 2).flatten(2)))


class RotarySoftmaxAttention(nn.Module):
    """PolaFormer++'s multi-head softmax attention with rotary positions, LePE and gate.

    Args:
        dim: channels C.
        num_heads: heads H; D = C / H is a multiple of 4.
        proj_drop: dropout rate after the output projection.
        backend: backend of `mmpola.ops.mix_and_gate`: 'auto', 'triton' or 'torch'.

    Raises:
        ValueError: `backend` is not the name of a backend.
    """

    def __init__(
        self, dim: int, num_heads: int, *, proj_drop: float = 0.0, backend: str = 'auto'
    ) -> None:
        check_backend_name(backend)
        super().__init__()
        self.num_heads = num_heads
        self.backend = backend
        self.qkvo = nn.Linear(dim, 4 * dim)
        self.lepe = nn.Conv2d(dim, dim, 5, padding=2, groups=dim)
        self.proj = nn.Linear(dim, dim)
        self.proj_drop = nn.Dropout(proj_drop)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the convolution as the authors do; linear layers keep PyTorch's weights."""
        draw_layer(self.lepe)

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        """x [B, N, C] on the token grid (h, w), N = h * w -> [B, N, C]."""
        channels = x.shape[-1]
        qk, v, gate = self.qkvo(x).split([2 * channels, channels, channels], dim=-1)
        q, k = rotate_queries_and_keys(qk.unflatten(-1, (2 * self.num_heads, -1)), grid)
        v = v.unflatten(-1, (self.num_heads, -1))  # [B, N, H, D]
        attended = F.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        )
        attended = attended.transpose(1, 2)
        weight = self.lepe.weight
        bias = self.lepe.bias
        mixed = mix_and_gate(attended, v, gate, weight, bias, grid, backend=self.backend)
        return self.proj_drop(self.proj(mixed))


class WindowAttention(nn.Module):
    """Multi-head softmax attention in shifted windows with position biases (Swin, sec. 3.2).

    Parameter names are those of the released Swin weights. timm's Swin, unlike this layer, lets
    tokens of a map that the window does not divide attend to the padding.

    Args:
        dim: channels C.
        num_heads: heads H.
        window_size: side s of a window, in tokens.
        shift: cyclic shift of the map in tokens: 0, or s // 2 in every second block.
        qkv_bias: bias of the projection to q, k and v.
        proj_drop: dropout rate after the output projection.
    """

    relative_position_index: Tensor

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
        # [s*s, s*s]: the row of the bias table for each pair of tokens
        index = gen_relative_position_index((window_size, window_size))
        self.register_buffer('relative_position_index', index, persistent=False)
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
        bias = self.relative_position_bias_table[self.relative_position_index.flatten()]
        bias = bias.to(q.dtype).unflatten(0, (tokens, tokens))
        bias = bias.permute(2, 0, 1).unsqueeze(0)  # [1, H, s*s, s*s]
        if windows.mask is not None:
            bias = bias + windows.mask.to(q.dtype)
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=bias).transpose(1, 2)
        if isinstance(windows, ExportedWindows):
            # The exporter may replace the attention by one with other strides after recording views
            attended = attended.clone(memory_format=torch.contiguous_format)
        out = self.proj(attended.flatten(2))
        return self.proj_drop(windows.join(out))


def find_windows(x: Tensor, grid: Grid, window_size: int, shift: int) -> Windows:
    """Return the windows of a map, in the variant for an exporter, a compiler or eager PyTorch.

    Args:
        x: the tokens [B, N, C].
        grid: (h, w) of the map, N = h * w.
        window_size: side s of a window, in tokens.
        shift: cyclic shift in tokens, see `WindowAttention`.
    """
    if is_exported():
        return ExportedWindows(x, grid, window_size, shift)
    if is_compiled():
        return CompiledWindows(x, grid, window_size, shift)
    if may_cache(x):
        dtype = autocast_dtype(x)
        return cached_windows(stream_of(x), x.shape[0], grid, window_size, shift, x.device, dtype)
    return Windows(x, grid, window_size, shift)
