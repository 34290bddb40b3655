"""Pola-Swin: Swin with linear polarity-aware attention over all tokens in its early stages.

Source: PolaFormer: Polarity-aware Linear Attention for Vision Transformers (ICLR 2025), table 1 and section 4;
block layout from Swin Transformer (ICCV 2021). Parameter names are those of the released weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from einops import rearrange
from torch import Tensor, nn

from mmpola.backbones.arch import AttnTypes, check_rate, resolve_arch, stage_specs
from mmpola.backbones.base import Backbone, run_block
from mmpola.layers import Grid, PatchEmbed, PolaAttention, TransformerBlock, WindowAttention, window_mask
from mmpola.layers.padding import cells, pad_to_cells
from mmpola.registry import MODELS

ARCHS: dict[str, dict[str, Any]] = {
    'tiny': {'embed_dims': 96, 'depths': (2, 2, 6, 2), 'num_heads': (3, 6, 12, 24), 'drop_path_rate': 0.2},
    'small': {'embed_dims': 96, 'depths': (2, 2, 18, 2), 'num_heads': (3, 6, 12, 24), 'drop_path_rate': 0.3},
    'base': {'embed_dims': 128, 'depths': (2, 2, 18, 2), 'num_heads': (4, 8, 16, 32), 'drop_path_rate': 0.5},
}
NORM_EPS = 1e-5


class PatchMerging(nn.Module):
    """Merge 2 x 2 neighbours into one token of twice the channels; odd sides are padded with zeros.

    Same function and parameters as timm's PatchMerging, whose import would load all of timm's models.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4 * dim)
        self.reduction = nn.Linear(4 * dim, 2 * dim, bias=False)

    def forward(self, x: Tensor, grid: Grid) -> tuple[Tensor, Grid]:
        """x [B, N, C] on the token grid (h, w) -> [B, N', 2C] and its grid (ceil(h / 2), ceil(w / 2))."""
        maps = pad_to_cells(x.unflatten(1, grid), grid, 2, channels_last=True)
        merged = rearrange(maps, 'b (h p) (w q) c -> b (h w) (q p c)', p=2, q=2)
        return self.reduction(self.norm(merged)), cells(grid, 2)


class SwinStage(nn.Module):
    """Blocks at one resolution and, unless it is the last stage that is built, the down-sampling after them."""

    def __init__(self, blocks: list[TransformerBlock], downsample: PatchMerging | None) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.downsample = downsample

    def forward(self, x: Tensor, grid: Grid, with_cp: bool) -> tuple[Tensor, tuple[Tensor, Grid] | None]:
        """Run the blocks and the down-sampling.

        Args:
            x: tokens [B, N, C].
            grid: (h, w), h * w = N.
            with_cp: recompute each block's activations in the backward pass.

        Returns:
            The stage's tokens [B, N, C], and the tokens and grid that the next stage reads; None if it is the last.
        """
        masks: dict[int, Tensor | None] = {}  # by shift: one mask serves every second block
        for block in self.blocks:
            if isinstance(block.attn, WindowAttention):
                shift = block.attn.shift
                if shift not in masks:
                    masks[shift] = window_mask(x, grid, block.attn.window_size, shift)
                x = run_block(block, with_cp, x, grid, masks[shift])
            else:
                x = run_block(block, with_cp, x, grid)
        return x, None if self.downsample is None else self.downsample(x, grid)


@MODELS.register_module()
class PolaSwin(Backbone):
    """Pola-Swin as a feature pyramid. Arguments that are not described here are those of `Backbone`.

    Args:
        arch: 'tiny', 'small', 'base', or dict(embed_dims: int, depths, num_heads); channels double per stage.
        attn_types: per stage 'L' (linear, all tokens) or 'S' (softmax, shifted windows), or a letter per block.
        window_size: side of the softmax windows, in tokens (12 in the released 384 model).
        alpha: exponents lie in (1, 1 + alpha) (E5).
        kernel_size: side of the depth-wise convolution on values (E14).
        mlp_ratio: hidden channels of the MLP, as a multiple of the stage's channels.
        qkv_bias: bias of the projections in attention.
        in_channels: channels of the image.
        pretrain_img_size: side of the training images in pixels, or (height, width): the grid of the position tables.
        drop_rate: dropout rate on tokens, projections and MLPs.
        drop_path_rate: stochastic depth rate of the last block, rising linearly from 0; None: the paper's for `arch`.
        out_indices, out_norm, frozen_stages, norm_eval, with_cp, init_cfg: see `Backbone`.
        backend: backend of `mmpola.ops.polarity_attention` and `mix_and_gate`.

    Raises:
        ValueError: an argument is invalid; the message names it.
    """

    patch_embed: PatchEmbed
    pos_drop: nn.Dropout
    layers: nn.ModuleList

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
        in_channels: int = 3,
        pretrain_img_size: int | tuple[int, int] = 224,
        drop_rate: float = 0.0,
        drop_path_rate: float | None = None,
        out_indices: Sequence[int] = (0, 1, 2, 3),
        out_norm: bool = True,
        backend: str = 'auto',
        **common: Any,
    ) -> None:
        check_rate('drop_rate', drop_rate)
        if window_size < 1:
            raise ValueError(f'window_size: expected at least 1, got {window_size}')
        settings = resolve_arch(arch, ARCHS, keys=('embed_dims', 'depths', 'num_heads'))
        embed_dims = [settings['embed_dims'] * 2**stage for stage in range(4)]
        settings = {**settings, 'embed_dims': embed_dims, 'mlp_ratios': [mlp_ratio] * 4}
        specs = stage_specs(settings, attn_types, out_indices, pretrain_img_size, drop_path_rate)
        linear = partial(
            PolaAttention, qkv_bias=qkv_bias, alpha=alpha, kernel_size=kernel_size, drop=drop_rate, backend=backend
        )
        softmax = partial(WindowAttention, window_size=window_size, qkv_bias=qkv_bias, drop=drop_rate)
        make_block = partial(TransformerBlock, norm_eps=NORM_EPS, drop=drop_rate)

        patch_embed = PatchEmbed(in_channels, embed_dims[0])
        stages = []
        for spec in specs:
            blocks = []
            for number, (attn_type, rate) in enumerate(spec.blocks):
                attn: nn.Module
                if attn_type == 'S':
                    attn = softmax(spec.dim, spec.num_heads, shift=window_size // 2 if number % 2 else 0)
                else:
                    attn = linear(spec.dim, spec.num_heads, spec.grid)
                blocks.append(make_block(attn, spec.dim, spec.mlp_ratio, drop_path=rate))
            stages.append(SwinStage(blocks, None if spec is specs[-1] else PatchMerging(spec.dim)))
        super().__init__(
            {'patch_embed': patch_embed, 'pos_drop': nn.Dropout(drop_rate), 'layers': nn.ModuleList(stages)},
            stage_parts=[['patch_embed'], *([f'layers.{spec.index}'] for spec in specs)],
            embed_dims=embed_dims,
            in_channels=in_channels,
            out_indices=out_indices,
            out_norm=out_norm,
            norm_eps=NORM_EPS,
            **common,
        )

    def stage_maps(self, x: Tensor) -> Iterator[tuple[Tensor, Grid]]:
        tokens, grid = self.patch_embed(x)
        next_input = (self.pos_drop(tokens), grid)
        for stage in self.layers:
            tokens, grid = next_input
            tokens, next_input = stage(tokens, grid, self.with_cp)
            yield tokens, grid
