"""Pola-PVTv2: PVT v2 with linear polarity-aware attention over the whole map.

Source: PolaFormer: Polarity-aware Linear Attention for Vision Transformers (ICLR 2025), table 1 (b0, b1); block layout
and parameter names from PVT v2 (Computational Visual Media, 2022). No weights of these models were published.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch.nn.functional as F
from timm.layers import DropPath
from torch import Tensor, nn

from mmpola.backbones.base import (
    AttnTypes,
    Backbone,
    block_types,
    check_heads,
    check_ratios,
    drop_path_rates,
    resolve_arch,
    run_block,
    stage_grids,
)
from mmpola.backbones.pola_pvt import pvt_attention
from mmpola.layers import Grid, ReducedPolaAttention, SpatialReductionAttention
from mmpola.ops.reference import convolve_tokens
from mmpola.registry import MODELS


def _arch(
    depths: Sequence[int],
    drop_path_rate: float,
    embed_dims: Sequence[int] = (64, 128, 320, 512),
    mlp_ratios: Sequence[int] = (8, 8, 4, 4),
) -> dict[str, Any]:
    return {
        'embed_dims': embed_dims,
        'depths': depths,
        'num_heads': (1, 2, 5, 8),
        'mlp_ratios': mlp_ratios,
        'drop_path_rate': drop_path_rate,
    }


ARCHS: dict[str, dict[str, Any]] = {
    'b0': _arch((2, 2, 2, 2), 0.1, embed_dims=(32, 64, 160, 256)),
    'b1': _arch((2, 2, 2, 2), 0.1),
    'b2': _arch((3, 4, 6, 3), 0.1),
    'b3': _arch((3, 4, 18, 3), 0.3),
    'b4': _arch((3, 8, 27, 3), 0.3),
    'b5': _arch((3, 6, 40, 3), 0.3, mlp_ratios=(4, 4, 4, 4)),
}
NORM_EPS = 1e-6
"""Of the blocks' and stages' norms; those of patch embeddings and of reduced keys keep PyTorch's 1e-5."""


class OverlapPatchEmbed(nn.Module):
    """[B, in_channels, H, W] -> tokens [B, N, C] and their grid (ceil(H / stride), ceil(W / stride))."""

    def __init__(self, in_channels: int, dim: int, patch_size: int, stride: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(in_channels, dim, patch_size, stride, padding=patch_size // 2)
        self.norm = nn.LayerNorm(dim)
        _draw(self.proj)

    def forward(self, x: Tensor) -> tuple[Tensor, Grid]:
        x = self.proj(x)
        return self.norm(x.flatten(2).transpose(1, 2)), (x.shape[2], x.shape[3])


class DepthwiseMlp(nn.Module):
    """fc1, DWConv3x3, GELU, fc2 on tokens [B, N, C]."""

    def __init__(self, dim: int, hidden: int, drop: float) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden)
        self.dwconv = nn.Conv2d(hidden, hidden, 3, padding=1, groups=hidden)
        self.fc2 = nn.Linear(hidden, dim)
        self.drop = nn.Dropout(drop)
        _draw(self.dwconv)

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        mixed = convolve_tokens(self.fc1(x), self.dwconv.weight, self.dwconv.bias, grid)
        x = self.drop(F.gelu(mixed))
        return self.drop(self.fc2(x))


class PvtV2Block(nn.Module):
    """x += attn(norm1(x)); x += mlp(norm2(x)), with linear or spatial-reduction attention."""

    def __init__(
        self,
        attn: ReducedPolaAttention | SpatialReductionAttention,
        dim: int,
        mlp_ratio: float,
        drop: float,
        path: float,
    ) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, eps=NORM_EPS)
        self.attn = attn
        self.norm2 = nn.LayerNorm(dim, eps=NORM_EPS)
        self.mlp = DepthwiseMlp(dim, int(dim * mlp_ratio), drop)
        self.drop_path = DropPath(path)

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        """x [B, N, C] on the token grid -> [B, N, C]."""
        x = x + self.drop_path(self.attn(self.norm1(x), grid))
        return x + self.drop_path(self.mlp(self.norm2(x), grid))


@MODELS.register_module()
class PolaPVTv2(Backbone):
    """Pola-PVTv2 as a feature pyramid. Common arguments are those of `Backbone`.

    No table is added to the input: convolutions see the padding, and linear attention has its key table. A stage ends
    with the LayerNorm of PVT v2, `norm1` ... `norm4`, which the next stage reads. The same norms serve `out_norm`.

    Args:
        arch: 'b0' ... 'b5', or dict(embed_dims, depths, num_heads, mlp_ratios), four entries each.
        attn_types: per stage 'L' (linear, whole map) or 'S' (softmax, reduced keys), or a letter per block.
        softmax_sr_ratios: per stage the stride at which softmax blocks take keys and values.
        alpha: exponents lie in (1, 1 + alpha) (E5).
        kernel_size: of the depth-wise convolution on values (E14).
        qkv_bias: bias of the projections in attention.
        in_channels: channels of the image.
        pretrain_img_size: side of the training images in pixels, or (height, width): the grid of the key tables.
        drop_rate: dropout on projections and MLPs.
        drop_path_rate: stochastic depth of the last block, rising linearly from 0; None: PVT v2's for `arch`.
        out_norm: return maps after their stage's norm, as PVT v2 does; False: before it, and the last stage has none.
        out_indices, norm_eval, with_cp, init_cfg: see `Backbone`.
        frozen_stages: -1 nothing, 0 patch_embed1, i also what bears the numbers 1 ... i: patch_embed, block and norm.
        backend: of `mmpola.ops.polarity_attention` and `mix_and_gate`.

    Raises:
        ValueError: an argument breaks its rule; the message names it.
    """

    patch_embed1: OverlapPatchEmbed

    def __init__(
        self,
        arch: str | dict[str, Any] = 'b1',
        *,
        attn_types: AttnTypes = 'LLLL',
        softmax_sr_ratios: Sequence[int] = (8, 4, 2, 1),
        alpha: float = 4,
        kernel_size: int = 5,
        qkv_bias: bool = True,
        pretrain_img_size: int | tuple[int, int] = 224,
        drop_rate: float = 0.0,
        drop_path_rate: float | None = None,
        out_norm: bool = True,
        backend: str = 'auto',
        **common: Any,
    ) -> None:
        settings = resolve_arch(arch, ARCHS, keys=('embed_dims', 'depths', 'num_heads', 'mlp_ratios'))
        embed_dims, depths, num_heads = settings['embed_dims'], settings['depths'], settings['num_heads']
        check_heads(embed_dims, num_heads)
        check_ratios('softmax_sr_ratios', softmax_sr_ratios)
        super().__init__(
            embed_dims,
            out_norm=False,
            norm_eps=NORM_EPS,
            **common,
        )
        if drop_path_rate is None:
            drop_path_rate = settings.get('drop_path_rate', 0.0)
        paths = drop_path_rates(drop_path_rate, depths)
        types, grids = block_types(attn_types, depths), stage_grids(pretrain_img_size)
        self.out_norm = out_norm

        shared: dict[str, Any] = {'qkv_bias': qkv_bias, 'drop': drop_rate, 'alpha': alpha, 'kernel_size': kernel_size}
        for stage in range(self.num_stages):
            number, dim = stage + 1, embed_dims[stage]
            before, patch_size, stride = (embed_dims[stage - 1], 3, 2) if stage else (self.in_channels, 7, 4)
            attention = partial(
                pvt_attention,
                dim=dim,
                num_heads=num_heads[stage],
                grid=grids[stage],
                softmax_sr_ratio=softmax_sr_ratios[stage],
                backend=backend,
                **shared,
            )
            blocks = [
                PvtV2Block(attention(letter=letter), dim, settings['mlp_ratios'][stage], drop_rate, next(paths))
                for letter in types[stage]
            ]
            self.add_module(f'patch_embed{number}', OverlapPatchEmbed(before, dim, patch_size, stride))
            self.add_module(f'block{number}', nn.ModuleList(blocks))
            if number < self.num_stages or out_norm:
                self.add_module(f'norm{number}', nn.LayerNorm(dim, eps=NORM_EPS))
        self._finish()

    def stage_maps(self, x: Tensor) -> Iterator[tuple[Tensor, Grid]]:
        for number in range(1, self.num_stages + 1):
            tokens, grid = getattr(self, f'patch_embed{number}')(x)
            for block in getattr(self, f'block{number}'):
                tokens = run_block(block, self.with_cp, tokens, grid)
            norm = getattr(self, f'norm{number}', None)
            normed = tokens if norm is None else norm(tokens)
            yield (normed if self.out_norm else tokens), grid
            x = normed.transpose(1, 2).unflatten(2, grid)

    def stage_modules(self, stage: int) -> list[nn.Module | nn.Parameter]:
        if stage == 0:
            return [self.patch_embed1]
        names = ('patch_embed', 'block', 'norm') if stage > 1 else ('block', 'norm')
        return [getattr(self, f'{name}{stage}') for name in names if hasattr(self, f'{name}{stage}')]

    def output_norm(self, index: int) -> nn.Module | None:
        return None  # `norm1` ... `norm4` are parts of their stages

    def fresh_prefixes(self) -> tuple[str, ...]:
        return ()


def _draw(conv: nn.Conv2d) -> None:
    """PVT v2's weights of a convolution: normal, variance 2 / fan-out."""
    fan_out = math.prod(conv.kernel_size) * conv.out_channels / conv.groups
    nn.init.normal_(conv.weight, std=math.sqrt(2 / fan_out))
    if conv.bias is not None:
        nn.init.zeros_(conv.bias)
