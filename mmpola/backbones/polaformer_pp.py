"""PolaFormer++: linear attention with exponential features in the early stages, softmax over the whole map in the late.

Source: PolaFormer++; equations E9 and E10 in mmpola/ops/README.md. Parameter names are those of the released weights.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from timm.layers import DropPath
from torch import Tensor, nn

from mmpola.backbones.base import (
    AttnTypes,
    Backbone,
    block_types,
    check_heads,
    drop_path_rates,
    resolve_arch,
    run_block,
)
from mmpola.layers import Grid, RotarySoftmaxAttention, SpikyAttention, rotary_tables
from mmpola.ops.numerics import accumulation_dtype
from mmpola.ops.reference import convolve_tokens
from mmpola.registry import MODELS


def _arch(
    embed_dims: Sequence[int],
    depths: Sequence[int],
    num_heads: Sequence[int],
    drop_path_rate: float,
    layer_scale_init: Sequence[float] = (1, 1, 1, 1),
) -> dict[str, Any]:
    return {
        'embed_dims': embed_dims,
        'depths': depths,
        'num_heads': num_heads,
        'mlp_ratios': (3.5,) * 4,
        'layer_scale': (True,) * 4,
        'layer_scale_init': layer_scale_init,
        'drop_path_rate': drop_path_rate,
    }


ARCHS: dict[str, dict[str, Any]] = {
    'b0': _arch((32, 64, 128, 384), (2, 2, 2, 2), (1, 2, 4, 12), 0.1),
    'b1': _arch((32, 64, 192, 384), (2, 2, 4, 2), (1, 2, 6, 12), 0.1),
    'b2': _arch((64, 128, 256, 512), (2, 2, 6, 2), (1, 2, 4, 8), 0.1),
    'b3': _arch((64, 128, 320, 512), (3, 5, 9, 3), (1, 2, 5, 8), 0.15),
    'b4': _arch((96, 192, 384, 512), (4, 6, 12, 6), (1, 2, 6, 8), 0.4, (1, 1, 1e-6, 1e-6)),
    'b5': _arch((96, 192, 448, 640), (4, 7, 19, 8), (1, 2, 7, 10), 0.55, (1e-6,) * 4),
}
NORM_EPS = 1e-6


class Stem(nn.Module):
    """[B, in_channels, H, W] -> [B, C, ceil(H / 4), ceil(W / 4)]: four 3x3 convolutions, the first and last strided."""

    def __init__(self, in_channels: int, dim: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        widths = (in_channels, dim // 2, dim // 2, dim // 2, dim)
        for before, after, stride in zip(widths, widths[1:], (2, 1, 1, 2), strict=False):
            layers += [nn.Conv2d(before, after, 3, stride, padding=1), nn.BatchNorm2d(after), nn.GELU()]
        self.proj = nn.Sequential(*layers[:-1])

    def forward(self, x: Tensor) -> Tensor:
        return self.proj(x)


class Downsample(nn.Module):
    """[B, C, h, w] -> [B, C', ceil(h / 2), ceil(w / 2)]."""

    def __init__(self, dim: int, out_dim: int) -> None:
        super().__init__()
        self.reduction = nn.Conv2d(dim, out_dim, 3, stride=2, padding=1)
        self.norm = nn.BatchNorm2d(out_dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.reduction(x))


class ConvMlp(nn.Module):
    """fc1, GELU, x + DWConv3x3(x), fc2 on tokens [B, N, C]."""

    def __init__(self, dim: int, hidden: int, drop: float) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden)
        self.dwconv = nn.Conv2d(hidden, hidden, 3, padding=1, groups=hidden)
        self.fc2 = nn.Linear(hidden, dim)
        self.drop = nn.Dropout(drop)

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        x = self.drop(F.gelu(self.fc1(x)))
        return self.drop(self.fc2(x + convolve_tokens(x, self.dwconv.weight, self.dwconv.bias, grid)))


class PolaFormerPPBlock(nn.Module):
    """x += DWConv3x3(x); x += gamma_1 attn(norm1(x)); x += gamma_2 ffn(norm2(x)); no gammas without layer scale.

    Args:
        attn: linear or softmax attention.
        dim: channels C.
        mlp_ratio: hidden channels of the FFN per channel.
        drop: dropout in the FFN.
        path: stochastic depth.
        layer_scale: initial value of the gammas [1, C, 1, 1]; None for no gammas.
    """

    gamma_1: nn.Parameter | None
    gamma_2: nn.Parameter | None

    def __init__(
        self,
        attn: SpikyAttention | RotarySoftmaxAttention,
        dim: int,
        mlp_ratio: float,
        drop: float,
        path: float,
        layer_scale: float | None,
    ) -> None:
        super().__init__()
        self.pos = nn.Conv2d(dim, dim, 3, padding=1, groups=dim)
        self.norm1 = _named_norm(dim)
        self.attn = attn
        self.norm2 = _named_norm(dim)
        self.ffn = ConvMlp(dim, int(dim * mlp_ratio), drop)
        self.drop_path = DropPath(path)
        for name in ('gamma_1', 'gamma_2'):
            gamma = None if layer_scale is None else nn.Parameter(torch.full((1, dim, 1, 1), float(layer_scale)))
            self.register_parameter(name, gamma)

    def forward(self, x: Tensor, grid: Grid, rotary: tuple[Tensor, Tensor]) -> Tensor:
        """x [B, N, C] on the token grid, rotary for its attention -> [B, N, C]."""
        x = x + convolve_tokens(x, self.pos.weight, self.pos.bias, grid)
        x = x + self.drop_path(_scaled(self.attn(self.norm1(x), grid, rotary), self.gamma_1))
        return x + self.drop_path(_scaled(self.ffn(self.norm2(x), grid), self.gamma_2))


class PolaFormerPPStage(nn.Module):
    """Blocks at one resolution and, unless it is the last stage built, the down-sampling after them."""

    def __init__(self, blocks: list[PolaFormerPPBlock], downsample: Downsample | None, with_cp: bool) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.downsample = downsample
        self.with_cp = with_cp
        self.rotary_channels = [block.attn.rotary_channels for block in blocks]

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        """x [B, N, C] -> [B, N, C], before down-sampling."""
        dtype = accumulation_dtype(x.dtype)
        widths = sorted(set(self.rotary_channels))
        tables = {channels: rotary_tables(grid, channels, x.device, dtype) for channels in widths}
        for block, channels in zip(self.blocks, self.rotary_channels, strict=True):
            x = run_block(block, self.with_cp, x, grid, tables[channels])
        return x


@MODELS.register_module()
class PolaFormerPP(Backbone):
    """PolaFormer++ as a feature pyramid. Common arguments are those of `Backbone`.

    Args:
        arch: 'b0' ... 'b5', or dict(embed_dims, depths, num_heads, mlp_ratios, layer_scale, layer_scale_init), four
            entries each: `layer_scale` tells which stages have it, `layer_scale_init` where it starts.
        attn_types: per stage 'L' (linear, whole map) or 'S' (softmax, whole map), or a letter per block.
        in_channels: channels of the image.
        pretrain_img_size: not used, positions are computed; here because every backbone takes it.
        drop_rate: dropout on tokens, projections and MLPs.
        drop_path_rate: stochastic depth of the last block, rising linearly from 0; None: the paper's for `arch`.
        out_indices, out_norm, frozen_stages, norm_eval, with_cp, init_cfg: see `Backbone`. Frozen stages keep their
            BatchNorm layers in eval mode.
        backend: of `mmpola.ops.polarity_attention` and `mix_and_gate`.

    Raises:
        ValueError: an argument breaks its rule; the message names it.
    """

    def __init__(
        self,
        arch: str | dict[str, Any] = 'b2',
        *,
        attn_types: AttnTypes = 'LLSS',
        pretrain_img_size: int | tuple[int, int] = 224,
        drop_rate: float = 0.0,
        drop_path_rate: float | None = None,
        out_norm: bool = True,
        backend: str = 'auto',
        **common: Any,
    ) -> None:
        keys = ('embed_dims', 'depths', 'num_heads', 'mlp_ratios', 'layer_scale', 'layer_scale_init')
        settings = resolve_arch(arch, ARCHS, keys=keys)
        embed_dims, depths, num_heads = settings['embed_dims'], settings['depths'], settings['num_heads']
        check_heads(embed_dims, num_heads)
        _check_rotary(embed_dims, num_heads)
        super().__init__(
            embed_dims,
            out_norm=out_norm,
            norm_eps=NORM_EPS,
            **common,
        )
        if drop_path_rate is None:
            drop_path_rate = settings.get('drop_path_rate', 0.0)
        paths = drop_path_rates(drop_path_rate, depths)
        types = block_types(attn_types, depths)

        def build_block(stage: int, letter: str) -> PolaFormerPPBlock:
            dim, heads = embed_dims[stage], num_heads[stage]
            attn: SpikyAttention | RotarySoftmaxAttention
            if letter == 'S':
                attn = RotarySoftmaxAttention(dim, heads, drop=drop_rate, backend=backend)
            else:
                attn = SpikyAttention(dim, heads, drop=drop_rate, backend=backend)
            scale = settings['layer_scale_init'][stage] if settings['layer_scale'][stage] else None
            return PolaFormerPPBlock(attn, dim, settings['mlp_ratios'][stage], drop_rate, next(paths), scale)

        self.patch_embed = Stem(self.in_channels, embed_dims[0])
        self.pos_drop = nn.Dropout(drop_rate)
        self.layers = nn.ModuleList()
        for stage in range(self.num_stages):
            last = stage + 1 == self.num_stages
            downsample = None if last else Downsample(embed_dims[stage], embed_dims[stage + 1])
            blocks = [build_block(stage, letter) for letter in types[stage]]
            self.layers.append(PolaFormerPPStage(blocks, downsample, self.with_cp))
        self._finish()

    def stage_maps(self, x: Tensor) -> Iterator[tuple[Tensor, Grid]]:
        maps = self.pos_drop(self.patch_embed(x))
        for stage in self.layers:
            grid = (maps.shape[2], maps.shape[3])
            tokens = stage(maps.flatten(2).transpose(1, 2).contiguous(), grid)
            yield tokens, grid
            if isinstance(stage, PolaFormerPPStage) and stage.downsample is not None:
                maps = stage.downsample(tokens.transpose(1, 2).unflatten(2, grid))

    def stage_modules(self, stage: int) -> list[nn.Module | nn.Parameter]:
        return [self.patch_embed] if stage == 0 else [self.layers[stage - 1]]


def _named_norm(dim: int) -> nn.Sequential:
    """A LayerNorm under the name `norm`, as the released weights have it."""
    return nn.Sequential(OrderedDict(norm=nn.LayerNorm(dim, eps=NORM_EPS)))


def _scaled(x: Tensor, gamma: Tensor | None) -> Tensor:
    """[B, N, C] times gamma [1, C, 1, 1]; unchanged without one."""
    return x if gamma is None else x * gamma.flatten()


def _check_rotary(embed_dims: Sequence[int], num_heads: Sequence[int]) -> None:
    for dim, heads in zip(embed_dims, num_heads, strict=True):
        if dim // heads % 4:
            raise ValueError(
                'num_heads: expected a head dimension that is a multiple of 4 (rotary pairs of rows and of columns), '
                f'got {dim} // {heads} = {dim // heads}'
            )
