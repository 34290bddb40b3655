"""Pola-DeiT: DeiT with linear polarity-aware attention in every block, its ablations and its softmax baseline.

Source: PolaFormer: Polarity-aware Linear Attention for Vision Transformers (ICLR 2025), tables 1 (tiny) and 3; block
layout and parameter names from DeiT (ICML 2021). No weights of these models have been published.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
from timm.layers import trunc_normal_
from torch import Tensor, nn

from mmpola.backbones.arch import (
    block_types,
    check_heads,
    check_rate,
    drop_path_rates,
    resolve_arch,
    stages_to_build,
    token_grid,
)
from mmpola.backbones.base import Backbone, run_block
from mmpola.layers import Grid, PatchEmbed, PolaAttention, SpatialReductionAttention, TransformerBlock, resize_table
from mmpola.registry import MODELS

ARCHS: dict[str, dict[str, Any]] = {
    'tiny': {'embed_dims': 192, 'depth': 12, 'num_heads': 3},
    'small': {'embed_dims': 384, 'depth': 12, 'num_heads': 6},
    'base': {'embed_dims': 768, 'depth': 12, 'num_heads': 12},
}
ARCH_KEYS = ('embed_dims', 'depth', 'num_heads')
PATCH_SIZE = 16
NORM_EPS = 1e-6


@MODELS.register_module()
class PolaDeiT(Backbone):
    """Pola-DeiT without a class token. Arguments that are not described here are those of `Backbone`.

    Each block counts as a stage, of stride 16: there is one map [B, C, ceil(H / 16), ceil(W / 16)] per entry of
    `out_indices`.

    Args:
        arch: 'tiny', 'small', 'base', or dict(embed_dims: int, depth: int, num_heads: int).
        attn_types: 'L' (linear) or 'S' (softmax) for all blocks, or a letter per block.
        alpha: exponents lie in (1, 1 + alpha) (E5).
        kernel_size: side of the depth-wise convolution on values (E14).
        gate, mixing, polarity: ablations of the linear blocks, see `PowerAttention`.
        mlp_ratio: hidden channels of the MLP, as a multiple of C.
        qkv_bias: bias of the projections in attention.
        in_channels: channels of the image.
        pretrain_img_size: side of the training images in pixels, or (height, width): the grid of the position tables.
        drop_rate: dropout rate on tokens, projections and MLPs.
        drop_path_rate: stochastic depth rate of the last block, rising linearly from 0.
        out_indices: blocks to return, from 0, in ascending order; None: the last. Later blocks are not built.
        out_norm: whether to apply a LayerNorm to each output.
        frozen_stages: -1 freezes nothing, 0 patch_embed and pos_embed, i also blocks 1 ... i and their output norms.
        norm_eval, with_cp, init_cfg: see `Backbone`.
        backend: backend of `mmpola.ops.polarity_attention` and `mix_and_gate`.

    Raises:
        ValueError: an argument is invalid; the message names it.
    """

    patch_embed: PatchEmbed
    pos_embed: nn.Parameter
    pos_drop: nn.Dropout
    blocks: nn.ModuleList

    def __init__(
        self,
        arch: str | dict[str, Any] = 'tiny',
        *,
        attn_types: str = 'L',
        alpha: float = 4,
        kernel_size: int = 5,
        gate: bool = True,
        mixing: str | None = 'dwc',
        polarity: bool = True,
        mlp_ratio: float = 4.0,
        qkv_bias: bool = True,
        in_channels: int = 3,
        pretrain_img_size: int | tuple[int, int] = 224,
        drop_rate: float = 0.0,
        drop_path_rate: float = 0.1,
        out_indices: Sequence[int] | None = None,
        out_norm: bool = True,
        backend: str = 'auto',
        **common: Any,
    ) -> None:
        check_rate('drop_rate', drop_rate)
        settings = resolve_arch(arch, ARCHS, keys=ARCH_KEYS)
        dim, depth, heads = settings['embed_dims'], settings['depth'], settings['num_heads']
        check_heads((dim,), (heads,))
        if out_indices is None:
            out_indices = (depth - 1,)
        built = stages_to_build(out_indices, depth)
        grid = token_grid(pretrain_img_size, PATCH_SIZE)
        linear = partial(
            PolaAttention,
            qkv_bias=qkv_bias,
            alpha=alpha,
            kernel_size=kernel_size,
            gate=gate,
            mixing=mixing,
            polarity=polarity,
            drop=drop_rate,
            backend=backend,
        )
        softmax = partial(SpatialReductionAttention, qkv_bias=qkv_bias, drop=drop_rate)
        make_block = partial(TransformerBlock, norm_eps=NORM_EPS, drop=drop_rate)
        (types,) = block_types([attn_types], [depth])

        patch_embed = PatchEmbed(in_channels, dim, PATCH_SIZE, norm=False)
        pos_embed = nn.Parameter(trunc_normal_(torch.zeros(1, grid[0] * grid[1], dim), std=0.02))
        blocks = []
        for attn_type, rate in zip(types[:built], drop_path_rates(drop_path_rate, depth)[:built], strict=True):
            attn = softmax(dim, heads) if attn_type == 'S' else linear(dim, heads, grid)
            blocks.append(make_block(attn, dim, mlp_ratio, drop_path=rate))
        super().__init__(
            {
                'patch_embed': patch_embed,
                'pos_embed': pos_embed,
                'pos_drop': nn.Dropout(drop_rate),
                'blocks': nn.ModuleList(blocks),
            },
            stage_parts=[['patch_embed', 'pos_embed'], *([f'blocks.{block}'] for block in range(built))],
            embed_dims=(dim,) * depth,
            strides=(PATCH_SIZE,) * depth,
            table_grids={'pos_embed': grid},
            in_channels=in_channels,
            out_indices=out_indices,
            out_norm=out_norm,
            norm_eps=NORM_EPS,
            **common,
        )

    def stage_maps(self, x: Tensor) -> Iterator[tuple[Tensor, Grid]]:
        tokens, grid = self.patch_embed(x)
        tokens = self.pos_drop(tokens + resize_table(self.pos_embed, self.table_grids['pos_embed'], grid))
        for block in self.blocks:
            tokens = run_block(block, self.with_cp, tokens, grid)
            yield tokens, grid

    @classmethod
    def stage_count(cls, arch: str | dict[str, Any]) -> int:
        """Return the number of blocks of an `arch`, each of which counts as a stage."""
        depth: int = resolve_arch(arch, ARCHS, keys=ARCH_KEYS)['depth']
        return depth

    def stage_module(self, stage: int) -> str:
        """Return the name of a block."""
        return f'blocks.{stage}'

    def unbuilt_prefixes(self) -> tuple[str, ...]:
        """Return the names, in a full checkpoint, of the blocks that are not built."""
        return tuple(f'blocks.{block}.' for block in range(self.num_stages, len(self.embed_dims)))
