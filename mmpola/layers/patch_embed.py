"""The patch embedding of images and of the maps between stages."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from mmpola.layers.position import Grid


class PatchEmbed(nn.Module):
    """s x s patches to tokens: [B, in_channels, H, W] -> [B, N, C] and their grid; partial patches are padded.

    Args:
        in_channels: of the image or map.
        dim: channels C of a token.
        patch_size: s.
        norm: end with a LayerNorm.
    """

    def __init__(self, in_channels: int, dim: int, patch_size: int = 4, *, norm: bool = True) -> None:
        super().__init__()
        self.patch_size = patch_size
        self.proj = nn.Conv2d(in_channels, dim, kernel_size=patch_size, stride=patch_size)
        self.norm = nn.LayerNorm(dim) if norm else nn.Identity()

    def forward(self, x: Tensor) -> tuple[Tensor, Grid]:
        height, width = x.shape[-2:]
        if height % self.patch_size or width % self.patch_size:
            x = F.pad(x, (0, -width % self.patch_size, 0, -height % self.patch_size))
        x = self.proj(x)
        return self.norm(x.flatten(2).transpose(1, 2)), (x.shape[2], x.shape[3])
