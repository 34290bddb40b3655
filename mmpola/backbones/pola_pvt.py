"""Pola-PVT: Pyramid Vision Transformer with linear polarity-aware attention over all tokens.

Source: PolaFormer: Polarity-aware Linear Attention for Vision Transformers (ICLR 2025), table 1 and section 4;
block layout from Pyramid Vision Transformer (ICCV 2021). Parameter names are those of the released weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from mmpola.backbones.arch import AttnTypes, StageSpec, check_rate, check_ratios, resolve_arch, stage_specs
from mmpola.backbones.base import Backbone, run_block
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
ARCH_KEYS = ('embed_dims', 'depths', 'num_heads', 'mlp_ratios')
NORM_EPS = 1e-6
"""Epsilon of the blocks' norms; those of patch embeddings and of reduced keys keep PyTorch's 1e-5."""


def pvt_attention(
    attn_type: str,
    spec: StageSpec,
    *,
    pola_sr_ratios: Sequence[int],
    softmax_sr_ratios: Sequence[int],
    qkv_bias: bool,
    drop: float,
    **pola: Any,
) -> ReducedPolaAttention | SpatialReductionAttention:
    """Build the attention layer of a block of PVT or PVT v2.

    Args:
        attn_type: 'L' linear attention, or 'S' softmax attention.
        spec: the block's stage.
        pola_sr_ratios, softmax_sr_ratios: per stage, the stride at which linear or softmax attention reduces its keys
            and values.
        qkv_bias: bias of the projections.
        drop: dropout rate after the output projection.
        pola: `alpha`, `kernel_size` and `backend` of linear attention.
    """
    shared: dict[str, Any] = {'qkv_bias': qkv_bias, 'drop': drop}
    if attn_type == 'S':
        return SpatialReductionAttention(spec.dim, spec.num_heads, sr_ratio=softmax_sr_ratios[spec.index], **shared)
    sr_ratio = pola_sr_ratios[spec.index]
    return ReducedPolaAttention(spec.dim, spec.num_heads, spec.grid, sr_ratio=sr_ratio, **shared, **pola)


def pvt_stage_parts(parts: Iterable[str], stages: int) -> list[list[str]]:
    """Return the `stage_parts` of a PVT: `patch_embed1`, then per stage all other names that end with its number."""
    groups = [[name for name in parts if name.endswith(str(number))] for number in range(1, stages + 1)]
    groups[0].remove('patch_embed1')
    return [['patch_embed1'], *groups]


@MODELS.register_module()
class PolaPVT(Backbone):
    """Pola-PVT as a feature pyramid. Arguments that are not described here are those of `Backbone`.

    Position tables are resized from their own stage's training grid whenever the input's grid differs from it. Images,
    and maps between stages, are padded with zeros below and on the right where patches do not divide them.

    Args:
        arch: 'tiny', 'small', 'medium', 'large', or dict(embed_dims, depths, num_heads, mlp_ratios), four entries each.
        attn_types: per stage 'L' (linear, all tokens) or 'S' (softmax, reduced keys), or a letter per block.
        pola_sr_ratios: per stage, the stride at which linear attention reduces its keys and values (1 in all released
            models).
        softmax_sr_ratios: the same for softmax attention.
        alpha: exponents lie in (1, 1 + alpha) (E5).
        kernel_size: side of the depth-wise convolution on values (E14).
        qkv_bias: bias of the projections in attention.
        in_channels: channels of the image.
        pretrain_img_size: side of the training images in pixels, or (height, width): the grid of the position tables.
        drop_rate: dropout rate on tokens, projections and MLPs.
        drop_path_rate: stochastic depth rate of the last block, rising linearly from 0; None: the paper's for `arch`.
        out_indices, out_norm, norm_eval, with_cp, init_cfg: see `Backbone`.
        frozen_stages: -1 freezes nothing, 0 patch_embed1, i also the patch_embed, pos_embed, block and output norm of
            stages 1 ... i.
        backend: backend of `mmpola.ops.polarity_attention` and `mix_and_gate`.

    Raises:
        ValueError: an argument is invalid; the message names it.
    """

    first_conv = 'patch_embed1.proj'

    patch_embed1: PatchEmbed
    pos_embed1: nn.Parameter
    pos_drop: nn.Dropout
    block1: nn.ModuleList

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
        in_channels: int = 3,
        pretrain_img_size: int | tuple[int, int] = 224,
        drop_rate: float = 0.0,
        drop_path_rate: float | None = None,
        out_indices: Sequence[int] = (0, 1, 2, 3),
        out_norm: bool = False,
        backend: str = 'auto',
        **common: Any,
    ) -> None:
        check_rate('drop_rate', drop_rate)
        check_ratios('pola_sr_ratios', pola_sr_ratios)
        check_ratios('softmax_sr_ratios', softmax_sr_ratios)
        settings = resolve_arch(arch, ARCHS, keys=ARCH_KEYS)
        specs = stage_specs(settings, attn_types, out_indices, pretrain_img_size, drop_path_rate)
        attention = partial(
            pvt_attention,
            pola_sr_ratios=pola_sr_ratios,
            softmax_sr_ratios=softmax_sr_ratios,
            qkv_bias=qkv_bias,
            drop=drop_rate,
            alpha=alpha,
            kernel_size=kernel_size,
            backend=backend,
        )
        make_block = partial(TransformerBlock, norm_eps=NORM_EPS, drop=drop_rate)

        parts: dict[str, nn.Module | nn.Parameter] = {'pos_drop': nn.Dropout(drop_rate)}
        channels, patch_size = in_channels, 4
        for spec in specs:
            number, dim, (rows, columns) = spec.index + 1, spec.dim, spec.grid
            parts[f'patch_embed{number}'] = PatchEmbed(channels, dim, patch_size)
            parts[f'pos_embed{number}'] = nn.Parameter(torch.zeros(1, rows * columns, dim))
            parts[f'block{number}'] = nn.ModuleList(
                make_block(attention(attn_type, spec), dim, spec.mlp_ratio, drop_path=rate)
                for attn_type, rate in spec.blocks
            )
            channels, patch_size = dim, 2
        super().__init__(
            parts,
            stage_parts=pvt_stage_parts(parts, len(specs)),
            embed_dims=settings['embed_dims'],
            table_grids={f'pos_embed{spec.index + 1}': spec.grid for spec in specs},
            in_channels=in_channels,
            out_indices=out_indices,
            out_norm=out_norm,
            norm_eps=NORM_EPS,
            **common,
        )

    def stage_maps(self, x: Tensor) -> Iterator[tuple[Tensor, Grid]]:
        for number in range(1, self.num_stages + 1):
            name = f'pos_embed{number}'
            tokens, grid = getattr(self, f'patch_embed{number}')(x)
            tokens = self.pos_drop(tokens + resize_table(getattr(self, name), self.table_grids[name], grid))
            for block in getattr(self, f'block{number}'):
                tokens = run_block(block, self.with_cp, tokens, grid)
            yield tokens, grid
            x = tokens.transpose(1, 2).unflatten(2, grid)

    def stage_module(self, stage: int) -> str:
        """Return the name of the module whose output is the tokens [B, N, C] of a built stage: its last block."""
        return f'block{stage + 1}.{len(getattr(self, f"block{stage + 1}")) - 1}'
