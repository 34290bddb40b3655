"""The pre-norm transformer block of Swin, PVT and DeiT."""

from __future__ import annotations

from typing import Any

from timm.layers import DropPath, Mlp
from torch import Tensor, nn

from mmpola.layers.initial_weights import draw_layer


class TransformerBlock(nn.Module):
    """x += attn(norm1(x)); x += mlp(norm2(x)), each branch with stochastic depth.

    Args:
        attn: attention layer, called as attn(x, ...).
        dim: channels C.
        mlp_ratio: hidden channels of the MLP, as a multiple of C.
        norm_eps: epsilon of both LayerNorms.
        drop: dropout rate in the MLP.
        drop_path: stochastic depth rate of both branches.
    """

    def __init__(
        self, attn: nn.Module, dim: int, mlp_ratio: float, *, norm_eps: float, drop: float, drop_path: float
    ) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, eps=norm_eps)
        self.attn = attn
        self.norm2 = nn.LayerNorm(dim, eps=norm_eps)
        self.mlp = Mlp(dim, int(dim * mlp_ratio), drop=drop)
        self.drop_path = DropPath(drop_path)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the MLP as the authors do; the attention layer has drawn its own weights."""
        draw_layer(self.mlp.fc1)
        draw_layer(self.mlp.fc2)

    def forward(self, x: Tensor, *attention_arguments: Any) -> Tensor:
        """x [B, N, C] and further arguments of the attention layer, such as the token grid (h, w) -> [B, N, C]."""
        x = x + self.drop_path(self.attn(self.norm1(x), *attention_arguments))
        return x + self.drop_path(self.mlp(self.norm2(x)))
