"""PolaFormer++: linear attention in early stages, softmax attention over all tokens in late ones.

Source: PolaFormer++ (github.com/ZacharyMeng/PolaFormerPP); equations E9 and E10 in
mmpola/ops/README.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from timm.layers import DropPath
from torch import Tensor, nn

from mmpola.backbones.arguments import (
    STRIDES,
    AttnTypes,
    block_types,
    check_heads,
    check_rate,
    drop_path_rates,
    resolve_arch,
    token_grid,
)
from mmpola.backbones.base import Backbone, HeadSpec, Stage
from mmpola.backbones.weight_names import POLAFORMER_PP
from mmpola.checkpoint.init_cfg import InitCfg
from mmpola.layers import (
    Grid,
    PolaFormerPPAttention,
    RotarySoftmaxAttention,
    convolve_on_grid,
    draw_layer,
)
from mmpola.layers.block import add_branch

ARCHS: dict[str, dict[str, Any]] = {
    'b0': {
        'embed_dims': (32, 64, 128, 384),
        'depths': (2, 2, 2, 2),
        'num_heads': (1, 2, 4, 12),
        'mlp_ratios': (3.5, 3.5, 3.5, 3.5),
        'layer_scale': (True, True, True, True),
        'layer_scale_init': (1, 1, 1, 1),
        'drop_path_rate': 0.1,
    },
    'b1': {
        'embed_dims': (32, 64, 192, 384),
        'depths': (2, 2, 4, 2),
        'num_heads': (1, 2, 6, 12),
        'mlp_ratios': (3.5, 3.5, 3.5, 3.5),
        'layer_scale': (True, True, True, True),
        'layer_scale_init': (1, 1, 1, 1),
        'drop_path_rate': 0.1,
    },
    'b2': {
        'embed_dims': (64, 128, 256, 512),
        'depths': (2, 2, 6, 2),
        'num_heads': (1, 2, 4, 8),
        'mlp_ratios': (3.5, 3.5, 3.5, 3.5),
        'layer_scale': (True, True, True, True),
        'layer_scale_init': (1, 1, 1, 1),
        'drop_path_rate': 0.1,
    },
    'b3': {
        'embed_dims': (64, 128, 320, 512),
        'depths': (3, 5, 9, 3),
        'num_heads': (1, 2, 5, 8),
        'mlp_ratios': (3.5, 3.5, 3.5, 3.5),
        'layer_scale': (True, True, True, True),
        'layer_scale_init': (1, 1, 1, 1),
        'drop_path_rate': 0.15,
    },
    'b4': {
        'embed_dims': (96, 192, 384, 512),
        'depths': (4, 6, 12, 6),
        'num_heads': (1, 2, 6, 8),
        'mlp_ratios': (3.5, 3.5, 3.5, 3.5),
        'layer_scale': (True, True, True, True),
        'layer_scale_init': (1, 1, 1e-6, 1e-6),
        'drop_path_rate': 0.4,
    },
    'b5': {
        'embed_dims': (96, 192, 448, 640),
        'depths': (4, 7, 19, 8),
        'num_heads': (1, 2, 7, 10),
        'mlp_ratios': (3.5, 3.5, 3.5, 3.5),
        'layer_scale': (True, True, True, True),
        'layer_scale_init': (1e-6, 1e-6, 1e-6, 1e-6),
        'drop_path_rate': 0.55,
    },
}
ARCH_KEYS = (
    'embed_dims',
    'depths',
    'num_heads',
    'mlp_ratios',
    'layer_scale',
    'layer_scale_init',
)
NORM_EPS = 1e-6


class Stem(nn.Module):
    """The patch embedding: four 3x3 convolutions, the first and the last with stride 2."""

    def __init__(self, in_channels: int, dim: int) -> None:
        super().__init__()
        half = dim // 2
        self.proj = nn.Conv2d(in_channels, half, 3, stride=2, padding=1)
        self.layers = nn.Sequential(
            nn.BatchNorm2d(half),
            nn.GELU(),
            nn.Conv2d(half, half, 3, padding=1),
            nn.BatchNorm2d(half),
            nn.GELU(),
            nn.Conv2d(half, half, 3, padding=1),
            nn.BatchNorm2d(half),
            nn.GELU(),
            nn.Conv2d(half, dim, 3, stride=2, padding=1),
            nn.BatchNorm2d(dim),
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the convolutions as the authors do."""
        draw_layer(self.proj)
        for layer in self.layers:
            if isinstance(layer, nn.Conv2d):
                draw_layer(layer)

    def forward(self, x: Tensor) -> Tensor:
        """Images [B, in_channels, H, W] -> a map [B, ceil(H / 4), ceil(W / 4), C]."""
        return _channels_last(self.layers(self.proj(x)))


class Downsample(nn.Module):
    """A 3x3 convolution with stride 2 and a BatchNorm."""

    def __init__(self, dim: int, out_dim: int) -> None:
        super().__init__()
        self.reduction = nn.Conv2d(dim, out_dim, 3, stride=2, padding=1)
        self.norm = nn.BatchNorm2d(out_dim)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the convolution as the authors do."""
        draw_layer(self.reduction)

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, C, h, w] -> [B, ceil(h / 2), ceil(w / 2), C']."""
        return _channels_last(self.norm(self.reduction(x)))


class ConvMlp(nn.Module):
    """The feed-forward network: fc1, GELU, x + depth-wise 3x3 convolution of x, fc2."""

    def __init__(self, dim: int, hidden: int, drop: float) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden)
        self.dwconv = nn.Conv2d(hidden, hidden, 3, padding=1, groups=hidden)
        self.fc2 = nn.Linear(hidden, dim)
        self.drop = nn.Dropout(drop)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the convolution as the authors do; linear layers keep PyTorch's weights."""
        draw_layer(self.dwconv)

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        """x [B, N, C] on the token grid (h, w), N = h * w -> [B, N, C]."""
        x = self.drop(F.gelu(self.fc1(x)))
        return self.drop(self.fc2(x + convolve_on_grid(x, grid, self.dwconv)))


class PolaFormerPPBlock(nn.Module):
    """x += DWConv3x3(x); x += gamma_1 attn(norm1(x)); x += gamma_2 ffn(norm2(x)).

    Args:
        attn: linear or softmax attention.
        dim: channels C.
        mlp_ratio: hidden channels of the feed-forward network, as a multiple of C.
        drop: dropout rate in the feed-forward network.
        drop_path: stochastic depth rate of both branches.
        layer_scale: initial value of the gammas [1, C, 1, 1]; None for no gammas.
    """

    gamma_1: nn.Parameter | None
    gamma_2: nn.Parameter | None

    def __init__(
        self,
        attn: PolaFormerPPAttention | RotarySoftmaxAttention,
        dim: int,
        mlp_ratio: float,
        drop: float,
        drop_path: float,
        layer_scale: float | None,
    ) -> None:
        super().__init__()
        self.pos = nn.Conv2d(dim, dim, 3, padding=1, groups=dim)
        self.norm1 = nn.LayerNorm(dim, eps=NORM_EPS)
        self.attn = attn
        self.norm2 = nn.LayerNorm(dim, eps=NORM_EPS)
        self.ffn = ConvMlp(dim, int(dim * mlp_ratio), drop)
        self.drop_path = DropPath(drop_path)
        self.gamma_1 = None
        self.gamma_2 = None
        if layer_scale is not None:
            self.gamma_1 = nn.Parameter(torch.full((1, dim, 1, 1), float(layer_scale)))
            self.gamma_2 = nn.Parameter(torch.full((1, dim, 1, 1), float(layer_scale)))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the convolution as the authors do; the other modules have drawn theirs."""
        draw_layer(self.pos)

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        """x [B, N, C] on the token grid (h, w), N = h * w -> [B, N, C]."""
        x = x + convolve_on_grid(x, grid, self.pos)
        gamma_1 = None
        gamma_2 = None
        if self.gamma_1 is not None and self.gamma_2 is not None:
            gamma_1 = self.gamma_1.flatten()
            gamma_2 = self.gamma_2.flatten()
        x = add_branch(x, self.attn(self.norm1(x), grid), self.drop_path, gamma_1)
        return add_branch(x, self.ffn(self.norm2(x), grid), self.drop_path, gamma_2)


class PolaFormerPP(Backbone):
    """PolaFormer++ as a feature pyramid; `Backbone` describes the other arguments.

    Args:
        arch: 'b0' ... 'b5', or dict(embed_dims, depths, num_heads, mlp_ratios, layer_scale,
            layer_scale_init), four entries each: `layer_scale` says which stages have layer scale,
            `layer_scale_init` its initial values.
        attn_types: per stage 'L' (linear, all tokens) or 'S' (softmax, all tokens), or a letter per
            block.
        gate_init: how the gates of linear attention start: 'authors', or 'open' (weight 0, bias
            1), see `mmpola.layers.LinearAttention`.
        in_channels: channels of the image.
        pretrain_img_size: accepted as by every backbone, but not used: positions are computed, not
            learned.
        drop_rate: dropout rate on tokens, projections and MLPs.
        drop_path_rate: stochastic depth rate of the last block, rising linearly from 0; None: the
            authors' for `arch`.
        out_indices, out_norm, frozen_stages, norm_eval, with_cp, init_cfg: see `Backbone`. Frozen
            stages keep their BatchNorm layers in eval mode.
        backend: backend of `mmpola.ops.polarity_attention` and `mix_and_gate`.

    Raises:
        ValueError: an argument is invalid; the message names it.
    """

    released_names = POLAFORMER_PP
    head = HeadSpec(projection=True)

    def __init__(
        self,
        arch: str | dict[str, Any] = 'b2',
        *,
        attn_types: AttnTypes = 'LLSS',
        gate_init: str = 'authors',
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
        settings = resolve_arch(arch, ARCHS, keys=ARCH_KEYS)
        embed_dims = settings['embed_dims']
        depths = settings['depths']
        num_heads = settings['num_heads']
        check_heads(embed_dims, num_heads, multiple=4)
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

        self.stem = Stem(in_channels, embed_dims[0])
        self.stages = nn.ModuleList()
        for index in range(out_indices[-1] + 1):
            dim = embed_dims[index]
            downsample = None
            stage_drop = drop_rate
            if index > 0:
                downsample = Downsample(embed_dims[index - 1], dim)
                stage_drop = 0.0
            layer_scale = None
            if settings['layer_scale'][index]:
                layer_scale = settings['layer_scale_init'][index]
            blocks = []
            for number in range(depths[index]):
                attn: PolaFormerPPAttention | RotarySoftmaxAttention
                if letters[index][number] == 'S':
                    attn = RotarySoftmaxAttention(
                        dim, num_heads[index], proj_drop=drop_rate, backend=backend
                    )
                else:
                    attn = PolaFormerPPAttention(
                        dim,
                        num_heads[index],
                        gate_init=gate_init,
                        proj_drop=drop_rate,
                        backend=backend,
                    )
                block = PolaFormerPPBlock(
                    attn,
                    dim,
                    settings['mlp_ratios'][index],
                    drop=drop_rate,
                    drop_path=rates[index][number],
                    layer_scale=layer_scale,
                )
                blocks.append(block)
            grid = token_grid(pretrain_img_size, STRIDES[index])
            self.stages.append(Stage(blocks, downsample, grid, drop=stage_drop))
        self.add_output_norms(NORM_EPS)
        self.freeze_stages()


def _channels_last(maps: Tensor) -> Tensor:
    """Map [B, C, h, w] -> contiguous map [B, h, w, C]."""
    # Without the copy the gradient of the map would have the strides of channels last, which
    # PyTorch's BatchNorm reads as [B, C, h, w] on a CPU if the batch is 1.
    return maps.permute(0, 2, 3, 1).contiguous()
