"""The linear attention layers of PolaFormer and PolaFormer++ on maps: projections, attention, local mixing and gate."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from mmpola.layers.deformable_conv import DepthwiseDeformableConv
from mmpola.layers.features import LearnedExpMap, LearnedPowerMap
from mmpola.layers.patches import ceil_div, interpolate_tokens, reduce_tokens
from mmpola.layers.positions import Grid, WithPositionTable
from mmpola.ops import mix_and_gate, polarity_attention
from mmpola.ops.backends import check_backend_name
from mmpola.ops.inputs import AttentionInputs, MixAndGateInputs
from mmpola.ops.numerics import EPS
from mmpola.ops.reference import convolve_tokens

MIXINGS = ('dwc', 'dcn', None)
"""Local mixing of the values: depth-wise convolution, depth-wise deformable convolution, none."""


class LinearAttention(nn.Module):
    """Polarity-aware linear attention; a subclass adds projections and `forward`.

    Args:
        num_heads: heads H.
        feature_map: module that returns the feature map of queries and keys.
        backend: backend of `mmpola.ops.polarity_attention` and `mix_and_gate`: 'auto', 'triton' or 'torch'.

    Attributes:
        observer: None, or a function that is called with the inputs of both operators, in the order in which they run;
            `mmpola.analysis` sets it.
        complete: whether `forward` runs both operators, as in the published layers; False in some ablations.

    Raises:
        ValueError: `backend` is not the name of a backend.
    """

    observer: Callable[[AttentionInputs | MixAndGateInputs], None] | None = None
    complete = True

    def __init__(self, num_heads: int, feature_map: LearnedPowerMap | LearnedExpMap, backend: str) -> None:
        check_backend_name(backend)
        super().__init__()
        self.num_heads = num_heads
        self.feature_map = feature_map
        self.backend = backend

    def split_heads(self, x: Tensor) -> Tensor:
        """Split the channels into heads: [..., C] -> [..., H, D] with D = C / H, a view."""
        return x.unflatten(-1, (self.num_heads, -1))

    def run_attention(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        key_position: Tensor | None = None,
        rotary: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        """Run `polarity_attention` with the layer's feature map and backend: [B, N, H, D]."""
        features = self.feature_map()
        if self.observer is not None:
            self.observer(AttentionInputs(q, k, v, features, key_position, rotary, EPS))
        return polarity_attention(q, k, v, features, key_position=key_position, rotary=rotary, backend=self.backend)

    def run_mix_and_gate(self, attended: Tensor, values: Tensor, gate: Tensor, conv: nn.Conv2d, grid: Grid) -> Tensor:
        """Run `mix_and_gate` with the weights of `conv` and the layer's backend: [B, N, C]."""
        if self.observer is not None:
            self.observer(MixAndGateInputs(attended, values, gate, conv.weight, conv.bias, grid))
        return mix_and_gate(attended, values, gate, conv.weight, conv.bias, grid, backend=self.backend)


class PolaAttention(LinearAttention, WithPositionTable):
    """PolaFormer's linear attention over all tokens of a map (E4-E8), local mixing of the values and gate (E14).

    Source: PolaFormer (ICLR 2025), eq. 3-9; polarity, mixing and gate can each be left out, as in its table 3.

    Args:
        dim: channels C.
        num_heads: heads H; D = C / H is even.
        grid: token grid (h, w) of the training images, whose keys the position table is learned for; for other grids it
            is resized bilinearly.
        sr_ratio: stride of a convolution that reduces the tokens before keys and values are projected; 1 for none.
        joint: project to q, k, v and gate by one linear layer `qkvg`, as Pola-Swin; False: by two, `qg` and `kv`, as
            Pola-PVT, and wherever tokens are reduced.
        alpha: exponents lie in (1, 1 + alpha) (E5).
        dwc_kernel_size: side of the depth-wise convolution (E14), odd.
        gate: whether to multiply by a gate (E14), which is then projected too.
        mixing: what is added to the attended values (E14): 'dwc', their depth-wise convolution, 'dcn', their depth-wise
            deformable convolution, or None.
        polarity: False drops the negative parts of queries and keys and with them the opposite-signed stream: all value
            channels are averaged with the weights of the same-signed one. It takes twice the operations of attention.
        qkv_bias: bias of the projections to q, k, v and gate.
        drop: dropout rate after the output projection.
        backend: see `LinearAttention`.

    Raises:
        ValueError: `gate`, `mixing`, `polarity` or `backend` is invalid.
    """

    table_name = 'positional_encoding'

    def __init__(
        self,
        dim: int,
        num_heads: int,
        grid: Grid,
        *,
        sr_ratio: int = 1,
        joint: bool = True,
        alpha: float = 4,
        dwc_kernel_size: int = 5,
        gate: bool = True,
        mixing: str | None = 'dwc',
        polarity: bool = True,
        qkv_bias: bool = True,
        drop: float = 0.0,
        backend: str = 'auto',
    ) -> None:
        for name, switch in (('gate', gate), ('polarity', polarity)):
            if not isinstance(switch, bool):
                raise ValueError(f'{name}: expected True or False, got {switch!r}')
        if mixing not in MIXINGS:
            raise ValueError(f'mixing: expected one of {list(MIXINGS)}, got {mixing!r}')
        super().__init__(num_heads, LearnedPowerMap(dim, num_heads, alpha), backend)
        self.sr_ratio, self.joint = sr_ratio, joint and sr_ratio == 1
        self.gate, self.mixing, self.polarity = gate, mixing, polarity
        self.complete = gate and mixing == 'dwc' and polarity
        if self.joint:
            self.qkvg = nn.Linear(dim, (4 if gate else 3) * dim, bias=qkv_bias)
        else:
            self.qg = nn.Linear(dim, (2 if gate else 1) * dim, bias=qkv_bias)
            self.kv = nn.Linear(dim, 2 * dim, bias=qkv_bias)
        self.grid = ceil_div(grid, sr_ratio)
        self.positional_encoding = nn.Parameter(torch.zeros(1, self.grid[0] * self.grid[1], dim))
        head_dim = dim // num_heads
        if mixing == 'dwc':
            padding = dwc_kernel_size // 2
            self.dwc = nn.Conv2d(head_dim, head_dim, dwc_kernel_size, padding=padding, groups=head_dim)
        elif mixing == 'dcn':
            self.dcn = DepthwiseDeformableConv(head_dim, dwc_kernel_size)
        self.proj = nn.Linear(dim, dim)
        self.drop = nn.Dropout(drop)
        if sr_ratio > 1:
            self.sr = nn.Conv2d(dim, dim, kernel_size=sr_ratio, stride=sr_ratio)
            self.norm = nn.LayerNorm(dim)

    def set_token_grid(self, grid: Grid) -> None:
        """Resize the key position table to the keys of a token grid (h, w)."""
        super().set_token_grid(ceil_div(grid, self.sr_ratio))

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        """x [B, N, C] on the token grid (h, w), N = h * w -> [B, N, C]."""
        if self.joint:
            q, k, v, *gate = self.qkvg(x).chunk(4 if self.gate else 3, dim=-1)
            return self._mix_and_project(self._attend(q, k, v, grid), v, grid, *gate)
        q, *gate = self.qg(x).chunk(2 if self.gate else 1, dim=-1)
        reduced, key_grid = reduce_tokens(x, grid, self.sr, self.norm) if self.sr_ratio > 1 else (x, grid)
        k, v = self.kv(reduced).chunk(2, dim=-1)
        values = interpolate_tokens(v, x.shape[1])
        return self._mix_and_project(self._attend(q, k, v, key_grid), values, grid, *gate)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, key_grid: Grid) -> Tensor:
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

    def _mix_and_project(self, attended: Tensor, values: Tensor, grid: Grid, gate: Tensor | None = None) -> Tensor:
        """Add the mixed values, multiply by the gate and project.

        Args:
            attended: the result of `_attend`, [B, N, H, D].
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


class PolaPlusAttention(LinearAttention):
    """PolaFormer++'s linear attention over all tokens of a map: learned temperatures, rotary positions, LePE, gate.

    Source: PolaFormer++ (E9, E10).

    Args:
        dim: channels C.
        num_heads: heads H; D = C / H is even.
        drop: dropout rate after the output projection.
        backend: see `LinearAttention`.
    """

    def __init__(self, dim: int, num_heads: int, *, drop: float = 0.0, backend: str = 'auto') -> None:
        super().__init__(num_heads, LearnedExpMap(dim, num_heads), backend)
        self.rotary_channels = 2 * dim // num_heads  # 2D features: two signs per channel
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

    def forward(self, x: Tensor, grid: Grid, rotary: tuple[Tensor, Tensor]) -> Tensor:
        """x [B, N, C] on the token grid (h, w), N = h * w; rotary (cos, sin), each [N, 2D] -> [B, N, C]."""
        q, k, v, gate = self.qkvg(x).chunk(4, dim=-1)
        q, k, v = (self.split_heads(t) for t in (q, k, v))
        attended = self.run_attention(q, k, v, rotary=rotary)
        return self.drop(self.proj(self.run_mix_and_gate(attended, v, gate, self.lepe, grid)))
