"""Pola-PVT: Pyramid Vision Transformer with linear polarity-aware attention over the whole map.

Source: PolaFormer: Polarity-aware Linear Attention for Vision Transformers (ICLR 2025), table 1 and section 4;
block layout from Pyramid Vision Transformer (ICCV 2021). Parameter names are those of the released weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
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
from mmpola.layers import (
    Grid,
    PatchEmbed,
    ReducedPolaAttention,
    SpatialReductionAttention,
    TransformerBlock,
    resize_table,
)
from mmpola.registry import MODELS

_WIDTHS = {'embed_dims': (64, 128, 320, 512), 'num_heads': (1, 2, 5, 8), 'mlp_ratios': (8, 8, 4, 4)}
ARCHS: dict[str, dict[str, Any]] = {
    'tiny': {**_WIDTHS, 'depths': (2, 2, 2, 2), 'drop_path_rate': 0.1},
    'small': {**_WIDTHS, 'depths': (3, 4, 6, 3), 'drop_path_rate': 0.1},
    'medium': {**_WIDTHS, 'depths': (3, 4, 18, 3), 'drop_path_rate': 0.3},
    'large': {**_WIDTHS, 'depths': (3, 8, 27, 3), 'drop_path_rate': 0.3},
}
NORM_EPS = 1e-6
"""Of the blocks' norms; those of patch embeddings and of reduced keys keep PyTorch's 1e-5."""


def pvt_attention(
    letter: str,
    dim: int,
    num_heads: int,
    grid: Grid,
    *,
    softmax_sr_ratio: int,
    qkv_bias: bool,
    drop: float,
    **pola: Any,
) -> ReducedPolaAttention | SpatialReductionAttention:
    """The attention that `letter` stands for in a PVT: 'S' softmax over reduced keys, 'L' linear (`pola`)."""
    if letter == 'S':
        return SpatialReductionAttention(dim, num_heads, sr_ratio=softmax_sr_ratio, qkv_bias=qkv_bias, drop=drop)
    return ReducedPolaAttention(dim, num_heads, grid, qkv_bias=qkv_bias, drop=drop, **pola)


@MODELS.register_module()
class PolaPVT(Backbone):
    """Pola-PVT as a feature pyramid. Common arguments are those of `Backbone`.

    Position tables are resized from their own stage's training grid whenever the grid at hand differs from it. Images,
    and maps between stages, that patches do not divide are padded with zeros below and on the right.

    Args:
        arch: 'tiny', 'small', 'medium', 'large', or dict(embed_dims, depths, num_heads, mlp_ratios), four entries each.
        attn_types: per stage 'L' (linear, whole map) or 'S' (softmax, reduced keys), or a letter per block.
        pola_sr_ratios: per stage the stride at which linear blocks take keys and values (1 in all released models).
        softmax_sr_ratios: per stage the stride at which softmax blocks do.
        alpha: exponents lie in (1, 1 + alpha) (E5).
        kernel_size: of the depth-wise convolution on values (E14).
        qkv_bias: bias of the projections in attention.
        in_channels: channels of the image.
        pretrain_img_size: side of the training images in pixels, or (height, width): the grid of the position tables.
        drop_rate: dropout on tokens, projections and MLPs.
        drop_path_rate: stochastic depth of the last block, rising linearly from 0; None: the paper's for `arch`.
        out_indices, out_norm, norm_eval, with_cp, init_cfg: see `Backbone`.
        frozen_stages: -1 nothing, 0 patch_embed1, i also what bears the numbers 1 ... i: patch_embed, pos_embed, block
            and the output norm.
        backend: of `mmpola.ops.polarity_attention` and `mix_and_gate`.

    Raises:
        ValueError: an argument breaks its rule; the message names it.
    """

    patch_embed1: PatchEmbed

    def __init__(
        self,
        arch: str | dict[str, Any] = 'tiny',
        *,
        attn_types: AttnTypes = 'LLLL',
        pola_sr_ratios: Sequence[int] = (1, 1, 1, 1),
        softmax_sr_ratios: Sequence[int] = (8, 4, 2, 1),
        alpha: float = 4,
        kernel_size: int = 5,
        qkv_bias: bool = True,
        pretrain_img_size: int | tuple[int, int] = 224,
        drop_rate: float = 0.0,
        drop_path_rate: float | None = None,
        out_norm: bool = False,
        backend: str = 'auto',
        **common: Any,
    ) -> None:
        settings = resolve_arch(arch, ARCHS, keys=('embed_dims', 'depths', 'num_heads', 'mlp_ratios'))
        embed_dims, depths, num_heads = settings['embed_dims'], settings['depths'], settings['num_heads']
        check_heads(embed_dims, num_heads)
        check_ratios('pola_sr_ratios', pola_sr_ratios)
        check_ratios('softmax_sr_ratios', softmax_sr_ratios)
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
        self.grids = stage_grids(pretrain_img_size)

        shared: dict[str, Any] = {'qkv_bias': qkv_bias, 'drop': drop_rate, 'alpha': alpha, 'kernel_size': kernel_size}
        self.pos_drop = nn.Dropout(drop_rate)
        for stage in range(self.num_stages):
            number, dim, (rows, columns) = stage + 1, embed_dims[stage], self.grids[stage]
            embed = PatchEmbed(embed_dims[stage - 1], dim, 2) if stage else PatchEmbed(self.in_channels, dim, 4)
            attention = partial(
                pvt_attention,
                dim=dim,
                num_heads=num_heads[stage],
                grid=self.grids[stage],
                softmax_sr_ratio=softmax_sr_ratios[stage],
                sr_ratio=pola_sr_ratios[stage],
                backend=backend,
                **shared,
            )
            blocks = [
                TransformerBlock(
                    attention(letter=letter),
                    dim,
                    settings['mlp_ratios'][stage],
                    norm_eps=NORM_EPS,
                    drop=drop_rate,
                    path=next(paths),
                )
                for letter in types[stage]
            ]
            self.add_module(f'patch_embed{number}', embed)
            self.register_parameter(f'pos_embed{number}', nn.Parameter(torch.zeros(1, rows * columns, dim)))
            self.add_module(f'block{number}', nn.ModuleList(blocks))
        self._finish()

    def stage_maps(self, x: Tensor) -> Iterator[tuple[Tensor, Grid]]:
        for number, trained in enumerate(self.grids[: self.num_stages], 1):
            tokens, grid = getattr(self, f'patch_embed{number}')(x)
            tokens = self.pos_drop(tokens + resize_table(getattr(self, f'pos_embed{number}'), trained, grid))
            for block in getattr(self, f'block{number}'):
                tokens = run_block(block, self.with_cp, tokens, grid)
            yield tokens, grid
            x = tokens.transpose(1, 2).unflatten(2, grid)

    def stage_modules(self, stage: int) -> list[nn.Module | nn.Parameter]:
        if stage == 0:
            return [self.patch_embed1]
        names = ('patch_embed', 'pos_embed', 'block') if stage > 1 else ('pos_embed', 'block')
        return [getattr(self, f'{name}{stage}') for name in names]

    def position_tables(self) -> dict[str, Grid]:
        inputs = {f'pos_embed{stage + 1}': self.grids[stage] for stage in range(self.num_stages)}
        return inputs | super().position_tables()
