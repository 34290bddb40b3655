"""Depth-wise deformable convolution of tokens, for PolaFormer's ablation of local mixing."""

from __future__ import annotations

from einops import rearrange
from torch import Tensor, nn
from torchvision.ops import DeformConv2d, deform_conv2d

from mmpola.layers.token_maps import Grid
from mmpola.ops.numerics import accumulation_dtype, without_autocast


class DepthwiseDeformableConv(nn.Module):
    """Depth-wise deformable convolution (Dai et al., ICCV 2017) with weights that all heads share.

    Another convolution of the same kernel size computes the offsets of the taps from the tokens of
    a head. Its weights start at 0, so this starts as an ordinary depth-wise convolution.

    Args:
        channels: channels D of a head.
        kernel_size: side of both convolutions' kernels, odd.
    """

    def __init__(self, channels: int, kernel_size: int) -> None:
        super().__init__()
        padding = kernel_size // 2
        self.offset = nn.Conv2d(channels, 2 * kernel_size**2, kernel_size, padding=padding)
        self.conv = WideDeformConv2d(
            channels, channels, kernel_size, padding=padding, groups=channels
        )
        for parameter in self.offset.parameters():
            nn.init.zeros_(parameter)

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        """x [B, N, C] on the token grid (h, w), N = h * w, C a multiple of D -> [B, N, C]."""
        channels = self.conv.in_channels
        heads = x.shape[2] // channels
        maps = rearrange(x, 'b (h w) (n d) -> (b n) d h w', h=grid[0], d=channels)
        mixed = self.conv(maps, self.offset(maps))
        return rearrange(mixed, '(b n) d h w -> b (h w) (n d)', n=heads)


class WideDeformConv2d(DeformConv2d):
    """torchvision's deformable convolution, computed in at least float32.

    Its CPU kernel has no bfloat16, and float16 would round the positions that are sampled.
    """

    def forward(self, x: Tensor, offset: Tensor) -> Tensor:
        """Convolve a map [B, C, h, w] at the offsets [B, 2 * taps, h, w], in the dtype of x."""
        dtype = accumulation_dtype(x.dtype)
        with without_autocast(x.device):
            mixed = deform_conv2d(
                x.to(dtype),
                offset.to(dtype),
                self.weight.to(dtype),
                self.bias.to(dtype),
                padding=self.padding,
            )
        return mixed.to(x.dtype)
