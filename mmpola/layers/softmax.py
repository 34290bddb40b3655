"""Softmax attention over all tokens: the `S` stages of Pola-PVT and PolaFormer++."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from mmpola.layers.attention import MixAndGate
from mmpola.layers.initial_weights import draw_layer
from mmpola.layers.rotary import rotate_queries_and_keys
from mmpola.layers.token_maps import Grid, reduce_tokens
from mmpola.ops.api import check_backend_name


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
        self.lepe = MixAndGate(dim, 5)
        self.proj = nn.Linear(dim, dim)
        self.proj_drop = nn.Dropout(proj_drop)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the convolution as the authors do; linear layers keep PyTorch's weights."""
        draw_layer(self.lepe)

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        """x [B, N, C] on the token grid (h, w), N = h * w -> [B, N, C].

        Raises:
            ValueError: `grid` does not fit.
        """
        _, tokens, channels = x.shape
        if grid[0] * grid[1] != tokens:
            raise ValueError(f'grid: expected (h, w) with h * w = N = {tokens}, got {grid}')
        qk, v, gate = self.qkvo(x).split([2 * channels, channels, channels], dim=-1)
        q, k = rotate_queries_and_keys(qk.unflatten(-1, (2 * self.num_heads, -1)), grid)
        v = v.unflatten(-1, (self.num_heads, -1))  # [B, N, H, D]
        attended = F.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        )
        attended = attended.transpose(1, 2)
        # y = (o + DWC(v)) * g (E14)
        mixed = self.lepe(attended, v, gate, grid, self.backend)
        return self.proj_drop(self.proj(mixed))
