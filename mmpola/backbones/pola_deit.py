"""Pola-DeiT: DeiT with linear polarity-aware attention in every block.

Source: PolaFormer: Polarity-aware Linear Attention for Vision Transformers (ICLR 2025), table 1 (tiny); block layout
and parameter names from DeiT (ICML 2021). No weights of these models were published.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from timm.layers import trunc_normal_
from torch import Tensor, nn

from mmpola.backbones.base import Backbone, check_heads, drop_path_rates, resolve_arch, run_block
from mmpola.layers import Grid, PatchEmbed, PolaAttention, TransformerBlock, resize_table
from mmpola.registry import MODELS

ARCHS: dict[str, dict[str, Any]] = {
    'tiny': {'embed_dims': 192, 'depth': 12, 'num_heads': 3},
    'small': {'embed_dims': 384, 'depth': 12, 'num_heads': 6},
    'base': {'embed_dims': 768, 'depth': 12, 'num_heads': 12},
}
PATCH_SIZE = 16
NORM_EPS = 1e-6


@MODELS.register_module()
class PolaDeiT(Backbone):
    """Pola-DeiT without a class token; each block is a stage of stride 16. Common arguments are those of `Backbone`.

    Returns one map [B, C, ceil(H / 16), ceil(W / 16)] per entry of `out_indices`.

    Args:
        arch: 'tiny', 'small', 'base', or dict(embed_dims: int, depth: int, num_heads: int).
        alpha: exponents lie in (1, 1 + alpha) (E5).
        kernel_size: of the depth-wise convolution on values (E14).
        mlp_ratio: hidden channels of the MLP per channel.
        qkv_bias: bias of the projections in attention.
        in_channels: channels of the image.
        pretrain_img_size: side of the training images in pixels, or (height, width): the grid of the position tables.
        drop_rate: dropout on tokens, projections and MLPs.
        drop_path_rate: stochastic depth of the last block, rising linearly from 0.
        out_indices: blocks to return, from 0, in ascending order; None: the last. Later blocks are not built.
        out_norm: a LayerNorm per output.
        frozen_stages: -1 nothing, 0 patch_embed and pos_embed, i also the blocks 1 ... i with their output norms.
        norm_eval, with_cp, init_cfg: see `Backbone`.
        backend: of `mmpola.ops.polarity_attention` and `mix_and_gate`.

    Raises:
        ValueError: an argument breaks its rule; the message names it.
    """

    def __init__(
        self,
        arch: str | dict[str, Any] = 'tiny',
        *,
        alpha: float = 4,
        kernel_size: int = 5,
        mlp_ratio: float = 4.0,
        qkv_bias: bool = True,
        pretrain_img_size: int | tuple[int, int] = 224,
        drop_rate: float = 0.0,
        drop_path_rate: float = 0.1,
        out_indices: Sequence[int] | None = None,
        out_norm: bool = True,
        backend: str = 'auto',
        **common: Any,
    ) -> None:
        settings = resolve_arch(arch, ARCHS, keys=('embed_dims', 'depth', 'num_heads'))
        dim, depth, heads = settings['embed_dims'], settings['depth'], settings['num_heads']
        check_heads((dim,), (heads,))
        super().__init__(
            (dim,) * depth,
            out_indices=(depth - 1,) if out_indices is None else out_indices,
            out_norm=out_norm,
            norm_eps=NORM_EPS,
            **common,
        )
        self.strides = (PATCH_SIZE,) * depth
        height, width = (pretrain_img_size,) * 2 if isinstance(pretrain_img_size, int) else pretrain_img_size
        self.grid: Grid = (-(-height // PATCH_SIZE), -(-width // PATCH_SIZE))
        paths = drop_path_rates(drop_path_rate, (depth,))

        def attention() -> PolaAttention:
            return PolaAttention(
                dim,
                heads,
                self.grid,
                alpha=alpha,
                kernel_size=kernel_size,
                qkv_bias=qkv_bias,
                drop=drop_rate,
                backend=backend,
            )

        self.patch_embed = PatchEmbed(self.in_channels, dim, PATCH_SIZE, norm=False)
        self.pos_embed = nn.Parameter(torch.zeros(1, self.grid[0] * self.grid[1], dim))
        trunc_normal_(self.pos_embed, std=0.02)
        self.pos_drop = nn.Dropout(drop_rate)
        self.blocks = nn.ModuleList(
            TransformerBlock(attention(), dim, mlp_ratio, norm_eps=NORM_EPS, drop=drop_rate, path=next(paths))
            for _ in range(self.num_stages)
        )
        self._finish()

    def stage_maps(self, x: Tensor) -> Iterator[tuple[Tensor, Grid]]:
        tokens, grid = self.patch_embed(x)
        tokens = self.pos_drop(tokens + resize_table(self.pos_embed, self.grid, grid))
        for block in self.blocks:
            tokens = run_block(block, self.with_cp, tokens, grid)
            yield tokens, grid

    def stage_modules(self, stage: int) -> list[nn.Module | nn.Parameter]:
        return [self.patch_embed, self.pos_embed] if stage == 0 else [self.blocks[stage - 1]]

    def unbuilt_prefixes(self) -> tuple[str, ...]:
        return tuple(f'blocks.{block}.' for block in range(self.num_stages, len(self.embed_dims)))

    def position_tables(self) -> dict[str, Grid]:
        return {'pos_embed': self.grid} | super().position_tables()
