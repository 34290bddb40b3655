"""Pola-PVTv2: PVT v2 with linear polarity-aware attention over all tokens.

Source: PolaFormer: Polarity-aware Linear Attention for Vision Transformers (ICLR 2025), table 5
(b0, b1); block layout and initial weights from PVT v2 (Computational Visual Media, 2022). No
weights of these models have been published.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch.nn.functional as F
from timm.layers import DropPath
from torch import Tensor, nn

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
from mmpola.backbones.base import Backbone, HeadSpec, Stage
from mmpola.backbones.weight_names import POLA_PVT_V2
from mmpola.checkpoint.init_cfg import InitCfg
from mmpola.layers import (
    Grid,
    PolaSpatialReductionAttention,
    SpatialReductionAttention,
    convolve_on_grid,
    draw_layer,
)

ARCHS: dict[str, dict[str, Any]] = {
    'b0': {
        'embed_dims': (32, 64, 160, 256),
        'depths': (2, 2, 2, 2),
        'num_heads': (1, 2, 5, 8),
        'mlp_ratios': (8, 8, 4, 4),
        'drop_path_rate': 0.1,
    },
    'b1': {
        'embed_dims': (64, 128, 320, 512),
        'depths': (2, 2, 2, 2),
        'num_heads': (1, 2, 5, 8),
        'mlp_ratios': (8, 8, 4, 4),
        'drop_path_rate': 0.1,
    },
    'b2': {
        'embed_dims': (64, 128, 320, 512),
        'depths': (3, 4, 6, 3),
        'num_heads': (1, 2, 5, 8),
        'mlp_ratios': (8, 8, 4, 4),
        'drop_path_rate': 0.1,
    },
    'b3': {
        'embed_dims': (64, 128, 320, 512),
        'depths': (3, 4, 18, 3),
        'num_heads': (1, 2, 5, 8),
        'mlp_ratios': (8, 8, 4, 4),
        'drop_path_rate': 0.3,
    },
    'b4': {
        'embed_dims': (64, 128, 320, 512),
        'depths': (3, 8, 27, 3),
        'num_heads': (1, 2, 5, 8),
        'mlp_ratios': (8, 8, 4, 4),
        'drop_path_rate': 0.3,
    },
    'b5': {
        'embed_dims': (64, 128, 320, 512),
        'depths': (3, 6, 40, 3),
        'num_heads': (1, 2, 5, 8),
        'mlp_ratios': (4, 4, 4, 4),
        'drop_path_rate': 0.3,
    },
}
ARCH_KEYS = ('embed_dims', 'depths', 'num_heads', 'mlp_ratios')
NORM_EPS = 1e-6
"""Epsilon of the blocks' and stages' norms; patch embeddings and reduced keys have 1e-5."""


class OverlapPatchEmbed(nn.Module):
    """Embed overlapping patches: a strided convolution and a LayerNorm."""

    def __init__(self, in_channels: int, dim: int, patch_size: int, stride: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(in_channels, dim, patch_size, stride, padding=patch_size // 2)
        self.norm = nn.LayerNorm(dim)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the convolution as PVT v2 does."""
        _draw_convolution(self.proj)

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, in_channels, H, W] -> [B, h, w, C], h and w smaller by the stride."""
        return self.norm(self.proj(x).permute(0, 2, 3, 1))


class DepthwiseMlp(nn.Module):
    """The feed-forward network of PVT v2: fc1, depth-wise 3x3 convolution, GELU, fc2."""

    def __init__(self, dim: int, hidden: int, drop: float) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden)
        self.dwconv = nn.Conv2d(hidden, hidden, 3, padding=1, groups=hidden)
        self.fc2 = nn.Linear(hidden, dim)
        self.drop = nn.Dropout(drop)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weights as PVT v2 does."""
        draw_layer(self.fc1)
        _draw_convolution(self.dwconv)
        draw_layer(self.fc2)

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        """x [B, N, C] on the token grid (h, w), N = h * w -> [B, N, C]."""
        mixed = convolve_on_grid(self.fc1(x), grid, self.dwconv)
        x = self.drop(F.gelu(mixed))
        return self.drop(self.fc2(x))


class PvtV2Block(nn.Module):
    """x += attn(norm1(x)); x += mlp(norm2(x)), each branch with stochastic depth.

    Args:
        attn: linear or spatial-reduction attention.
        dim: channels C.
        mlp_ratio: hidden channels of the MLP, as a multiple of C.
        drop: dropout rate in the MLP.
        drop_path: stochastic depth rate of both branches.
    """

    def __init__(
        self,
        attn: PolaSpatialReductionAttention | SpatialReductionAttention,
        dim: int,
        mlp_ratio: float,
        drop: float,
        drop_path: float,
    ) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, eps=NORM_EPS)
        self.attn = attn
        self.norm2 = nn.LayerNorm(dim, eps=NORM_EPS)
        self.mlp = DepthwiseMlp(dim, int(dim * mlp_ratio), drop)
        self.drop_path = DropPath(drop_path)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the convolutions of the attention layer as PVT v2 does, not as the layer did."""
        for layer in self.attn.modules():
            if isinstance(layer, nn.Conv2d):
                _draw_convolution(layer)

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        """x [B, N, C] on the token grid (h, w), N = h * w -> [B, N, C]."""
        x = x + self.drop_path(self.attn(self.norm1(x), grid))
        return x + self.drop_path(self.mlp(self.norm2(x), grid))


class PolaPVTv2(Backbone):
    """Pola-PVTv2 as a feature pyramid; `Backbone` describes the other arguments.

    No position table is added to the tokens: positions follow from the zero padding of the
    convolutions and from the key table of linear attention. A stage ends with a LayerNorm as in PVT
    v2, and the next stage reads the normalised map.

    Args:
        arch: 'b0' ... 'b5', or dict(embed_dims, depths, num_heads, mlp_ratios), four entries each.
        attn_types: per stage 'L' (linear, all tokens) or 'S' (softmax, reduced keys), or a letter
            per block.
        softmax_sr_ratios: per stage, the stride at which softmax attention reduces its keys and
            values.
        alpha: exponents lie in (1, 1 + alpha) (E5).
        dwc_kernel_size: side of the depth-wise convolution on values (E14).
        gate_init: how the gates of linear attention start: 'authors', or 'open' (weight 0, bias
            1), see `mmpola.layers.LinearAttention`.
        qkv_bias: bias of the projections in attention.
        in_channels: channels of the image.
        pretrain_img_size: side of the training images in pixels, or (height, width): the grid of
            the key tables.
        drop_rate: dropout rate on projections and MLPs.
        drop_path_rate: stochastic depth rate of the last block, rising linearly from 0; None: PVT
            v2's for `arch`.
        out_norm: return each map after its stage's norm, as PVT v2 does; if False, before it, and
            the last stage has no norm.
        out_indices, frozen_stages, norm_eval, with_cp, init_cfg: see `Backbone`.
        backend: backend of `mmpola.ops.polarity_attention` and `mix_and_gate`.

    Raises:
        ValueError: an argument is invalid; the message names it.
    """

    released_names = POLA_PVT_V2
    head = HeadSpec(out_norm=True)
    chained_norms = True

    def __init__(
        self,
        arch: str | dict[str, Any] = 'b1',
        *,
        attn_types: AttnTypes = 'LLLL',
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
        out_norm: bool = True,
        frozen_stages: int = -1,
        norm_eval: bool = False,
        with_cp: bool = False,
        backend: str = 'auto',
        init_cfg: InitCfg = None,
    ) -> None:
        check_rate('drop_rate', drop_rate)
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

        self.stem = OverlapPatchEmbed(in_channels, embed_dims[0], patch_size=7, stride=4)
        self.stages = nn.ModuleList()
        for index in range(out_indices[-1] + 1):
            dim = embed_dims[index]
            grid = token_grid(pretrain_img_size, STRIDES[index])
            downsample = None
            if index > 0:
                downsample = OverlapPatchEmbed(embed_dims[index - 1], dim, patch_size=3, stride=2)
            blocks = []
            for number in range(depths[index]):
                attn: PolaSpatialReductionAttention | SpatialReductionAttention
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
                        alpha=alpha,
                        dwc_kernel_size=dwc_kernel_size,
                        gate_init=gate_init,
                        qkv_bias=qkv_bias,
                        proj_drop=drop_rate,
                        backend=backend,
                    )
                mlp_ratio = settings['mlp_ratios'][index]
                block = PvtV2Block(attn, dim, mlp_ratio, drop_rate, rates[index][number])
                blocks.append(block)
            self.stages.append(Stage(blocks, downsample, grid))
        self.add_output_norms(NORM_EPS)
        self.freeze_stages()


def _draw_convolution(conv: nn.Conv2d) -> None:
    """Draw a convolution's weights as PVT v2 does: normal, variance 2 / fan-out; biases 0."""
    fan_out = math.prod(conv.kernel_size) * conv.out_channels / conv.groups
    nn.init.normal_(conv.weight, std=math.sqrt(2 / fan_out))
    if conv.bias is not None:
        nn.init.zeros_(conv.bias)
