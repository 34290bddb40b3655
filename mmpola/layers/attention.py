"""The linear attention layers of PolaFormer and PolaFormer++: projections, attention, local mixing and gate.

The backbones are built from them, and any other network can be: they take maps and tokens of any
size.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from mmpola.layers.deformable_conv import DepthwiseDeformableConv
from mmpola.layers.features import LearnedExpMap, LearnedPowerMap
from mmpola.layers.initial_weights import draw_layer
from mmpola.layers.patches import ceil_div, interpolate_tokens, reduce_tokens
from mmpola.layers.positions import Grid, WithPositionTable, cached_rotary_tables, pad_front
from mmpola.ops import mix_and_gate, polarity_attention
from mmpola.ops.backends import check_backend_name
from mmpola.ops.inputs import AttentionInputs, MixAndGateInputs, is_grid
from mmpola.ops.numerics import EPS
from mmpola.ops.reference import convolve_tokens

MIXINGS = ('dwc', 'dcn', None)
"""Local mixing of the values: depth-wise convolution, depth-wise deformable convolution, none."""


class LinearAttention(nn.Module):
    """Polarity-aware linear attention; a subclass adds projections and `attend`.

    Args:
        dim: channels C.
        num_heads: heads H.
        feature_map: module that returns the feature map of queries and keys.
        backend: backend of `mmpola.ops.polarity_attention` and `mix_and_gate`: 'auto', 'triton' or
            'torch'.

    Attributes:
        observer: None, or a function that is called with the inputs of both operators, in the order
            in which they run; `mmpola.apps.analysis` sets it.
        complete: whether `forward` runs both operators, as in the published layers; False in some
            ablations.
        reads_grid: the part of the layer that needs the rows and columns of the tokens; None if no
            part does.

    Raises:
        ValueError: `backend` is not the name of a backend.
    """

    observer: Callable[[AttentionInputs | MixAndGateInputs], None] | None = None
    complete = True
    reads_grid: str | None = 'the convolution of the values'

    def __init__(
        self, dim: int, num_heads: int, feature_map: LearnedPowerMap | LearnedExpMap, backend: str
    ) -> None:
        check_backend_name(backend)
        super().__init__()
        self.dim = dim
        self.num_heads = num_heads
        self.feature_map = feature_map
        self.backend = backend

    def forward(self, x: Tensor, grid: Grid | None = None, *, prefix_tokens: int = 0) -> Tensor:
        """Attend from every token to every token.

        Args:
            x: a map [B, C, H, W], or tokens [B, N, C].
            grid: (h, w) of the tokens, in row-major order; None with a map, or if nothing in the
                layer reads it.
            prefix_tokens: number of tokens in front of those of the map, N = prefix_tokens + h * w,
                such as a class token. They take part in attention, without a position, and not in
                the convolution of the values.

        Returns:
            The shape of x; a map has x's memory format.

        Raises:
            ValueError: the shape of x, `grid` or `prefix_tokens` does not fit.
        """
        is_map = grid is None and not prefix_tokens and x.ndim == 4
        if x.ndim != 3 + is_map or x.shape[1 if is_map else 2] != self.dim:
            rule = 'tokens [B, N, C], or a map [B, C, H, W] without grid and prefix_tokens'
            raise ValueError(f'x: expected {rule}, with C={self.dim}, got {list(x.shape)}')
        if is_map:
            maps = self.attend(x.flatten(2).transpose(1, 2), (x.shape[2], x.shape[3]), 0)
            maps = maps.transpose(1, 2).unflatten(2, x.shape[2:])
            return (
                maps if x.stride(1) == 1 else maps.contiguous()
            )  # channels last; vmap knows no is_contiguous of it
        if grid is None:
            if self.reads_grid is not None:
                rule = (
                    f'(h, w) of tokens [B, N, C], because {self.reads_grid} needs rows and columns'
                )
                raise ValueError(f'grid: expected {rule}, got None')
        elif (
            not is_grid(grid)
            or prefix_tokens < 0
            or prefix_tokens + grid[0] * grid[1] != x.shape[1]
        ):
            rule = f'(h, w) with prefix_tokens + h * w = N = {x.shape[1]}'
            raise ValueError(
                f'grid: expected {rule}, got {grid} with prefix_tokens={prefix_tokens}'
            )
        return self.attend(x, grid, prefix_tokens)

    def attend(self, x: Tensor, grid: Any, prefix_tokens: int) -> Tensor:
        """Compute `forward` for tokens [B, N, C]; `grid` is (h, w), or None if nothing in the layer reads it."""
        raise NotImplementedError

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
        return polarity_attention(
            q, k, v, features, key_position=key_position, rotary=rotary, backend=self.backend
        )

    def mix_and_gate(
        self,
        attended: Tensor,
        values: Tensor,
        gate: Tensor | None,
        conv: nn.Module | None,
        grid: Any,
    ) -> Tensor:
        """Add the convolved values and multiply by the gate (E14).

        Args:
            attended: the result of `run_attention`, [B, N, H, D].
            values: [B, h * w, C], of the tokens of the map, which are the last of the N.
            gate: [B, N, C], None if the layer has no gate.
            conv: convolution of the values, None if the layer has none.
            grid: (h, w), read by `conv`.

        Returns:
            [B, N, C].
        """
        prefix_tokens = attended.shape[1] - values.shape[1]
        if isinstance(conv, nn.Conv2d) and gate is not None and not prefix_tokens:
            inputs = attended, self.split_heads(values), gate, conv.weight, conv.bias, grid
            if self.observer is not None:
                self.observer(MixAndGateInputs(*inputs))
            return mix_and_gate(*inputs, backend=self.backend)
        mixed = attended.flatten(2)
        if isinstance(conv, nn.Conv2d):
            values = convolve_tokens(values, conv.weight, conv.bias, grid)
        elif conv is not None:
            values = conv(values, grid)
        if conv is not None:
            mixed = mixed + pad_front(values, prefix_tokens)
        return mixed if gate is None else mixed * gate

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *arguments: Any
    ) -> None:
        """Take the released names too, in which the parameters of the feature map are the layer's own."""
        for name, _ in self.feature_map.named_parameters():
            if prefix + name in state_dict:
                state_dict[f'{prefix}feature_map.{name}'] = state_dict.pop(prefix + name)
        super()._load_from_state_dict(state_dict, prefix, *arguments)


class PolaAttention(LinearAttention, WithPositionTable):
    """PolaFormer's linear attention of maps and tokens of any size (E4-E8), local mixing of the values, gate (E14).

    Source: PolaFormer (ICLR 2025), eq. 3-9; polarity, mixing and gate can each be left out, as in
    its table 3. The released weights of one layer load with `load_state_dict`.

    Args:
        dim: channels C.
        num_heads: heads H; D = C / H is even.
        grid: token grid (h, w) of the training images, whose keys a position table is learned for;
            for other grids it is resized bilinearly. None for no table.
        sr_ratio: stride of a convolution that reduces the tokens before keys and values are
            projected; 1 for none.
        joint: project to q, k, v and gate by one linear layer `qkvg`, as Pola-Swin; False: by two,
            `qg` and `kv`, as Pola-PVT, and wherever tokens are reduced.
        alpha: exponents lie in (1, 1 + alpha) (E5).
        dwc_kernel_size: side of the depth-wise convolution (E14), odd.
        gate: whether to multiply by a gate (E14), which is then projected too.
        mixing: what is added to the attended values (E14): 'dwc', their depth-wise convolution,
            'dcn', their depth-wise deformable convolution, or None. Without mixing, `grid` and
            reduction the tokens need no rows and columns.
        polarity: False drops the negative parts of queries and keys and with them the
            opposite-signed stream: all value channels are averaged with the weights of the
            same-signed one. It takes twice the operations of attention.
        qkv_bias: bias of the projections to q, k, v and gate.
        drop: dropout rate after the output projection.
        backend: see `LinearAttention`.

    Raises:
        ValueError: `num_heads`, `grid`, `gate`, `mixing`, `polarity` or `backend` is invalid.
    """

    table_name = 'positional_encoding'

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        grid: Grid | None = None,
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
        if grid is not None and not is_grid(grid):
            raise ValueError(f'grid: expected (h, w) or None, got {grid!r}')
        super().__init__(dim, num_heads, LearnedPowerMap(dim, num_heads, alpha), backend)
        self.sr_ratio, self.joint = sr_ratio, joint and sr_ratio == 1
        self.gate, self.mixing, self.polarity = gate, mixing, polarity
        self.complete = gate and mixing == 'dwc' and polarity
        if self.joint:
            self.qkvg = nn.Linear(dim, (4 if gate else 3) * dim, bias=qkv_bias)
        else:
            self.qg = nn.Linear(dim, (2 if gate else 1) * dim, bias=qkv_bias)
            self.kv = nn.Linear(dim, 2 * dim, bias=qkv_bias)
        self.grid = ceil_div(grid or (0, 0), sr_ratio)
        self.positional_encoding = (
            nn.Parameter(torch.zeros(1, self.grid[0] * self.grid[1], dim)) if grid else None
        )
        head_dim = dim // num_heads
        if mixing == 'dwc':
            padding = dwc_kernel_size // 2
            self.dwc = nn.Conv2d(
                head_dim, head_dim, dwc_kernel_size, padding=padding, groups=head_dim
            )
        elif mixing == 'dcn':
            self.dcn = DepthwiseDeformableConv(head_dim, dwc_kernel_size)
        else:
            reduction, table = (
                sr_ratio > 1 and 'the reduction of keys',
                grid and 'the key position table',
            )
            self.reads_grid = reduction or table or None
        self.proj = nn.Linear(dim, dim)
        self.drop = nn.Dropout(drop)
        if sr_ratio > 1:
            self.sr = nn.Conv2d(dim, dim, kernel_size=sr_ratio, stride=sr_ratio)
            self.norm = nn.LayerNorm(dim)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the projections as the authors do; convolutions keep PyTorch's initial weights."""
        if self.joint:
            draw_layer(self.qkvg)
        else:
            draw_layer(self.qg)
            draw_layer(self.kv)
        draw_layer(self.proj)

    def set_token_grid(self, grid: Grid) -> None:
        """Resize the key position table, if there is one, to the keys of a token grid (h, w)."""
        super().set_token_grid(ceil_div(grid, self.sr_ratio))

    def attend(self, x: Tensor, grid: Any, prefix_tokens: int) -> Tensor:
        if self.joint:
            q, k, v, *gate = self.qkvg(x).chunk(4 if self.gate else 3, dim=-1)
            key_grid, values = grid, v[:, prefix_tokens:]
        else:
            q, *gate = self.qg(x).chunk(2 if self.gate else 1, dim=-1)
            x, key_grid = self._reduce(x, grid, prefix_tokens) if self.sr_ratio > 1 else (x, grid)
            k, v = self.kv(x).chunk(2, dim=-1)
            values = interpolate_tokens(v[:, prefix_tokens:], q.shape[1] - prefix_tokens)
        attended = self._attend_to(q, k, v, key_grid, prefix_tokens)
        conv = getattr(self, self.mixing) if self.mixing else None
        return self.drop(
            self.proj(self.mix_and_gate(attended, values, gate[0] if gate else None, conv, grid))
        )

    def _reduce(self, x: Tensor, grid: Grid, prefix_tokens: int) -> tuple[Tensor, Grid]:
        """Reduce the tokens of the map, and return all tokens that keys and values are projected from."""
        reduced, key_grid = reduce_tokens(x[:, prefix_tokens:], grid, self.sr, self.norm)
        return torch.cat(
            [x[:, :prefix_tokens], reduced], dim=1
        ) if prefix_tokens else reduced, key_grid

    def _attend_to(
        self, q: Tensor, k: Tensor, v: Tensor, key_grid: Grid, prefix_tokens: int
    ) -> Tensor:
        """Attend from q [B, N, C] to k and v [B, M, C] of the prefix and the cells of `key_grid` -> [B, N, H, D]."""
        q, k, v = (self.split_heads(x) for x in (q, k, v))
        position = None
        if self.positional_encoding is not None:
            position = self.split_heads(
                pad_front(self.position_table(key_grid).squeeze(0), prefix_tokens)
            )
        if self.polarity:
            return self.run_attention(q, k, v, key_position=position)
        # Without negative parts the opposite-signed stream is 0. A second copy of the batch, with
        # the halves of the value channels exchanged, brings the other half into the same-signed
        # stream.
        half = v.shape[-1] // 2
        k = k if position is None else (k + position).to(k.dtype)
        q, k = (torch.cat([x, x]) for x in (q.relu(), k.relu()))
        v = torch.cat([v, v.roll(half, dims=-1)])
        attended = self.run_attention(q, k, v)
        return torch.cat(attended[..., :half].chunk(2), dim=-1)


class PolaPlusAttention(LinearAttention):
    """PolaFormer++'s linear attention of maps and tokens of any size: temperatures, rotary positions, LePE and gate.

    Source: PolaFormer++ (E9, E10). The released weights of one layer load with `load_state_dict`.
    The input is expected to be normalised: the normaliser is not rotated (E10), so that large
    inputs make outputs that grow exponentially.

    Args:
        dim: channels C.
        num_heads: heads H; D = C / H is even.
        drop: dropout rate after the output projection.
        backend: see `LinearAttention`.

    Raises:
        ValueError: `num_heads` or `backend` is invalid.
    """

    def __init__(
        self, dim: int, num_heads: int, *, drop: float = 0.0, backend: str = 'auto'
    ) -> None:
        super().__init__(dim, num_heads, LearnedExpMap(dim, num_heads), backend)
        self.qkvg = nn.Linear(dim, 4 * dim)
        self.lepe = nn.Conv2d(dim, dim, 5, padding=2, groups=dim)
        self.proj = nn.Linear(dim, dim)
        self.drop = nn.Dropout(drop)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the convolution as the authors do; linear layers keep PyTorch's initial weights."""
        draw_layer(self.lepe)

    def attend(self, x: Tensor, grid: Any, prefix_tokens: int) -> Tensor:
        q, k, v, gate = self.qkvg(x).chunk(4, dim=-1)
        values = v[:, prefix_tokens:]
        q, k, v = (self.split_heads(t) for t in (q, k, v))
        rotary = cached_rotary_tables(
            q, grid, 2 * q.shape[-1], prefix_tokens
        )  # 2D features: two signs per channel
        attended = self.run_attention(q, k, v, rotary=rotary)
        return self.drop(self.proj(self.mix_and_gate(attended, values, gate, self.lepe, grid)))
