"""Learned feature maps: modules that return the `PowerMap` or `ExpMap` of a layer."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmpola.ops import ExpMap, PowerMap
from mmpola.ops.numerics import accumulation_dtype


class LearnedPowerMap(nn.Module):
    """PolaFormer's feature map with a learned exponent and a learned scale per channel (E4, E5).

    Parameters have the shapes of the released weights: power [1, H, 1, D], scale [1, 1, C].

    Args:
        dim: channels C.
        num_heads: heads H; D = C / H is even.
        alpha: exponents lie in (1, 1 + alpha).

    Raises:
        ValueError: `num_heads` does not fit, or `alpha` is not positive and finite.
    """

    def __init__(self, dim: int, num_heads: int, alpha: float) -> None:
        super().__init__()
        if not isinstance(alpha, (int, float)) or not 0 < alpha < math.inf:
            raise ValueError(f'alpha: expected a positive number, got {alpha!r}')
        check_head_dim(dim, num_heads)
        self.alpha = alpha
        self.power = nn.Parameter(torch.zeros(1, num_heads, 1, dim // num_heads))
        self.scale = nn.Parameter(torch.zeros(1, 1, dim))

    def forward(self) -> PowerMap:
        """Return the exponent and the scale, [H, D] in the accumulation dtype."""
        dtype = accumulation_dtype(self.power.dtype)
        # squeeze and view_as: the gradient of an index would fill a table with zeros first
        power = self.power.squeeze((0, 2)).to(dtype)
        scale = self.scale.view_as(power).to(dtype)
        exponent = 1 + self.alpha * power.sigmoid()  # (E5)
        return PowerMap(exponent, F.softplus(scale))  # (E4)


class LearnedExpMap(nn.Module):
    """PolaFormer++'s feature map with a learned temperature per feature (E9).

    Parameters have the shapes of the released weights: s1, s2 [1, H, 1, 2D].

    Args:
        dim: channels C.
        num_heads: heads H; D = C / H is even.

    Raises:
        ValueError: `num_heads` does not fit.
    """

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__()
        check_head_dim(dim, num_heads)
        features = 2 * dim // num_heads  # two signs per channel
        self.s1 = nn.Parameter(torch.zeros(1, num_heads, 1, features))
        self.s2 = nn.Parameter(torch.zeros(1, num_heads, 1, features))

    def forward(self) -> ExpMap:
        """Return sigmoid(s1) and sigmoid(s2), each [H, 2D] in the accumulation dtype."""
        dtype = accumulation_dtype(self.s1.dtype)
        same = self.s1.squeeze((0, 2)).to(dtype).sigmoid()
        opposite = self.s2.squeeze((0, 2)).to(dtype).sigmoid()
        return ExpMap(same, opposite)


def check_head_dim(dim: int, num_heads: int) -> None:
    """Raise ValueError unless `dim` splits into heads of an even dimension."""
    if num_heads < 1 or dim % (2 * num_heads):
        raise ValueError(
            f'num_heads: expected a number that divides dim={dim} into heads of an even '
            f'dimension (values split into two streams), got {num_heads}'
        )


def mask_padding(x: Tensor, padding: Tensor) -> Tensor:
    """Zero keys or values [B, M, H, D] where `padding` [B, M] is True.

    A zero key has zero features in both feature maps, so it adds nothing to any sum: the operators
    need no mask.
    """
    return x.masked_fill(padding[..., None, None], 0)
