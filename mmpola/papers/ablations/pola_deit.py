"""Pola-DeiT: DeiT with linear polarity-aware attention, its ablations and its softmax baseline.

Source: PolaFormer: Polarity-aware Linear Attention for Vision Transformers (ICLR 2025), table 3;
block layout from DeiT (ICML 2021). No weights of these models have been published.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from mmpola.backbones.arguments import (
    block_types,
    check_heads,
    check_rate,
    drop_path_rates,
    resolve_arch,
    token_grid,
)
from mmpola.backbones.base import Backbone, HeadSpec, Stage
from mmpola.backbones.weight_names import POLA_DEIT
from mmpola.checkpoint.init_cfg import InitCfg
from mmpola.layers import (
    Grid,
    HasPositionTable,
    PatchEmbed,
    PolaAttention,
    SpatialReductionAttention,
    TransformerBlock,
    draw_table,
    resize_table,
)
from mmpola.papers.ablations.attention import AblatedPolaAttention

ARCHS: dict[str, dict[str, Any]] = {
    'tiny': {'embed_dims': 192, 'depth': 12, 'num_heads': 3},
    'small': {'embed_dims': 384, 'depth': 12, 'num_heads': 6},
    'base': {'embed_dims': 768, 'depth': 12, 'num_heads': 12},
}
ARCH_KEYS = ('embed_dims', 'depth', 'num_heads')
PATCH_SIZE = 16
NORM_EPS = 1e-6


class Stem(PatchEmbed, HasPositionTable):
    """Patches without a norm, and the learned position table that is added to them.

    Args:
        in_channels, dim: channels of the image and of a token.
        grid: token grid (h, w) of the training images.
    """

    table_name = 'pos_embed'

    def __init__(self, in_channels: int, dim: int, grid: Grid) -> None:
        super().__init__(in_channels, dim, PATCH_SIZE, norm=False)
        self.grid = grid
        self.pos_embed = nn.Parameter(torch.empty(1, grid[0] * grid[1], dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the position table as DeiT does."""
        draw_table(self.pos_embed)

    def forward(self, x: Tensor) -> Tensor:
        """Images [B, in_channels, H, W] -> a map [B, ceil(H / 16), ceil(W / 16), C]."""
        x = super().forward(x)
        grid = (x.shape[1], x.shape[2])
        table = resize_table(self.pos_embed, self.grid, grid)
        return x + table.unflatten(1, grid)


class PolaDeiT(Backbone):
    """Pola-DeiT without a class token; `Backbone` describes the other arguments.

    Each block counts as a stage, of stride 16: there is one map [B, C, ceil(H / 16), ceil(W / 16)]
    per entry of `out_indices`.

    Args:
        arch: 'tiny', 'small', 'base', or dict(embed_dims: int, depth: int, num_heads: int).
        attn_types: 'L' (linear) or 'S' (softmax) for all blocks, or a letter per block.
        alpha: exponents lie in (1, 1 + alpha) (E5).
        dwc_kernel_size: side of the depth-wise convolution on values (E14).
        gate_init: how the gates of linear attention start: 'authors', or 'open' (weight 0, bias
            1), see `mmpola.layers.LinearAttention`; 'authors' with an ablation.
        gate, mixing, polarity: ablations of the linear blocks, see `AblatedPolaAttention`.
        mlp_ratio: hidden channels of the MLP, as a multiple of C.
        qkv_bias: bias of the projections in attention.
        in_channels: channels of the image.
        pretrain_img_size: side of the training images in pixels, or (height, width): the grid of
            the position tables.
        drop_rate: dropout rate on tokens, projections and MLPs.
        drop_path_rate: stochastic depth rate of the last block, rising linearly from 0.
        out_indices: blocks to return, from 0, in ascending order; None: the last. Later blocks are
            not built.
        out_norm: whether to apply a LayerNorm to each output.
        frozen_stages: -1 freezes nothing, 0 the stem, i also blocks 1 ... i and their output norms.
        norm_eval, with_cp, init_cfg: see `Backbone`.
        backend: backend of `mmpola.ops.polarity_attention` and `mix_and_gate`.

    Raises:
        ValueError: an argument is invalid; the message names it.
    """

    released_names = POLA_DEIT
    head = HeadSpec(norm_eps=NORM_EPS)
    block_stride = PATCH_SIZE

    def __init__(
        self,
        arch: str | dict[str, Any] = 'tiny',
        *,
        attn_types: str = 'L',
        alpha: float = 4,
        dwc_kernel_size: int = 5,
        gate_init: str = 'authors',
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
        frozen_stages: int = -1,
        norm_eval: bool = False,
        with_cp: bool = False,
        backend: str = 'auto',
        init_cfg: InitCfg = None,
    ) -> None:
        check_rate('drop_rate', drop_rate)
        settings = resolve_arch(arch, ARCHS, keys=ARCH_KEYS)
        dim = settings['embed_dims']
        depth = settings['depth']
        heads = settings['num_heads']
        check_heads([dim], [heads])
        if out_indices is None:
            out_indices = (depth - 1,)
        super().__init__(
            embed_dims=[dim] * depth,
            strides=[PATCH_SIZE] * depth,
            in_channels=in_channels,
            out_indices=out_indices,
            out_norm=out_norm,
            frozen_stages=frozen_stages,
            norm_eval=norm_eval,
            with_cp=with_cp,
            init_cfg=init_cfg,
        )
        letters = block_types([attn_types], [depth])[0]
        rates = drop_path_rates(drop_path_rate, [depth])[0]
        grid = token_grid(pretrain_img_size, PATCH_SIZE)
        is_ablated = not gate or mixing != 'dwc' or not polarity
        if is_ablated and gate_init != 'authors':
            raise ValueError(
                f"gate_init: expected 'authors' with an ablation (gate, mixing or polarity), "
                f'got {gate_init!r}'
            )

        self.stem = Stem(in_channels, dim, grid)
        self.stages = nn.ModuleList()
        for index in range(out_indices[-1] + 1):
            attn: nn.Module
            if letters[index] == 'S':
                attn = SpatialReductionAttention(dim, heads, qkv_bias=qkv_bias, proj_drop=drop_rate)
            elif is_ablated:
                attn = AblatedPolaAttention(
                    dim,
                    heads,
                    grid=grid,
                    gate=gate,
                    mixing=mixing,
                    polarity=polarity,
                    alpha=alpha,
                    dwc_kernel_size=dwc_kernel_size,
                    qkv_bias=qkv_bias,
                    proj_drop=drop_rate,
                    backend=backend,
                )
            else:
                attn = PolaAttention(
                    dim,
                    heads,
                    grid=grid,
                    alpha=alpha,
                    dwc_kernel_size=dwc_kernel_size,
                    gate_init=gate_init,
                    qkv_bias=qkv_bias,
                    proj_drop=drop_rate,
                    backend=backend,
                )
            block = TransformerBlock(
                attn, dim, mlp_ratio, norm_eps=NORM_EPS, drop=drop_rate, drop_path=rates[index]
            )
            stage_drop = drop_rate if index == 0 else 0.0
            self.stages.append(Stage([block], None, grid, drop=stage_drop))
        self.add_output_norms(NORM_EPS)
        self.freeze_stages()

    @classmethod
    def stage_count(cls, arch: str | dict[str, Any]) -> int:
        """Return the number of blocks of an `arch`; each block counts as a stage."""
        depth: int = resolve_arch(arch, ARCHS, keys=ARCH_KEYS)['depth']
        return depth
