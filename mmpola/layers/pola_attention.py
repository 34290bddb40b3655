"""PolaFormer's attention block: projections, the operator, the local mixing of values and the gate (E4-E8, E14)."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmpola.layers.position import Grid, resize_table
from mmpola.layers.spatial_reduction import reduce_tokens, reduced_grid, spread_tokens
from mmpola.ops import PowerMap, mix_and_gate, polarity_attention
from mmpola.ops.backends import check_backend_name
from mmpola.ops.numerics import accumulation_dtype


class PolaAttention(nn.Module):
    """Linear attention over the whole token map with learned powers, a key position table, DWC and gate (E4-E8, E14).

    Source: PolaFormer (ICLR 2025), eq. 3-9. Parameter names are those of the released Pola-Swin weights. A subclass
    may project in another way: `add_projections` creates the layers, `project` uses them.

    Args:
        dim: channels C.
        num_heads: heads H; C / H even.
        grid: (h, w) that the key position table is learned on; resized bilinearly to any other.
        alpha: exponents lie in (1, 1 + alpha) (E5).
        kernel_size: of the depth-wise convolution, odd.
        qkv_bias: bias of the projections to q, k, v and the gate.
        drop: dropout after the output projection.
        backend: of `mmpola.ops.polarity_attention` and `mix_and_gate`.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        grid: Grid,
        *,
        alpha: float = 4,
        kernel_size: int = 5,
        qkv_bias: bool = True,
        drop: float = 0.0,
        backend: str = 'auto',
    ) -> None:
        check_backend_name(backend)
        super().__init__()
        head_dim = dim // num_heads
        self.num_heads, self.grid, self.alpha, self.backend = num_heads, grid, alpha, backend
        self.add_projections(dim, qkv_bias)
        self.power = nn.Parameter(torch.zeros(1, num_heads, 1, head_dim))
        self.scale = nn.Parameter(torch.zeros(1, 1, dim))
        self.positional_encoding = nn.Parameter(torch.zeros(1, grid[0] * grid[1], dim))
        self.dwc = nn.Conv2d(head_dim, head_dim, kernel_size, padding=kernel_size // 2, groups=head_dim)
        self.proj = nn.Linear(dim, dim)
        self.drop = nn.Dropout(drop)

    def add_projections(self, dim: int, bias: bool) -> None:
        """Create the layers of `project`."""
        self.qkvg = nn.Linear(dim, 4 * dim, bias=bias)

    def project(self, x: Tensor, grid: Grid) -> tuple[Tensor, Tensor, Tensor, Tensor, Grid]:
        """x [B, N, C] -> q [B, N, C], k and v [B, M, C], gate [B, N, C], and the grid of the M keys."""
        q, k, v, gate = self.qkvg(x).chunk(4, dim=-1)
        return q, k, v, gate, grid

    def feature_map(self) -> PowerMap:
        """p = 1 + alpha sigmoid(power) (E5), s = softplus(scale) (E4), each [H, D], in the accumulation dtype."""
        dtype = accumulation_dtype(self.power.dtype)
        power, scale = self.power[0, :, 0].to(dtype), self.scale[0, 0].to(dtype)
        return PowerMap(1 + self.alpha * power.sigmoid(), F.softplus(scale).unflatten(0, power.shape))

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        """x [B, N, C] on the token grid (h, w), N = h * w -> [B, N, C]."""
        q, k, v, gate, key_grid = self.project(x, grid)
        position = resize_table(self.positional_encoding, self.grid, key_grid)[0]
        values = spread_tokens(v, x.shape[1])
        q, k, v, values, position = (t.unflatten(-1, (self.num_heads, -1)) for t in (q, k, v, values, position))
        attended = polarity_attention(q, k, v, self.feature_map(), key_position=position, backend=self.backend)
        mixed = mix_and_gate(attended, values, gate, self.dwc.weight, self.dwc.bias, grid, backend=self.backend)
        return self.drop(self.proj(mixed))


class ReducedPolaAttention(PolaAttention):
    """PolaAttention of Pola-PVT: keys and values may come from a reduced map. Names as in the released weights.

    Args:
        grid: (h, w) of the training images' tokens; the key position table is learned on it divided by `sr_ratio`.
        sr_ratio: stride of the convolution before the keys and values; 1 for none.
        shared: see `PolaAttention`.
    """

    def __init__(self, dim: int, num_heads: int, grid: Grid, *, sr_ratio: int = 1, **shared: Any) -> None:
        super().__init__(dim, num_heads, reduced_grid(grid, sr_ratio), **shared)
        self.sr_ratio = sr_ratio
        if sr_ratio > 1:
            self.sr = nn.Conv2d(dim, dim, kernel_size=sr_ratio, stride=sr_ratio)
            self.norm = nn.LayerNorm(dim)

    def add_projections(self, dim: int, bias: bool) -> None:
        self.qg = nn.Linear(dim, 2 * dim, bias=bias)
        self.kv = nn.Linear(dim, 2 * dim, bias=bias)

    def project(self, x: Tensor, grid: Grid) -> tuple[Tensor, Tensor, Tensor, Tensor, Grid]:
        q, gate = self.qg(x).chunk(2, dim=-1)
        if self.sr_ratio > 1:
            x, grid = reduce_tokens(x, grid, self.sr, self.norm)
        k, v = self.kv(x).chunk(2, dim=-1)
        return q, k, v, gate, grid
