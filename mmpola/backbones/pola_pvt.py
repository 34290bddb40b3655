"""Pola-PVT: Pyramid Vision Transformer with linear polarity-aware attention over all tokens.

Source: PolaFormer: Polarity-aware Linear Attention for Vision Transformers (ICLR 2025), section 4;
block layout from Pyramid Vision Transformer (ICCV 2021).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from mmpola.backbones.base import Backbone, Stage
from mmpola.backbones.pyramid import (
    AttnTypes,
    StageSpec,
    check_rate,
    check_ratios,
    resolve_arch,
    stage_specs,
)
from mmpola.backbones.weight_names import POLA_PVT
from mmpola.checkpoint.init_cfg import InitCfg
from mmpola.layers import PatchEmbed, PolaAttention, SpatialReductionAttention, TransformerBlock
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
) -> PolaAttention | SpatialReductionAttention:
    """Build the attention layer of a block of PVT or PVT v2.

    Args:
        attn_type: 'L' linear attention, or 'S' softmax attention.
        spec: the block's stage.
        pola_sr_ratios, softmax_sr_ratios: per stage, the stride at which linear or softmax
            attention reduces its keys and values.
        qkv_bias: bias of the projections.
        drop: dropout rate after the output projection.
        pola: `alpha`, `dwc_kernel_size` and `backend` of linear attention.
    """
    shared: dict[str, Any] = {'qkv_bias': qkv_bias, 'drop': drop}
    if attn_type == 'S':
        return SpatialReductionAttention(
            spec.dim, spec.num_heads, sr_ratio=softmax_sr_ratios[spec.index], **shared
        )
    sr_ratio = pola_sr_ratios[spec.index]
    return PolaAttention(
        spec.dim, spec.num_heads, grid=spec.grid, sr_ratio=sr_ratio, joint=False, **shared, **pola
    )


@MODELS.register_module()
class PolaPVT(Backbone):
    """Pola-PVT as a feature pyramid. Arguments that are not described here are those of `Backbone`.

    Position tables are resized from their own stage's training grid whenever the input's grid
    differs from it. Images, and maps between stages, are padded with zeros below and on the right
    where patches do not divide them.

    Args:
        arch: 'tiny', 'small', 'medium', 'large', or dict(embed_dims, depths, num_heads,
            mlp_ratios), four entries each.
        attn_types: per stage 'L' (linear, all tokens) or 'S' (softmax, reduced keys), or a letter
            per block.
        pola_sr_ratios: per stage, the stride at which linear attention reduces its keys and values
            (1 in all released models).
        softmax_sr_ratios: the same for softmax attention.
        alpha: exponents lie in (1, 1 + alpha) (E5).
        dwc_kernel_size: side of the depth-wise convolution on values (E14).
        qkv_bias: bias of the projections in attention.
        in_channels: channels of the image.
        pretrain_img_size: side of the training images in pixels, or (height, width): the grid of
            the position tables.
        drop_rate: dropout rate on tokens, projections and MLPs.
        drop_path_rate: stochastic depth rate of the last block, rising linearly from 0; None: the
            authors' for `arch`.
        out_indices, out_norm, frozen_stages, norm_eval, with_cp, init_cfg: see `Backbone`.
        backend: backend of `mmpola.ops.polarity_attention` and `mix_and_gate`.

    Raises:
        ValueError: an argument is invalid; the message names it.
    """

    released_names = POLA_PVT

    def __init__(
        self,
        arch: str | dict[str, Any] = 'tiny',
        *,
        attn_types: AttnTypes = 'LLLL',
        pola_sr_ratios: Sequence[int] = (1, 1, 1, 1),
        softmax_sr_ratios: Sequence[int] = (8, 4, 2, 1),
        alpha: float = 4,
        dwc_kernel_size: int = 5,
        qkv_bias: bool = True,
        in_channels: int = 3,
        pretrain_img_size: int | tuple[int, int] = 224,
        drop_rate: float = 0.0,
        drop_path_rate: float | None = None,
        out_indices: Sequence[int] = (0, 1, 2, 3),
        out_norm: bool = False,
        frozen_stages: int = -1,
        norm_eval: bool = False,
        with_cp: bool = False,
        backend: str = 'auto',
        init_cfg: InitCfg = None,
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
            dwc_kernel_size=dwc_kernel_size,
            backend=backend,
        )
        make_block = partial(TransformerBlock, norm_eps=NORM_EPS, drop=drop_rate)

        stem = PatchEmbed(in_channels, settings['embed_dims'][0], 4)
        stages: list[Stage] = []
        for spec in specs:
            downsample = (
                PatchEmbed(settings['embed_dims'][spec.index - 1], spec.dim, 2) if stages else None
            )
            blocks = [
                make_block(attention(attn_type, spec), spec.dim, spec.mlp_ratio, drop_path=rate)
                for attn_type, rate in spec.blocks
            ]
            stages.append(Stage(blocks, downsample, spec.grid, table=spec.dim, drop=drop_rate))
        super().__init__(
            stem,
            stages,
            embed_dims=settings['embed_dims'],
            in_channels=in_channels,
            out_indices=out_indices,
            out_norm=out_norm,
            norm_eps=NORM_EPS,
            frozen_stages=frozen_stages,
            norm_eval=norm_eval,
            with_cp=with_cp,
            init_cfg=init_cfg,
        )
