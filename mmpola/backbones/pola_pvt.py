"""Pola-PVT: Pyramid Vision Transformer with linear polarity-aware attention over all tokens.

Source: PolaFormer: Polarity-aware Linear Attention for Vision Transformers (ICLR 2025), section 4;
block layout from Pyramid Vision Transformer (ICCV 2021).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from mmpola.backbones.arguments import (
    STRIDES,
    AttnTypes,
    block_types,
    check_heads,
    check_rate,
    check_sr_ratios,
    drop_path_rates,
    resolve_arch,
    token_grid,
)
from mmpola.backbones.base import Backbone, Stage
from mmpola.backbones.weight_names import POLA_PVT
from mmpola.checkpoint.init_cfg import InitCfg
from mmpola.layers import (
    PatchEmbed,
    PolaSpatialReductionAttention,
    SpatialReductionAttention,
    TransformerBlock,
)

ARCHS: dict[str, dict[str, Any]] = {
    'nano': {  # ours: small photographs on a CPU
        'embed_dims': (32, 64, 128, 256),
        'depths': (1, 1, 2, 1),
        'num_heads': (1, 2, 4, 8),
        'mlp_ratios': (4, 4, 3, 2),
        'drop_path_rate': 0.0,
    },
    'tiny': {
        'embed_dims': (64, 128, 320, 512),
        'depths': (2, 2, 2, 2),
        'num_heads': (1, 2, 5, 8),
        'mlp_ratios': (8, 8, 4, 4),
        'drop_path_rate': 0.1,
    },
    'small': {
        'embed_dims': (64, 128, 320, 512),
        'depths': (3, 4, 6, 3),
        'num_heads': (1, 2, 5, 8),
        'mlp_ratios': (8, 8, 4, 4),
        'drop_path_rate': 0.1,
    },
    'medium': {
        'embed_dims': (64, 128, 320, 512),
        'depths': (3, 4, 18, 3),
        'num_heads': (1, 2, 5, 8),
        'mlp_ratios': (8, 8, 4, 4),
        'drop_path_rate': 0.3,
    },
    'large': {
        'embed_dims': (64, 128, 320, 512),
        'depths': (3, 8, 27, 3),
        'num_heads': (1, 2, 5, 8),
        'mlp_ratios': (8, 8, 4, 4),
        'drop_path_rate': 0.3,
    },
}
ARCH_KEYS = ('embed_dims', 'depths', 'num_heads', 'mlp_ratios')
NORM_EPS = 1e-6
"""Epsilon of the blocks' norms; patch embeddings and reduced keys have PyTorch's 1e-5."""


class PolaPVT(Backbone):
    """Pola-PVT as a feature pyramid; `Backbone` describes the other arguments.

    A stage's position tables are resized whenever the grid of its tokens is not the training grid.
    Images, and maps between stages, are padded with zeros below and on the right where patches do
    not divide them.

    Args:
        arch: 'nano' (ours), 'tiny', 'small', 'medium', 'large', or dict(embed_dims, depths,
            num_heads, mlp_ratios), four entries each.
        attn_types: per stage 'L' (linear, all tokens) or 'S' (softmax, reduced keys), or a letter
            per block.
        pola_sr_ratios: per stage, the stride at which linear attention reduces its keys and values
            (1 in all released models).
        softmax_sr_ratios: the same for softmax attention.
        alpha: exponents lie in (1, 1 + alpha) (E5).
        dwc_kernel_size: side of the depth-wise convolution on values (E14).
        gate_init: how the gates of linear attention start: 'authors', or 'open' (weight 0, bias
            1), see `mmpola.layers.LinearAttention`.
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
        gate_init: str = 'authors',
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
        check_sr_ratios('pola_sr_ratios', pola_sr_ratios)
        check_sr_ratios('softmax_sr_ratios', softmax_sr_ratios)
        settings = resolve_arch(arch, ARCHS, keys=ARCH_KEYS)
        embed_dims = settings['embed_dims']
        depths = settings['depths']
        num_heads = settings['num_heads']
        check_heads(embed_dims, num_heads)
        super().__init__(
            embed_dims=embed_dims,
            in_channels=in_channels,
            out_indices=out_indices,
            out_norm=out_norm,
            frozen_stages=frozen_stages,
            norm_eval=norm_eval,
            with_cp=with_cp,
            init_cfg=init_cfg,
        )
        letters = block_types(attn_types, depths)
        if drop_path_rate is None:
            drop_path_rate = settings.get('drop_path_rate', 0.0)
        rates = drop_path_rates(drop_path_rate, depths)

        self.stem = PatchEmbed(in_channels, embed_dims[0], 4)
        self.stages = nn.ModuleList()
        for index in range(out_indices[-1] + 1):
            dim = embed_dims[index]
            grid = token_grid(pretrain_img_size, STRIDES[index])
            downsample = None
            if index > 0:
                downsample = PatchEmbed(embed_dims[index - 1], dim, 2)
            blocks = []
            for number in range(depths[index]):
                attn: nn.Module
                if letters[index][number] == 'S':
                    attn = SpatialReductionAttention(
                        dim,
                        num_heads[index],
                        sr_ratio=softmax_sr_ratios[index],
                        qkv_bias=qkv_bias,
                        proj_drop=drop_rate,
                    )
                else:
                    attn = PolaSpatialReductionAttention(
                        dim,
                        num_heads[index],
                        grid=grid,
                        sr_ratio=pola_sr_ratios[index],
                        alpha=alpha,
                        dwc_kernel_size=dwc_kernel_size,
                        gate_init=gate_init,
                        qkv_bias=qkv_bias,
                        proj_drop=drop_rate,
                        backend=backend,
                    )
                block = TransformerBlock(
                    attn,
                    dim,
                    settings['mlp_ratios'][index],
                    norm_eps=NORM_EPS,
                    drop=drop_rate,
                    drop_path=rates[index][number],
                )
                blocks.append(block)
            self.stages.append(Stage(blocks, downsample, grid, table=dim, drop=drop_rate))
        self.add_output_norms(NORM_EPS)
        self.freeze_stages()
