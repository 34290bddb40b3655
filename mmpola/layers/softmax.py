"""Softmax attention over all tokens: the `S` stages of Pola-PVT and PolaFormer++.

PolaFormer++'s has rotary positions; the rotation of its queries and keys follows below.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function

from mmpola.layers.attention import MixAndGate
from mmpola.layers.initial_weights import draw_layer
from mmpola.layers.rotary import rotary_tables
from mmpola.layers.token_maps import Grid, reduce_tokens
from mmpola.ops.api import check_backend_name
from mmpola.ops.numerics import accumulation_dtype
from mmpola.ops.reference import rotate, rotate_by_complex
from mmpola.ops.tracing import CacheKey, cache_key, is_recorded


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


def rotate_queries_and_keys(qk: Tensor, grid: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Rotate the interleaved channel pairs of queries and keys by the angles of `rotary_tables`.

    Half-precision inputs are rotated in float32. Rotating them in half precision would save less
    than 2 percent of a training step's memory traffic, and make the error of the attended values
    1.4 times as large.

    Args:
        qk: [B, N, 2 * H, D], the heads of the queries before the heads of the keys.
        grid: (h, w) with h * w = N.

    Returns:
        q and k, each [B, N, H, D], in the dtype of `qk`.
    """
    dtype = accumulation_dtype(qk.dtype)
    channels = qk.shape[-1]
    key = cache_key(qk)
    if key is not None:
        rotation, inverse = _cached_complex_rotations(key, tuple(grid), channels, dtype)
    elif is_recorded():  # compilers and exporters support no complex numbers
        rotary = rotary_tables(grid, channels, qk.device, dtype)
        rotated = rotate(qk.transpose(1, 2), rotary).to(qk.dtype).transpose(1, 2)
        q, k = rotated.chunk(2, dim=2)
        return q, k
    else:
        rotation, inverse = _complex_rotations(grid, channels, qk.device, dtype)
    return _RotateQueriesAndKeys.apply(qk, rotation, inverse)


def _complex_rotations(
    grid: Sequence[int], channels: int, device: torch.device, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Compute exp(i angle) and exp(-i angle) of all tokens and pairs, each [N, 1, channels / 2]."""
    cos, sin = rotary_tables(grid, channels, device, dtype)
    cos = cos[:, None, ::2].contiguous()
    sin = sin[:, None, ::2].contiguous()
    return torch.complex(cos, sin), torch.complex(cos, -sin)


@lru_cache(maxsize=8)
def _cached_complex_rotations(
    key: CacheKey, grid: tuple[int, ...], channels: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Compute `_complex_rotations`; `key` is what `cache_key` returns."""
    device, _ = key
    with torch.inference_mode(False):  # else autograd could not save them later
        return _complex_rotations(grid, channels, device, dtype)


class _RotateQueriesAndKeys(Function):
    """One complex product per pass; recorded by autograd, the rotation would launch six kernels."""

    @staticmethod
    def forward(ctx: Any, qk: Tensor, rotation: Tensor, inverse: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(inverse)
        rotated = rotate_by_complex(qk.to(rotation.real.dtype), rotation).to(qk.dtype)
        q, k = rotated.chunk(2, dim=2)
        return q, k

    @staticmethod
    def backward(ctx: Any, dq: Tensor, dk: Tensor) -> tuple[Tensor, None, None]:
        (inverse,) = ctx.saved_tensors
        batch, tokens, heads, dim = dq.shape
        dtype = inverse.real.dtype
        grad = torch.empty(batch, tokens, 2 * heads, dim, device=dq.device, dtype=dtype)
        grad[:, :, :heads] = dq
        grad[:, :, heads:] = dk
        return rotate_by_complex(grad, inverse).to(dq.dtype), None, None
