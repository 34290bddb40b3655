"""Pola-Swin: Swin with linear polarity-aware attention over all tokens in its early stages.

Source: PolaFormer: Polarity-aware Linear Attention for Vision Transformers (ICLR 2025), section 4;
block layout from Swin Transformer (ICCV 2021).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from einops import rearrange
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
from mmpola.backbones.weight_names import POLA_SWIN
from mmpola.checkpoint.init_cfg import InitCfg
from mmpola.layers import (
    Grid,
    PatchEmbed,
    PolaAttention,
    TransformerBlock,
    WindowAttention,
    Windows,
    draw_layer,
    find_windows,
    pad_to_cells,
)

ARCHS: dict[str, dict[str, Any]] = {
    'nano': {  # ours: small photographs on a CPU
        'embed_dims': 32,
        'depths': (1, 1, 2, 1),
        'num_heads': (1, 2, 4, 8),
        'drop_path_rate': 0.0,
    },
    'tiny': {
        'embed_dims': 96,
        'depths': (2, 2, 6, 2),
        'num_heads': (3, 6, 12, 24),
        'drop_path_rate': 0.2,
    },
    'small': {
        'embed_dims': 96,
        'depths': (2, 2, 18, 2),
        'num_heads': (3, 6, 12, 24),
        'drop_path_rate': 0.3,
    },
    'base': {
        'embed_dims': 128,
        'depths': (2, 2, 18, 2),
        'num_heads': (4, 8, 16, 32),
        'drop_path_rate': 0.5,
    },
}
NORM_EPS = 1e-5


class PatchMerging(nn.Module):
    """Merge 2 x 2 neighbours into one token of twice the channels; odd sides are padded with zeros.

    Same function and parameters as timm's PatchMerging, whose import would load all of timm's
    models.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4 * dim)
        self.reduction = nn.Linear(4 * dim, 2 * dim, bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the projection as Swin and the authors do."""
        draw_layer(self.reduction)

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, C, h, w] -> [B, ceil(h / 2), ceil(w / 2), 2C]."""
        grid = (x.shape[2], x.shape[3])
        maps = pad_to_cells(x.permute(0, 2, 3, 1), grid, 2, channels_last=True)
        merged = rearrange(maps, 'b (h p) (w q) c -> b h w (q p c)', p=2, q=2)
        return self.reduction(self.norm(merged))


class SwinStage(Stage):
    """A stage whose blocks with softmax attention share the windows of each shift."""

    def block_layouts(self, x: Tensor, grid: Grid) -> list[Any]:
        """Return the second argument of each block: the tokens' grid, or their windows."""
        windows: dict[int, Windows] = {}
        layouts: list[Grid | Windows] = []
        for block in self.blocks:
            attn = block.attn
            if not isinstance(attn, WindowAttention):
                layouts.append(grid)
                continue
            if attn.shift not in windows:
                windows[attn.shift] = find_windows(x, grid, attn.window_size, attn.shift)
            layouts.append(windows[attn.shift])
        return layouts


class PolaSwin(Backbone):
    """Pola-Swin as a feature pyramid; `Backbone` describes the other arguments.

    Args:
        arch: 'nano' (ours), 'tiny', 'small', 'base', or dict(embed_dims: int, depths, num_heads);
            channels double per stage.
        attn_types: per stage 'L' (linear, all tokens) or 'S' (softmax, shifted windows), or a
            letter per block.
        window_size: side of the softmax windows, in tokens (12 in the released 384 model).
        alpha: exponents lie in (1, 1 + alpha) (E5).
        dwc_kernel_size: side of the depth-wise convolution on values (E14).
        gate_init: how the gates of linear attention start: 'authors', or 'open' (weight 0, bias
            1), see `mmpola.layers.LinearAttention`.
        mlp_ratio: hidden channels of the MLP, as a multiple of the stage's channels.
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

    released_names = POLA_SWIN
    head = HeadSpec(norm_eps=NORM_EPS)

    def __init__(
        self,
        arch: str | dict[str, Any] = 'tiny',
        *,
        attn_types: AttnTypes = 'LLSS',
        window_size: int = 7,
        alpha: float = 4,
        dwc_kernel_size: int = 5,
        gate_init: str = 'authors',
        mlp_ratio: float = 4.0,
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
        if window_size < 1:
            raise ValueError(f'window_size: expected at least 1, got {window_size}')
        settings = resolve_arch(arch, ARCHS, keys=('embed_dims', 'depths', 'num_heads'))
        embed_dims = [settings['embed_dims'] * 2**index for index in range(4)]
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

        self.stem = PatchEmbed(in_channels, embed_dims[0])
        self.stages = nn.ModuleList()
        for index in range(out_indices[-1] + 1):
            dim = embed_dims[index]
            grid = token_grid(pretrain_img_size, STRIDES[index])
            downsample = None
            stage_drop = drop_rate
            if index > 0:
                downsample = PatchMerging(embed_dims[index - 1])
                stage_drop = 0.0
            blocks = []
            for number in range(depths[index]):
                attn: nn.Module
                if letters[index][number] == 'S':
                    shift = 0
                    if number % 2 == 1:
                        shift = window_size // 2
                    attn = WindowAttention(
                        dim,
                        num_heads[index],
                        window_size,
                        shift=shift,
                        qkv_bias=qkv_bias,
                        proj_drop=drop_rate,
                    )
                else:
                    attn = PolaAttention(
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
                block = TransformerBlock(
                    attn,
                    dim,
                    mlp_ratio,
                    norm_eps=NORM_EPS,
                    drop=drop_rate,
                    drop_path=rates[index][number],
                )
                blocks.append(block)
            self.stages.append(SwinStage(blocks, downsample, grid, drop=stage_drop))
        self.add_output_norms(NORM_EPS)
        self.freeze_stages()
