"""Patch embedding of images and of the maps between stages."""

from __future__ import annotations

from torch import Tensor, nn

from mmpola.layers.padding import pad_to_cells
from mmpola.layers.position import Grid


class PatchEmbed(nn.Module):
    """Embed patches of s x s pixels: [B, in_channels, H, W] -> tokens [B, N, C] and their grid.

    Sides that s does not divide are padded with zeros below and on the right. timm's PatchEmbed has the same parameters
    but does not return the grid, which every attention layer of mmpola needs.

    Args:
        in_channels: channels of the image or map.
        dim: channels C of a token.
        patch_size: s.
        norm: whether to end with a LayerNorm.
    """

    def __init__(self, in_channels: int, dim: int, patch_size: int = 4, *, norm: bool = True) -> None:
        super().__init__()
        self.patch_size = patch_size
        self.proj = nn.Conv2d(in_channels, dim, kernel_size=patch_size, stride=patch_size)
        self.norm = nn.LayerNorm(dim) if norm else nn.Identity()

    def forward(self, x: Tensor) -> tuple[Tensor, Grid]:
        """x [B, in_channels, H, W] -> tokens [B, N, C] and their grid (ceil(H / s), ceil(W / s))."""
        x = self.proj(pad_to_cells(x, (x.shape[2], x.shape[3]), self.patch_size, channels_last=False))
        return self.norm(x.flatten(2).transpose(1, 2)), (x.shape[2], x.shape[3])
