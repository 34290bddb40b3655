"""PolaFormer++'s linear attention: exponential features of learned temperature, rotary positions, LePE, gate."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mmpola.layers.polarity_attention import PolarityAttention
from mmpola.layers.position import Grid
from mmpola.ops import ExpMap
from mmpola.ops.numerics import accumulation_dtype


class SpikyAttention(PolarityAttention):
    """PolaFormer++'s linear attention over all tokens, with a learned temperature per channel (E9, E10).

    Source: PolaFormer++. Parameter names are those of the released weights.

    Args:
        dim: channels C.
        num_heads: heads H; D = C / H is even.
        drop: dropout rate after the output projection.
        backend: see `PolarityAttention`.
    """

    def __init__(self, dim: int, num_heads: int, *, drop: float = 0.0, backend: str = 'auto') -> None:
        super().__init__(num_heads, backend)
        self.rotary_channels = 2 * dim // num_heads  # 2D features: two signs per channel
        self.s1 = nn.Parameter(torch.zeros(1, num_heads, 1, self.rotary_channels))
        self.s2 = nn.Parameter(torch.zeros(1, num_heads, 1, self.rotary_channels))
        self.qkvg = nn.Linear(dim, 4 * dim)
        self.lepe = nn.Conv2d(dim, dim, 5, padding=2, groups=dim)
        self.proj = nn.Linear(dim, dim)
        self.drop = nn.Dropout(drop)

    @staticmethod
    def rotary_dtype(dtype: torch.dtype) -> torch.dtype:
        """Return the dtype of the rotary tables for tokens of `dtype`: float16 for half precision.

        In float32 they would be most of what the kernels read, and float16 is as accurate as the kernels' products.
        """
        return torch.float16 if dtype.itemsize == 2 else dtype

    def feature_map(self) -> ExpMap:
        """Return sigmoid(s1) and sigmoid(s2) (E9), each [H, 2D] in the accumulation dtype."""
        dtype = accumulation_dtype(self.s1.dtype)
        same, opposite = (s[0, :, 0].to(dtype).sigmoid() for s in (self.s1, self.s2))
        return ExpMap(same, opposite)

    def forward(self, x: Tensor, grid: Grid, rotary: tuple[Tensor, Tensor]) -> Tensor:
        """x [B, N, C] on the token grid (h, w), N = h * w; rotary (cos, sin), each [N, 2D] -> [B, N, C]."""
        q, k, v, gate = self.qkvg(x).chunk(4, dim=-1)
        q, k, v = (self.split_heads(t) for t in (q, k, v))
        attended = self.run_attention(q, k, v, rotary=rotary)
        mixed = self.run_mix_and_gate(attended, v, gate, self.lepe, grid)
        return self.drop(self.proj(mixed))
