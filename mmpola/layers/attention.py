"""The linear attention layers of the published models, each written from projection to projection.

`PolaAttention` is Pola-Swin's, `PolaSpatialReductionAttention` Pola-PVT's, `PolaFormerPPAttention`
PolaFormer++'s. Any other network can use them too: they take maps and tokens of any size. Their
learned feature maps follow below them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmpola.layers.initial_weights import check_gate_init, draw_gate, draw_layer
from mmpola.layers.rotary import cached_rotary_tables
from mmpola.layers.token_maps import (
    Grid,
    HasPositionTable,
    covering_grid,
    reduce_tokens,
    resize_table,
)
from mmpola.ops.api import check_backend_name, is_grid, run_attention, run_mix_and_gate
from mmpola.ops.exp_map import ExpMap
from mmpola.ops.inputs import AttentionInputs, MixAndGateInputs
from mmpola.ops.numerics import accumulation_dtype, default_eps
from mmpola.ops.power_map import PowerMap


class LinearAttention(nn.Module):
    """Base class of the three layers: maps as input, gate, backend, the names of released weights.

    Args:
        dim: channels C.
        num_heads: heads H; D = C / H is even.
        feature_map: module with the parameters of the layer's `PowerMap` or `ExpMap`.
        backend: backend of `mmpola.ops.polarity_attention` and `mix_and_gate`: 'auto', 'triton' or
            'torch'.
        gate_init: how the gate (E14), a projection of the tokens, starts. 'authors': as they draw
            it, with weights of both signs. 'open': with weight 0 and bias 1, so that the layer
            starts as the attention plus the convolution of the values, which is ours. Or another
            name of `GATE_INITS` in initial_weights.py.
        qkv_bias: bias of the gate's projection, which an open gate needs.

    Raises:
        ValueError: `backend` is not the name of a backend, or `gate_init` is unknown or does not
            fit `qkv_bias`.
    """

    gate_projection: ClassVar[str] = 'qkvg'
    """Name of the projection whose last C outputs are the gate."""

    def __init__(
        self,
        dim: int,
        num_heads: int,
        feature_map: LearnedPowerMap | LearnedExpMap,
        backend: str,
        gate_init: str,
        qkv_bias: bool = True,
    ) -> None:
        check_backend_name(backend)
        check_gate_init(gate_init, qkv_bias)
        super().__init__()
        self.dim = dim
        self.num_heads = num_heads
        self.feature_map = feature_map
        self.backend = backend
        self.gate_init = gate_init

    def start_gate(self) -> None:
        """Start the gate as `gate_init` says, over what was drawn."""
        projection: Any = self.get_submodule(self.gate_projection)
        draw_gate(projection, self.dim, self.gate_init)

    def forward(self, x: Tensor, grid: Grid | None = None) -> Tensor:
        """Attend from every token to every token.

        Args:
            x: a map [B, C, H, W], or tokens [B, N, C].
            grid: (h, w) of the tokens, in row-major order; None with a map.

        Returns:
            The shape of x; a map has x's memory format.

        Raises:
            ValueError: the shape of x or `grid` does not fit.
        """
        raise NotImplementedError

    def forward_map(self, x: Tensor) -> Tensor:
        """Compute `forward` for a map [B, C, H, W] by way of its tokens."""
        if x.shape[1] != self.dim:
            raise ValueError(
                f'x: expected a map [B, C, H, W] with C={self.dim}, got {list(x.shape)}'
            )
        height, width = x.shape[2:]
        tokens = self.forward(x.flatten(2).transpose(1, 2), (height, width))
        maps = tokens.transpose(1, 2).unflatten(2, (height, width))
        if x.stride(1) == 1:  # channels last, like `maps`; vmap cannot ask is_contiguous for it
            return maps
        return maps.contiguous()

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *arguments: Any
    ) -> None:
        """Load released names too: there the layer itself has the feature map's parameters."""
        for name, _ in self.feature_map.named_parameters():
            if prefix + name in state_dict:
                state_dict[f'{prefix}feature_map.{name}'] = state_dict.pop(prefix + name)
        super()._load_from_state_dict(state_dict, prefix, *arguments)


class PolaAttention(LinearAttention, HasPositionTable):
    """PolaFormer's linear attention (E4-E8) with local mixing of the values and a gate (E14).

    Source: PolaFormer (ICLR 2025), eq. 3-9; the layer of Pola-Swin. The released weights of one
    layer load with `load_state_dict`.

    Args:
        dim: channels C.
        num_heads: heads H; D = C / H is even.
        grid: token grid (h, w) of the training images, for which a table of key positions is
            learned; it is resized bilinearly to other grids. None for no table.
        alpha: exponents lie in (1, 1 + alpha) (E5).
        dwc_kernel_size: side of the depth-wise convolution (E14), odd.
        gate_init: how the gate starts, see `LinearAttention`.
        qkv_bias: bias of the projections to q, k, v and gate.
        proj_drop: dropout rate after the output projection.
        backend: see `LinearAttention`.

    Raises:
        ValueError: `num_heads`, `grid`, `alpha`, `gate_init` or `backend` is invalid.
    """

    table_name = 'positional_encoding'

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        grid: Grid | None = None,
        alpha: float = 4,
        dwc_kernel_size: int = 5,
        gate_init: str = 'authors',
        qkv_bias: bool = True,
        proj_drop: float = 0.0,
        backend: str = 'auto',
    ) -> None:
        feature_map = LearnedPowerMap(dim, num_heads, alpha)
        super().__init__(dim, num_heads, feature_map, backend, gate_init, qkv_bias)
        self.qkvg = nn.Linear(dim, 4 * dim, bias=qkv_bias)
        self.positional_encoding = key_position_table(grid, dim)
        self.grid = grid or (0, 0)
        self.dwc = MixAndGate(dim // num_heads, dwc_kernel_size)
        self.proj = nn.Linear(dim, dim)
        self.proj_drop = nn.Dropout(proj_drop)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the projections as the authors do; the convolution keeps PyTorch's weights."""
        draw_layer(self.qkvg)
        draw_layer(self.proj)
        self.start_gate()

    def forward(self, x: Tensor, grid: Grid | None = None) -> Tensor:
        """Attend from every token to every token, see `LinearAttention.forward`."""
        if x.ndim == 4 and grid is None:
            return self.forward_map(x)
        grid = check_tokens(x, self.dim, grid)
        q, k, v, gate = self.qkvg(x).chunk(4, dim=-1)
        q = q.unflatten(-1, (self.num_heads, -1))  # [B, N, H, D]
        k = k.unflatten(-1, (self.num_heads, -1))
        v = v.unflatten(-1, (self.num_heads, -1))
        key_position = None
        if self.positional_encoding is not None:
            table = resize_table(self.positional_encoding, self.grid, grid)
            key_position = table.squeeze(0).unflatten(-1, (self.num_heads, -1))  # [N, H, D]
        feature_map = self.feature_map.map_for(q)
        inputs = AttentionInputs(q, k, v, feature_map, key_position, None, default_eps())
        attended = run_attention(inputs, self.backend)
        # y = (o + DWC(v)) * g (E14)
        mixed = self.dwc(attended, v, gate, grid, self.backend)
        return self.proj_drop(self.proj(mixed))


class PolaSpatialReductionAttention(LinearAttention, HasPositionTable):
    """`PolaAttention` whose keys and values can come from a reduced map, as in PVT.

    Source: PolaFormer (ICLR 2025), eq. 3-9; the layer of Pola-PVT, which the released models use
    without reduction. The released weights of one layer load with `load_state_dict`.

    Args:
        dim: channels C.
        num_heads: heads H; D = C / H is even.
        grid: token grid (h, w) of the training images, for whose reduced keys a table of positions
            is learned; it is resized bilinearly to other grids. None for no table.
        sr_ratio: stride of a convolution that reduces the map before keys and values are projected;
            1 for none.
        alpha: exponents lie in (1, 1 + alpha) (E5).
        dwc_kernel_size: side of the depth-wise convolution (E14), odd.
        gate_init: how the gate starts, see `LinearAttention`.
        qkv_bias: bias of the projections to q, k, v and gate.
        proj_drop: dropout rate after the output projection.
        backend: see `LinearAttention`.

    Attributes:
        grid: (h, w) of the keys.

    Raises:
        ValueError: `num_heads`, `grid`, `alpha`, `gate_init` or `backend` is invalid.
    """

    table_name = 'positional_encoding'
    gate_projection = 'qg'

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        grid: Grid | None = None,
        sr_ratio: int = 1,
        alpha: float = 4,
        dwc_kernel_size: int = 5,
        gate_init: str = 'authors',
        qkv_bias: bool = True,
        proj_drop: float = 0.0,
        backend: str = 'auto',
    ) -> None:
        feature_map = LearnedPowerMap(dim, num_heads, alpha)
        super().__init__(dim, num_heads, feature_map, backend, gate_init, qkv_bias)
        self.sr_ratio = sr_ratio
        self.qg = nn.Linear(dim, 2 * dim, bias=qkv_bias)
        self.kv = nn.Linear(dim, 2 * dim, bias=qkv_bias)
        key_grid = None if grid is None else covering_grid(grid, sr_ratio)
        self.positional_encoding = key_position_table(key_grid, dim)
        self.grid = key_grid or (0, 0)
        self.dwc = MixAndGate(dim // num_heads, dwc_kernel_size)
        self.proj = nn.Linear(dim, dim)
        self.proj_drop = nn.Dropout(proj_drop)
        if sr_ratio > 1:
            self.sr = nn.Conv2d(dim, dim, kernel_size=sr_ratio, stride=sr_ratio)
            self.norm = nn.LayerNorm(dim)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the projections as the authors do; convolutions keep PyTorch's weights."""
        draw_layer(self.qg)
        draw_layer(self.kv)
        draw_layer(self.proj)
        self.start_gate()

    def table_grid(self, tokens: Grid) -> Grid:
        """Return the grid of the keys of tokens on a grid."""
        return covering_grid(tokens, self.sr_ratio)

    def forward(self, x: Tensor, grid: Grid | None = None) -> Tensor:
        """Attend from every token to every reduced token, see `LinearAttention.forward`."""
        if x.ndim == 4 and grid is None:
            return self.forward_map(x)
        grid = check_tokens(x, self.dim, grid)
        key_grid = grid
        q, gate = self.qg(x).chunk(2, dim=-1)
        if self.sr_ratio > 1:
            x, key_grid = reduce_tokens(x, grid, self.sr, self.norm)
        k, v = self.kv(x).chunk(2, dim=-1)
        values = v  # one per query, for the convolution
        if v.shape[1] != q.shape[1]:
            # Along the sequence, as the released models do; under autocast in float32
            interpolated = F.interpolate(v.transpose(1, 2), size=q.shape[1], mode='linear')
            values = interpolated.transpose(1, 2).to(v.dtype)
        q = q.unflatten(-1, (self.num_heads, -1))  # [B, N, H, D]
        k = k.unflatten(-1, (self.num_heads, -1))  # [B, M, H, D]
        v = v.unflatten(-1, (self.num_heads, -1))
        values = values.unflatten(-1, (self.num_heads, -1))
        key_position = None
        if self.positional_encoding is not None:
            table = resize_table(self.positional_encoding, self.grid, key_grid)
            key_position = table.squeeze(0).unflatten(-1, (self.num_heads, -1))  # [M, H, D]
        feature_map = self.feature_map.map_for(q)
        inputs = AttentionInputs(q, k, v, feature_map, key_position, None, default_eps())
        attended = run_attention(inputs, self.backend)
        # y = (o + DWC(v)) * g (E14)
        mixed = self.dwc(attended, values, gate, grid, self.backend)
        return self.proj_drop(self.proj(mixed))


class PolaFormerPPAttention(LinearAttention):
    """PolaFormer++'s linear attention: temperatures, rotary positions, LePE and gate (E9, E10).

    Source: github.com/ZacharyMeng/PolaFormerPP. The released weights of one layer load with
    `load_state_dict`. Expects normalised inputs, such as those after an `nn.LayerNorm`: the
    normaliser is not rotated (E10), so outputs grow exponentially with the inputs.

    Args:
        dim: channels C.
        num_heads: heads H; D = C / H is even.
        gate_init: how the gate starts, see `LinearAttention`.
        proj_drop: dropout rate after the output projection.
        norm_layer: `nn.LayerNorm`, or another function from C to a module, to normalise the tokens
            [B, N, C] first; None if the network has normalised them, as PolaFormer++'s blocks do.
        backend: see `LinearAttention`.

    Raises:
        ValueError: `num_heads`, `gate_init` or `backend` is invalid.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        gate_init: str = 'authors',
        proj_drop: float = 0.0,
        norm_layer: Callable[[int], nn.Module] | None = None,
        backend: str = 'auto',
    ) -> None:
        super().__init__(dim, num_heads, LearnedExpMap(dim, num_heads), backend, gate_init)
        self.norm: nn.Module = nn.Identity()
        if norm_layer is not None:
            self.norm = norm_layer(dim)
        self.qkvg = nn.Linear(dim, 4 * dim)
        self.lepe = MixAndGate(dim, 5)
        self.proj = nn.Linear(dim, dim)
        self.proj_drop = nn.Dropout(proj_drop)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the convolution as the authors do; linear layers keep PyTorch's weights."""
        draw_layer(self.lepe)
        self.start_gate()

    def forward(self, x: Tensor, grid: Grid | None = None) -> Tensor:
        """Attend from every token to every token, see `LinearAttention.forward`."""
        if x.ndim == 4 and grid is None:
            return self.forward_map(x)
        grid = check_tokens(x, self.dim, grid)
        q, k, v, gate = self.qkvg(self.norm(x)).chunk(4, dim=-1)
        q = q.unflatten(-1, (self.num_heads, -1))  # [B, N, H, D]
        k = k.unflatten(-1, (self.num_heads, -1))
        v = v.unflatten(-1, (self.num_heads, -1))
        rotary = cached_rotary_tables(q, grid, 2 * q.shape[-1])  # two features per channel
        feature_map = self.feature_map.map_for(q)
        inputs = AttentionInputs(q, k, v, feature_map, None, rotary, default_eps())
        attended = run_attention(inputs, self.backend)
        # y = (o + DWC(v)) * g (E14)
        mixed = self.lepe(attended, v, gate, grid, self.backend)
        return self.proj_drop(self.proj(mixed))


# ---- Learned feature maps: modules with the parameters of the `PowerMap` or `ExpMap` of a layer
#
# A call returns tensors, as hooks and summaries of a model expect.


class LearnedPowerMap(nn.Module):
    """PolaFormer's feature map with a learned exponent and a learned scale per channel (E4, E5).

    Parameters have the shapes of the released weights: power [1, H, 1, D], scale [1, 1, C].

    Args:
        dim: channels C.
        num_heads: heads H; D = C / H is even.
        alpha: exponents lie in (1, 1 + alpha).

    Raises:
        ValueError: `num_heads` does not fit, or `alpha` is not positive and finite.
    """

    def __init__(self, dim: int, num_heads: int, alpha: float) -> None:
        super().__init__()
        if not isinstance(alpha, (int, float)) or not 0 < alpha < math.inf:
            raise ValueError(f'alpha: expected a positive number, got {alpha!r}')
        check_head_dim(dim, num_heads)
        self.alpha = alpha
        self.power = nn.Parameter(torch.zeros(1, num_heads, 1, dim // num_heads))
        self.scale = nn.Parameter(torch.zeros(1, 1, dim))

    def map_for(self, q: Tensor) -> PowerMap:
        """Call the module; return the map with the exponent and the scale."""
        exponent, scale = self(q)
        return PowerMap(exponent, scale)

    def forward(self, q: Tensor) -> tuple[Tensor, Tensor]:
        """Return the exponent and the scale, [H, D] in the accumulation dtype of queries q."""
        dtype = accumulation_dtype(q.dtype)
        # squeeze and view_as: the gradient of an index would fill a table with zeros first
        power = self.power.squeeze((0, 2)).to(dtype)
        scale = self.scale.view_as(power).to(dtype)
        exponent = 1 + self.alpha * power.sigmoid()  # (E5)
        return exponent, F.softplus(scale)  # (E4)


class LearnedExpMap(nn.Module):
    """PolaFormer++'s feature map with a learned temperature per feature (E9).

    Parameters have the shapes of the released weights: s1, s2 [1, H, 1, 2D].

    Args:
        dim: channels C.
        num_heads: heads H; D = C / H is even.

    Raises:
        ValueError: `num_heads` does not fit.
    """

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__()
        check_head_dim(dim, num_heads)
        features = 2 * dim // num_heads  # two signs per channel
        self.s1 = nn.Parameter(torch.zeros(1, num_heads, 1, features))
        self.s2 = nn.Parameter(torch.zeros(1, num_heads, 1, features))

    def map_for(self, q: Tensor) -> ExpMap:
        """Call the module; return the map with the temperatures."""
        same, opposite = self(q)
        return ExpMap(same, opposite)

    def forward(self, q: Tensor) -> tuple[Tensor, Tensor]:
        """Return sigmoid(s1), sigmoid(s2), [H, 2D] in the accumulation dtype of queries q."""
        dtype = accumulation_dtype(q.dtype)
        same = self.s1.squeeze((0, 2)).to(dtype).sigmoid()
        opposite = self.s2.squeeze((0, 2)).to(dtype).sigmoid()
        return same, opposite


def check_head_dim(dim: int, num_heads: int) -> None:
    """Raise ValueError unless `dim` splits into heads of an even dimension."""
    if num_heads < 1 or dim % (2 * num_heads):
        raise ValueError(
            f'num_heads: expected a number that divides dim={dim} into heads of an even '
            f'dimension (values split into two streams), got {num_heads}'
        )


# ---- Parts of the layers


class MixAndGate(nn.Conv2d):
    """The depth-wise convolution of a map in (o + DWC(v)) * g (E14), fused with the rest.

    It is a module that is called, so that everything that works through a module's hooks sees it:
    pruning, weight norm, offloading, gathering of sharded weights.

    Args:
        channels: channels of the kernels: C, or D = C / H for kernels that H heads share.
        kernel_size: side of a kernel, odd.
    """

    def __init__(self, channels: int, kernel_size: int) -> None:
        padding = kernel_size // 2
        super().__init__(channels, channels, kernel_size, padding=padding, groups=channels)

    def forward(  # type: ignore[override]  # the fused operator has more inputs
        self, attended: Tensor, values: Tensor, gate: Tensor, grid: Grid, backend: str = 'auto'
    ) -> Tensor:
        """Compute `mmpola.ops.mix_and_gate` -> [B, N, C], without checks of the arguments.

        Args:
            attended: o [B, N, H, D].
            values: v [B, N, H, D].
            gate: g [B, N, C].
            grid: (h, w) of the tokens.
            backend: backend of the operator.
        """
        inputs = MixAndGateInputs(attended, values, gate, self.weight, self.bias, grid)
        return run_mix_and_gate(inputs, backend)


def check_tokens(x: Tensor, dim: int, grid: Any) -> Grid:
    """Return `grid`, or raise ValueError unless x is tokens [B, N, C] on it."""
    if x.ndim != 3 or x.shape[2] != dim:
        raise ValueError(
            f'x: expected a map [B, C, H, W], or tokens [B, N, C] and their grid, with C={dim}, '
            f'got {list(x.shape)}'
        )
    fits = isinstance(grid, Sequence) and len(grid) == 2 and grid[0] >= 0
    if not fits or grid[0] * grid[1] != x.shape[1]:
        raise ValueError(
            f'grid: expected rows and columns (h, w) of the tokens with h * w = N = {x.shape[1]}, '
            f'got {grid}'
        )
    return grid


def key_position_table(grid: Grid | None, dim: int) -> nn.Parameter | None:
    """Return a table of zeros [1, h*w, C] for the keys of a grid (h, w); None for no grid."""
    if grid is None:
        return None
    if not is_grid(grid):
        raise ValueError(f'grid: expected (h, w) or None, got {grid!r}')
    return nn.Parameter(torch.zeros(1, grid[0] * grid[1], dim))


def mask_padding(x: Tensor, padding: Tensor) -> Tensor:
    """Zero keys or values [B, M, H, D] where `padding` [B, M] is True.

    A zero key has zero features in both feature maps, so it adds nothing to any sum: the operators
    need no mask.
    """
    return x.masked_fill(padding[..., None, None], 0)
