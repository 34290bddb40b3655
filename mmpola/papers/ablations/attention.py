"""PolaFormer's ablations: its attention layer without gate, local mixing or polarity (table 3)."""

from __future__ import annotations

import torch
from einops import rearrange
from torch import Tensor, nn

from mmpola.layers.attention import (
    LearnedPowerMap,
    check_tokens,
    key_position_table,
)
from mmpola.layers.initial_weights import draw_layer
from mmpola.layers.token_maps import Grid, HasPositionTable, convolve_on_grid, resize_table
from mmpola.ops import polarity_attention
from mmpola.ops.api import check_backend_name
from mmpola.papers.ablations.deformable_conv import DepthwiseDeformableConv

MIXINGS = ('dwc', 'dcn', None)
"""Local mixing of the values: depth-wise convolution, depth-wise deformable convolution, none."""


class AblatedPolaAttention(HasPositionTable):
    """`PolaAttention` in which gate, mixing and polarity can each be left out.

    Source: PolaFormer (ICLR 2025), table 3. It is slower than `PolaAttention`: mixing and gate are
    operations of their own.

    Args:
        dim, num_heads, grid, alpha, dwc_kernel_size, qkv_bias, proj_drop, backend: see
            `PolaAttention`.
        gate: whether to multiply by a gate (E14).
        mixing: what is added to the attended values (E14): 'dwc', a depth-wise convolution of the
            values, 'dcn', a depth-wise deformable one, or None.
        polarity: False drops the negative parts of queries and keys, and with them the
            opposite-signed stream: all value channels are averaged with the weights of the
            same-signed stream, which takes twice the operations.

    Raises:
        ValueError: `num_heads`, `grid`, `alpha`, `gate`, `mixing`, `polarity` or `backend` is
            invalid.
    """

    table_name = 'positional_encoding'

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        grid: Grid | None = None,
        gate: bool = True,
        mixing: str | None = 'dwc',
        polarity: bool = True,
        alpha: float = 4,
        dwc_kernel_size: int = 5,
        qkv_bias: bool = True,
        proj_drop: float = 0.0,
        backend: str = 'auto',
    ) -> None:
        check_backend_name(backend)
        if not isinstance(gate, bool):
            raise ValueError(f'gate: expected True or False, got {gate!r}')
        if not isinstance(polarity, bool):
            raise ValueError(f'polarity: expected True or False, got {polarity!r}')
        if mixing not in MIXINGS:
            raise ValueError(f'mixing: expected one of {list(MIXINGS)}, got {mixing!r}')
        super().__init__()
        self.dim = dim
        self.num_heads = num_heads
        self.gate = gate
        self.mixing = mixing
        self.polarity = polarity
        self.backend = backend
        self.feature_map = LearnedPowerMap(dim, num_heads, alpha)
        projections = 4 if gate else 3
        self.qkvg = nn.Linear(dim, projections * dim, bias=qkv_bias)
        self.positional_encoding = key_position_table(grid, dim)
        self.grid = grid or (0, 0)
        head_dim = dim // num_heads
        if mixing == 'dwc':
            padding = dwc_kernel_size // 2
            self.dwc = nn.Conv2d(
                head_dim, head_dim, dwc_kernel_size, padding=padding, groups=head_dim
            )
        if mixing == 'dcn':
            self.dcn = DepthwiseDeformableConv(head_dim, dwc_kernel_size)
        self.proj = nn.Linear(dim, dim)
        self.proj_drop = nn.Dropout(proj_drop)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the projections as the authors do; convolutions keep PyTorch's weights."""
        draw_layer(self.qkvg)
        draw_layer(self.proj)

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        """x [B, N, C] on the token grid (h, w), N = h * w -> [B, N, C]."""
        grid = check_tokens(x, self.dim, grid)
        projected = self.qkvg(x)
        if self.gate:
            q, k, v, gate = projected.chunk(4, dim=-1)
        else:
            q, k, v = projected.chunk(3, dim=-1)
        attended = self.attend(
            q.unflatten(-1, (self.num_heads, -1)),
            k.unflatten(-1, (self.num_heads, -1)),
            v.unflatten(-1, (self.num_heads, -1)),
            grid,
        )
        out = attended.flatten(2)
        if self.mixing == 'dwc':
            by_head = rearrange(v, 'b n (h d) -> (b h) n d', h=self.num_heads)
            convolved = convolve_on_grid(by_head, grid, self.dwc)
            out = out + rearrange(convolved, '(b h) n d -> b n (h d)', h=self.num_heads)
        if self.mixing == 'dcn':
            out = out + self.dcn(v, grid)
        if self.gate:
            out = out * gate
        return self.proj_drop(self.proj(out))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, grid: Grid) -> Tensor:
        """Attend from every token to every token; q, k, v and the result are [B, N, H, D]."""
        key_position = None
        if self.positional_encoding is not None:
            table = resize_table(self.positional_encoding, self.grid, grid)
            key_position = table.squeeze(0).unflatten(-1, (self.num_heads, -1))
        feature_map = self.feature_map.map_for(q)
        if self.polarity:
            return polarity_attention(
                q, k, v, feature_map, key_position=key_position, backend=self.backend
            )
        # Without negative parts the opposite-signed stream is 0. A second copy of the batch, with
        # the halves of the value channels exchanged, brings the other half into the same-signed
        # stream.
        if key_position is not None:
            k = (k + key_position).to(k.dtype)
        q = q.relu()
        k = k.relu()
        half = v.shape[-1] // 2
        attended = polarity_attention(
            torch.cat([q, q]),
            torch.cat([k, k]),
            torch.cat([v, v.roll(half, dims=-1)]),
            feature_map,
            backend=self.backend,
        )
        first_half, second_half = attended[..., :half].chunk(2)
        return torch.cat([first_half, second_half], dim=-1)
