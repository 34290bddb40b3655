"""Pola-Swin: Swin with linear polarity-aware attention over the whole map in its early stages.

Source: PolaFormer: Polarity-aware Linear Attention for Vision Transformers (ICLR 2025), table 1 and section 4;
block layout from Swin Transformer (ICCV 2021). Parameter names are those of the released weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from mmpola.backbones.base import (
    AttnTypes,
    Backbone,
    block_types,
    check_heads,
    drop_path_rates,
    resolve_arch,
    run_block,
    stage_grids,
)
from mmpola.layers import Grid, PatchEmbed, PolaAttention, TransformerBlock, WindowAttention, window_mask
from mmpola.registry import MODELS

ARCHS: dict[str, dict[str, Any]] = {
    'tiny': {'embed_dims': 96, 'depths': (2, 2, 6, 2), 'num_heads': (3, 6, 12, 24), 'drop_path_rate': 0.2},
    'small': {'embed_dims': 96, 'depths': (2, 2, 18, 2), 'num_heads': (3, 6, 12, 24), 'drop_path_rate': 0.3},
    'base': {'embed_dims': 128, 'depths': (2, 2, 18, 2), 'num_heads': (4, 8, 16, 32), 'drop_path_rate': 0.5},
}
NORM_EPS = 1e-5


class PatchMerging(nn.Module):
    """2x2 neighbours to one token of twice the channels: [B, N, C] -> [B, N / 4, 2C]; odd sides are padded."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4 * dim)
        self.reduction = nn.Linear(4 * dim, 2 * dim, bias=False)

    def forward(self, x: Tensor, grid: Grid) -> tuple[Tensor, Grid]:
        rows, columns = grid
        maps = x.unflatten(1, grid)
        if rows % 2 or columns % 2:
            maps = F.pad(maps, (0, 0, 0, columns % 2, 0, rows % 2))
        merged = rearrange(maps, 'b (h p) (w q) c -> b (h w) (q p c)', p=2, q=2)
        return self.reduction(self.norm(merged)), ((rows + 1) // 2, (columns + 1) // 2)


class SwinStage(nn.Module):
    """Blocks at one resolution and, unless it is the last stage built, the down-sampling after them."""

    def __init__(self, blocks: list[TransformerBlock], dim: int, downsample: bool, with_cp: bool) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.downsample = PatchMerging(dim) if downsample else None
        self.with_cp = with_cp

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        """x [B, N, C] -> [B, N, C], before down-sampling."""
        masks: dict[int, Tensor | None] = {}  # by shift: one mask serves every second block
        for block in self.blocks:
            if isinstance(block.attn, WindowAttention):
                shift = block.attn.shift
                if shift not in masks:
                    masks[shift] = window_mask(grid, block.attn.window_size, shift, x.device)
                x = run_block(block, self.with_cp, x, grid, masks[shift])
            else:
                x = run_block(block, self.with_cp, x, grid)
        return x


@MODELS.register_module()
class PolaSwin(Backbone):
    """Pola-Swin as a feature pyramid. Common arguments are those of `Backbone`.

    Args:
        arch: 'tiny', 'small', 'base', or dict(embed_dims: int, depths, num_heads); channels double per stage.
        attn_types: per stage 'L' (linear, whole map) or 'S' (softmax, shifted windows), or a letter per block.
        window_size: side of the softmax windows, in tokens (12 in the released 384 model).
        alpha: exponents lie in (1, 1 + alpha) (E5).
        kernel_size: of the depth-wise convolution on values (E14).
        mlp_ratio: hidden channels of the MLP per channel.
        qkv_bias: bias of the projections in attention.
        in_channels: channels of the image.
        pretrain_img_size: side of the training images in pixels, or (height, width): the grid of the position tables.
        drop_rate: dropout on tokens, projections and MLPs.
        drop_path_rate: stochastic depth of the last block, rising linearly from 0; None: the paper's for `arch`.
        out_indices, out_norm, frozen_stages, norm_eval, with_cp, init_cfg: see `Backbone`.
        backend: of `mmpola.ops.polarity_attention` and `mix_and_gate`.

    Raises:
        ValueError: an argument breaks its rule; the message names it.
    """

    def __init__(
        self,
        arch: str | dict[str, Any] = 'tiny',
        *,
        attn_types: AttnTypes = 'LLSS',
        window_size: int = 7,
        alpha: float = 4,
        kernel_size: int = 5,
        mlp_ratio: float = 4.0,
        qkv_bias: bool = True,
        pretrain_img_size: int | tuple[int, int] = 224,
        drop_rate: float = 0.0,
        drop_path_rate: float | None = None,
        out_norm: bool = True,
        backend: str = 'auto',
        **common: Any,
    ) -> None:
        settings = resolve_arch(arch, ARCHS, keys=('embed_dims', 'depths', 'num_heads'))
        depths, num_heads = settings['depths'], settings['num_heads']
        embed_dims = [settings['embed_dims'] * 2**stage for stage in range(4)]
        check_heads(embed_dims, num_heads)
        if window_size < 1:
            raise ValueError(f'window_size: expected at least 1, got {window_size}')
        super().__init__(
            embed_dims,
            out_norm=out_norm,
            norm_eps=NORM_EPS,
            **common,
        )
        if drop_path_rate is None:
            drop_path_rate = settings.get('drop_path_rate', 0.0)
        paths = drop_path_rates(drop_path_rate, depths)
        types, grids = block_types(attn_types, depths), stage_grids(pretrain_img_size)

        def attention(stage: int, block: int) -> PolaAttention | WindowAttention:
            dim, heads = embed_dims[stage], num_heads[stage]
            if types[stage][block] == 'S':
                shift = window_size // 2 if block % 2 else 0
                return WindowAttention(dim, heads, window_size, shift=shift, qkv_bias=qkv_bias, drop=drop_rate)
            return PolaAttention(
                dim,
                heads,
                grids[stage],
                alpha=alpha,
                kernel_size=kernel_size,
                qkv_bias=qkv_bias,
                drop=drop_rate,
                backend=backend,
            )

        self.patch_embed = PatchEmbed(self.in_channels, embed_dims[0])
        self.pos_drop = nn.Dropout(drop_rate)
        self.layers = nn.ModuleList()
        for stage in range(self.num_stages):
            dim = embed_dims[stage]
            blocks = [
                TransformerBlock(
                    attention(stage, block), dim, mlp_ratio, norm_eps=NORM_EPS, drop=drop_rate, path=next(paths)
                )
                for block in range(depths[stage])
            ]
            self.layers.append(SwinStage(blocks, dim, downsample=stage + 1 < self.num_stages, with_cp=self.with_cp))
        self._finish()

    def stage_maps(self, x: Tensor) -> Iterator[tuple[Tensor, Grid]]:
        x, grid = self.patch_embed(x)
        x = self.pos_drop(x)
        for stage in self.layers:
            x = stage(x, grid)
            yield x, grid
            if isinstance(stage, SwinStage) and stage.downsample is not None:
                x, grid = stage.downsample(x, grid)

    def stage_modules(self, stage: int) -> list[nn.Module | nn.Parameter]:
        return [self.patch_embed] if stage == 0 else [self.layers[stage - 1]]
