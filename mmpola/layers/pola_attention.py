"""PolaFormer's attention block: projections, the operator, the local mixing of values and the gate (E4-E9)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmpola.layers.position import Grid, resize_table
from mmpola.ops import PowerMap, polarity_attention
from mmpola.ops.numerics import accumulation_dtype


def mix_and_gate(attended: Tensor, values: Tensor, gate: Tensor, kernel: nn.Conv2d, grid: Grid) -> Tensor:
    """y = (o + DWC(v)) * g (E9).

    Args:
        attended: o [B, N, H, D].
        values: v [B, N, H, D] on the token grid.
        gate: g [B, N, C], C = H * D.
        kernel: depth-wise convolution of D channels, shared by all heads.
        grid: (h, w) with h * w = N.

    Returns:
        y [B, N, C].
    """
    heads = values.shape[2]
    # Tokens by channels is the memory of a channels-last map, so sharing the kernel by repeating it copies no values.
    maps = values.flatten(2).unflatten(1, grid).permute(0, 3, 1, 2)
    weight = kernel.weight.repeat(heads, 1, 1, 1)
    bias = None if kernel.bias is None else kernel.bias.repeat(heads)
    mixed = F.conv2d(maps, weight, bias, padding=kernel.padding, groups=maps.shape[1])
    return (attended.flatten(2) + mixed.flatten(2).transpose(1, 2)) * gate


class PolaAttention(nn.Module):
    """Linear attention over the whole token map with learned powers, a key position table, DWC and gate (E4-E9).

    Source: PolaFormer (ICLR 2025), eq. 3-9. Parameter names are those of the released Pola-Swin weights.

    Args:
        dim: channels C.
        num_heads: heads H; C / H even.
        grid: (h, w) that the key position table is learned on; resized bilinearly to any other.
        alpha: exponents lie in (1, 1 + alpha) (E5).
        kernel_size: of the depth-wise convolution, odd.
        qkv_bias: bias of the projections to q, k, v and the gate.
        drop: dropout after the output projection.
        backend: of `mmpola.ops.polarity_attention`.
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
        super().__init__()
        head_dim = dim // num_heads
        self.num_heads, self.grid, self.alpha, self.backend = num_heads, grid, alpha, backend
        self.qkvg = nn.Linear(dim, 4 * dim, bias=qkv_bias)
        self.power = nn.Parameter(torch.zeros(1, num_heads, 1, head_dim))
        self.scale = nn.Parameter(torch.zeros(1, 1, dim))
        self.positional_encoding = nn.Parameter(torch.zeros(1, grid[0] * grid[1], dim))
        self.dwc = nn.Conv2d(head_dim, head_dim, kernel_size, padding=kernel_size // 2, groups=head_dim)
        self.proj = nn.Linear(dim, dim)
        self.drop = nn.Dropout(drop)

    def feature_map(self) -> PowerMap:
        """p = 1 + alpha sigmoid(power) (E5), s = softplus(scale) (E4), each [H, D], in the accumulation dtype."""
        dtype = accumulation_dtype(self.power.dtype)
        power, scale = self.power[0, :, 0].to(dtype), self.scale[0, 0].to(dtype)
        return PowerMap(1 + self.alpha * power.sigmoid(), F.softplus(scale).unflatten(0, power.shape))

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        """x [B, N, C] on the token grid (h, w), N = h * w -> [B, N, C]."""
        q, k, v, gate = self.qkvg(x).chunk(4, dim=-1)
        q, k, v = (t.unflatten(-1, (self.num_heads, -1)) for t in (q, k, v))
        position = resize_table(self.positional_encoding, self.grid, grid)[0].unflatten(-1, q.shape[2:])
        attended = polarity_attention(q, k, v, self.feature_map(), key_position=position, backend=self.backend)
        return self.drop(self.proj(mix_and_gate(attended, v, gate, self.dwc, grid)))
