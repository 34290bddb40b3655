"""Feature maps: what turns queries and keys into non-negative features (E4-E8, E14).

A map gives one key feature tensor and one or two query feature tensors, in the layout [B, H, N, D] -> [B, H, N, 2D].
`streams` lines the two value streams (same-signed, opposite-signed) up with the query features they are read with.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

LOG2_OF_ZERO = -1100.0
"""Stands for log2(0): finite, so that 0 * log(0) is 0, and small enough that exp2(p * it) is 0 in float64 too."""


def swap_halves(x: Tensor, dim: int) -> Tensor:
    """Exchange the two halves of `dim`: the positive features with the negative ones."""
    first, second = x.chunk(2, dim)
    return torch.cat([second, first], dim)


class SignedPower(Function):
    """x [..., D], exponent [D'] broadcastable to x -> [(x+)^p ; (x-)^p] [..., 2D] (E6), with the gradient of (E13).

    One of x+, x- is always zero, so |x|^p is computed once per element, as exp2(p log2|x|).
    """

    @staticmethod
    def forward(x: Tensor, exponent: Tensor) -> Tensor:
        power = x.abs().log2_().mul_(exponent).exp2_()
        signed = torch.copysign(power, x)
        positive = signed.relu()
        return torch.cat([positive, positive - signed], dim=-1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, exponent = ctx.saved_tensors
        grad_positive, grad_negative = grad.chunk(2, dim=-1)
        log2 = x.abs().log2().clamp_min(LOG2_OF_ZERO)
        weighted = torch.where(x > 0, grad_positive, grad_negative) * (log2 * exponent).exp2()  # a da
        grad_x = grad_exponent = None
        if ctx.needs_input_grad[0]:
            # p a / |x| with the sign of the half; x = 0 has a = 0, so any finite divisor gives the 0 of (E13).
            grad_x = weighted * exponent / x.masked_fill(x == 0, 1)
        if ctx.needs_input_grad[1]:
            natural_log = log2 * 0.6931471805599453
            grad_exponent = (weighted * natural_log).sum_to_size(exponent.shape)
        return grad_x, grad_exponent


@dataclass(frozen=True, eq=False)
class PowerMap:
    """PolaFormer's map (E4-E8): [(x+/s)^p ; (x-/s)^p].

    Args:
        exponent: p, [H, D], greater than 1.
        scale: s, [H, D], positive; None for 1.
    """

    exponent: Tensor
    scale: Tensor | None = None

    def parameters(self) -> dict[str, Tensor | None]:
        return {'exponent': self.exponent, 'scale': self.scale}

    def feature_sizes(self, head_dim: int) -> dict[str, int]:
        """The size that each parameter's last dimension must have."""
        return {'exponent': head_dim, 'scale': head_dim}

    def with_parameters(self, **parameters: Any) -> PowerMap:
        return replace(self, **parameters)

    def key(self, k: Tensor) -> Tensor:
        """[B, H, M, D] -> psi [B, H, M, 2D] (E4, E6)."""
        x = k if self.scale is None else k * self.scale.reciprocal().unsqueeze(-2)
        return SignedPower.apply(x, self.exponent.unsqueeze(-2))

    def query(self, q: Tensor) -> list[Tensor]:
        """[B, H, N, D] -> [phi_same [B, H, N, 2D]] (E7); phi_opposite is that with its halves swapped (E8)."""
        return [self.key(q)]

    def streams(self, state: Tensor, key_mean: Tensor) -> list[tuple[Tensor, Tensor]]:
        """state [..., 2D, D] = [S_same | S_opposite], key_mean [..., 2D, 1] -> for the query its (state, key means).

        phi_opposite S = phi_same swap(S): swapping rows of the small state lets one product serve both streams.
        """
        same, opposite = state.chunk(2, dim=-1)
        both_states = torch.cat([same, swap_halves(opposite, -2)], dim=-1)
        both_means = torch.cat([key_mean, swap_halves(key_mean, -2)], dim=-1)
        return [(both_states, both_means)]


@dataclass(frozen=True, eq=False)
class ExpMap:
    """PolaFormer++'s map with channel-wise spikiness (E14): exp([q+ ; q-] * temperature) - 1, keys without temperature.

    Args:
        same: temperatures of the same-signed query features, sigma(s1), [H, 2D].
        opposite: temperatures of the opposite-signed query features, sigma(s2), [H, 2D].
    """

    same: Tensor
    opposite: Tensor

    def parameters(self) -> dict[str, Tensor | None]:
        return {'same': self.same, 'opposite': self.opposite}

    def feature_sizes(self, head_dim: int) -> dict[str, int]:
        """The size that each parameter's last dimension must have."""
        return {'same': 2 * head_dim, 'opposite': 2 * head_dim}

    def with_parameters(self, **parameters: Any) -> ExpMap:
        return replace(self, **parameters)

    def key(self, k: Tensor) -> Tensor:
        """[B, H, M, D] -> psi [B, H, M, 2D] (E14)."""
        return torch.cat([k.relu(), (-k).relu()], dim=-1).expm1()

    def query(self, q: Tensor) -> list[Tensor]:
        """[B, H, N, D] -> [phi_same, phi_opposite], each [B, H, N, 2D] (E14)."""
        positive, negative = q.relu(), (-q).relu()
        same = torch.cat([positive, negative], dim=-1) * self.same.unsqueeze(-2)
        opposite = torch.cat([negative, positive], dim=-1) * self.opposite.unsqueeze(-2)
        return [same.expm1(), opposite.expm1()]

    def streams(self, state: Tensor, key_mean: Tensor) -> list[tuple[Tensor, Tensor]]:
        """state [..., 2D, D] = [S_same | S_opposite], key_mean [..., 2D, 1] -> for each query its (state, key mean)."""
        same, opposite = state.chunk(2, dim=-1)
        return [(same, key_mean), (opposite, key_mean)]


FeatureMap = PowerMap | ExpMap
