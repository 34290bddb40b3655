"""PolaFormer's attention layers: projections, linear attention, local mixing of values and the gate (E4-E8, E14).

Polarity, mixing and gate can each be left out, as in the paper's ablations (table 3).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmpola.layers.deformable_conv import DepthwiseDeformableConv
from mmpola.layers.padding import cells
from mmpola.layers.polarity_attention import PolarityAttention
from mmpola.layers.position import Grid, WithPositionTable
from mmpola.layers.spatial_reduction import reduce_tokens, spread_tokens
from mmpola.ops import PowerMap
from mmpola.ops.numerics import accumulation_dtype
from mmpola.ops.reference import convolve_tokens

MIXINGS = ('dwc', 'dcn', None)
"""Local mixing of the values: depth-wise convolution, depth-wise deformable convolution, none."""


class PowerAttention(PolarityAttention, WithPositionTable):
    """What PolaFormer's attention layers share: learned powers, a key position table, depth-wise convolution and gate.

    Source: PolaFormer (ICLR 2025), eq. 3-9. A subclass projects its input to queries, keys, values and gate.

    Args:
        dim: channels C.
        num_heads: heads H; C / H is even.
        grid: (h, w) for which the key position table is learned; for other key grids it is resized bilinearly.
        projections: the subclass's input projections by parameter name, registered first and in this order, as in the
            released weights.
        alpha: exponents lie in (1, 1 + alpha) (E5).
        kernel_size: side of the depth-wise convolution (E14), odd.
        gate: whether to multiply by a gate (E14), which the subclass then projects too.
        mixing: what is added to the attended values (E14): 'dwc', their depth-wise convolution, 'dcn', their depth-wise
            deformable convolution, or None.
        polarity: False drops the negative parts of queries and keys and with them the opposite-signed stream: all value
            channels are averaged with the weights of the same-signed one. It takes twice the operations of attention.
        drop: dropout rate after the output projection.
        backend: see `PolarityAttention`.

    Raises:
        ValueError: `gate`, `mixing`, `polarity` or `backend` is invalid.
    """

    table_name = 'positional_encoding'

    def __init__(
        self,
        dim: int,
        num_heads: int,
        grid: Grid,
        projections: dict[str, nn.Linear],
        *,
        alpha: float = 4,
        kernel_size: int = 5,
        gate: bool = True,
        mixing: str | None = 'dwc',
        polarity: bool = True,
        drop: float = 0.0,
        backend: str = 'auto',
    ) -> None:
        for name, switch in (('gate', gate), ('polarity', polarity)):
            if not isinstance(switch, bool):
                raise ValueError(f'{name}: expected True or False, got {switch!r}')
        if mixing not in MIXINGS:
            raise ValueError(f'mixing: expected one of {list(MIXINGS)}, got {mixing!r}')
        super().__init__(num_heads, backend)
        head_dim = dim // num_heads
        self.grid, self.alpha = grid, alpha
        self.gate, self.mixing, self.polarity = gate, mixing, polarity
        self.complete = gate and mixing == 'dwc' and polarity
        for name, projection in projections.items():
            self.add_module(name, projection)
        self.power = nn.Parameter(torch.zeros(1, num_heads, 1, head_dim))
        self.scale = nn.Parameter(torch.zeros(1, 1, dim))
        self.positional_encoding = nn.Parameter(torch.zeros(1, grid[0] * grid[1], dim))
        if mixing == 'dwc':
            self.dwc = nn.Conv2d(head_dim, head_dim, kernel_size, padding=kernel_size // 2, groups=head_dim)
        elif mixing == 'dcn':
            self.dcn = DepthwiseDeformableConv(head_dim, kernel_size)
        self.proj = nn.Linear(dim, dim)
        self.drop = nn.Dropout(drop)

    def feature_map(self) -> PowerMap:
        """Return p = 1 + alpha sigmoid(power) (E5) and s = softplus(scale) (E4), [H, D] in the accumulation dtype."""
        dtype = accumulation_dtype(self.power.dtype)
        power, scale = self.power[0, :, 0].to(dtype), self.scale[0, 0].to(dtype)
        return PowerMap(1 + self.alpha * power.sigmoid(), self.split_heads(F.softplus(scale)))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, key_grid: Grid) -> Tensor:
        """Attend from q [B, N, C] to k and v [B, M, C], whose M tokens are the cells of `key_grid` -> [B, N, H, D]."""
        position = self.position_table(key_grid)[0]
        q, k, v, position = (self.split_heads(x) for x in (q, k, v, position))
        if self.polarity:
            return self.run_attention(q, k, v, key_position=position)
        # Without negative parts the opposite-signed stream is 0. A second copy of the batch, with the halves of the
        # value channels exchanged, brings the other half into the same-signed stream.
        half = v.shape[-1] // 2
        q, k = (torch.cat([x, x]) for x in (q.relu(), (k + position).relu().to(k.dtype)))
        v = torch.cat([v, v.roll(half, dims=-1)])
        attended = self.run_attention(q, k, v)
        return torch.cat(attended[..., :half].chunk(2), dim=-1)

    def project_out(self, attended: Tensor, values: Tensor, grid: Grid, gate: Tensor | None = None) -> Tensor:
        """Add the mixed values, multiply by the gate and project.

        Args:
            attended: the result of `attend`, [B, N, H, D].
            values: [B, N, C], one for each of the N tokens on `grid`.
            grid: (h, w), h * w = N.
            gate: [B, N, C], None if the layer has no gate.

        Returns:
            [B, N, C].
        """
        if self.mixing == 'dwc' and gate is not None:
            mixed = self.run_mix_and_gate(attended, self.split_heads(values), gate, self.dwc, grid)
        else:
            mixed = attended.flatten(2)
            if self.mixing == 'dwc':
                mixed = mixed + convolve_tokens(values, self.dwc.weight, self.dwc.bias, grid)
            elif self.mixing == 'dcn':
                mixed = mixed + self.dcn(values, grid)
            if gate is not None:
                mixed = mixed * gate
        return self.drop(self.proj(mixed))


class PolaAttention(PowerAttention):
    """PolaFormer's linear attention over all tokens (Pola-Swin, Pola-DeiT), named as in the released weights.

    Args:
        dim, num_heads, grid: see `PowerAttention`; `grid` is the training images' token grid.
        qkv_bias: bias of the projection to q, k, v and the gate.
        gate: see `PowerAttention`; without it `qkvg` projects to q, k and v.
        shared: the other keyword arguments of `PowerAttention`.
    """

    qkvg: nn.Linear

    def __init__(
        self, dim: int, num_heads: int, grid: Grid, *, qkv_bias: bool = True, gate: bool = True, **shared: Any
    ) -> None:
        outputs = 4 if gate else 3
        projections = {'qkvg': nn.Linear(dim, outputs * dim, bias=qkv_bias)}
        super().__init__(dim, num_heads, grid, projections, gate=gate, **shared)

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        """x [B, N, C] on the token grid (h, w), N = h * w -> [B, N, C]."""
        q, k, v, *gate = self.qkvg(x).chunk(4 if self.gate else 3, dim=-1)
        return self.project_out(self.attend(q, k, v, grid), v, grid, *gate)


class ReducedPolaAttention(PowerAttention):
    """PolaFormer's linear attention to the keys and values of all tokens or of a reduced map (Pola-PVT).

    Parameter names are those of the released weights.

    Args:
        dim, num_heads: see `PowerAttention`.
        grid: (h, w) of the training images' tokens; the key position table is learned on it divided by `sr_ratio`.
        sr_ratio: stride of the convolution before the keys and values; 1 for none.
        qkv_bias: bias of the projections to q, k, v and the gate.
        gate: see `PowerAttention`; without it `qg` projects to q.
        shared: the other keyword arguments of `PowerAttention`.
    """

    qg: nn.Linear
    kv: nn.Linear

    def __init__(
        self,
        dim: int,
        num_heads: int,
        grid: Grid,
        *,
        sr_ratio: int = 1,
        qkv_bias: bool = True,
        gate: bool = True,
        **shared: Any,
    ) -> None:
        outputs = {'qg': 2 if gate else 1, 'kv': 2}
        projections = {name: nn.Linear(dim, count * dim, bias=qkv_bias) for name, count in outputs.items()}
        super().__init__(dim, num_heads, cells(grid, sr_ratio), projections, gate=gate, **shared)
        self.sr_ratio = sr_ratio
        if sr_ratio > 1:
            self.sr = nn.Conv2d(dim, dim, kernel_size=sr_ratio, stride=sr_ratio)
            self.norm = nn.LayerNorm(dim)

    def set_token_grid(self, grid: Grid) -> None:
        """Resize the key position table to the keys of a token grid (h, w)."""
        super().set_token_grid(cells(grid, self.sr_ratio))

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        """x [B, N, C] on the token grid (h, w), N = h * w -> [B, N, C]."""
        q, *gate = self.qg(x).chunk(2 if self.gate else 1, dim=-1)
        reduced, key_grid = reduce_tokens(x, grid, self.sr, self.norm) if self.sr_ratio > 1 else (x, grid)
        k, v = self.kv(reduced).chunk(2, dim=-1)
        values = spread_tokens(v, x.shape[1])
        return self.project_out(self.attend(q, k, v, key_grid), values, grid, *gate)
