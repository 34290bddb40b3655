"""Feature maps: what turns queries and keys into non-negative features (E4-E8, E14, E16-E18).

A map gives one key feature tensor and one or two query feature tensors, in the layout [B, H, N, D] -> [B, H, N, 2D].
`streams` lines the two value streams (same-signed, opposite-signed) up with the query features they are read with.
`shift` is what a map must know of all keys before it can make features that do not overflow.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

LOG2_OF_ZERO = -1100.0
"""Stands for log2(0): finite, so that 0 * log(0) is 0, and small enough that exp2(p * it) is 0 in float64 too."""

UNREACHED = -1e30
"""Stands for log(0), as the shift of a channel that no key reaches: there a query's feature counts nothing."""


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


Signs = tuple[Tensor, Tensor]
"""Where x > 0 and where x < 0, as 1 and 0 in x's dtype: on a CPU a product with these is faster than a selection."""


def signs_of(x: Tensor) -> Signs:
    sign = x.detach().sign()
    return sign.relu(), sign.neg().relu()


def by_sign(signs: Signs, halves: Tensor) -> Tensor:
    """halves [..., 2D] -> what the sign of each element selects [..., D]: the first where x > 0, 0 where x is 0."""
    (positive, negative), (first, second) = signs, halves.chunk(2, dim=-1)
    return torch.addcmul(positive * first, negative, second)


class ScaledExp(Function):
    """size, offset [..., D], signs -> features [..., 2D] and slope [..., D], so that exp(size) itself is never formed.

    Features are (exp(size) - 1) exp(offset), in the half that the sign selects, as exp(size + offset) (1 - exp(-size)),
    which neither overflows nor cancels. The slope, d feature / d size, is exp(size + offset). `offset` is a constant.
    """

    @staticmethod
    def forward(size: Tensor, offset: Tensor, positive: Tensor, negative: Tensor) -> tuple[Tensor, Tensor]:
        slope = (size + offset).exp_()
        feature = size.neg().expm1_().mul_(slope).neg_()
        return torch.cat([feature * positive, feature * negative], dim=-1), slope

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs[2:], output[1])

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, grad_slope: Tensor | None) -> tuple[Tensor, None, None, None]:
        positive, negative, slope = ctx.saved_tensors
        d_feature = 0 if grad is None else by_sign((positive, negative), grad)
        if grad_slope is not None:  # in a second derivative: the slope's slope is itself
            d_feature = d_feature + grad_slope
        return d_feature * slope, None, None, None


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

    def shift(self, k: Tensor, paired: bool) -> Tensor:
        """0: powers are not shifted; |x|^p of fp16 inputs stays below 65504^5 = 1e24."""
        return k.new_zeros(())

    def key(self, k: Tensor, shift: Tensor) -> Tensor:
        """[B, H, M, D] -> psi [B, H, M, 2D] (E4, E6)."""
        return self._features(k)

    def query(self, q: Tensor, shift: Tensor, eps: float) -> list[tuple[Tensor, Tensor | float]]:
        """[B, H, N, D] -> [(phi_same [B, H, N, 2D], eps)] (E7); phi_opposite is that with its halves swapped (E8)."""
        return [(self._features(q), eps)]

    def _features(self, x: Tensor) -> Tensor:
        x = x if self.scale is None else x * self.scale.reciprocal().unsqueeze(-2)
        return SignedPower.apply(x, self.exponent.unsqueeze(-2))

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

    def shift(self, k: Tensor, paired: bool) -> Tensor:
        """kappa [B, H, 1, 2D] of keys [B, H, M, D] (E16), a constant; 0 where no key reaches the channel.

        Args:
            paired: whether rotary tables will mix the channels of an interleaved pair, which then share it.
        """
        k = k.detach()
        largest = torch.cat([k.amax(-2, keepdim=True), -k.amin(-2, keepdim=True)], dim=-1).clamp_min(0)
        if paired:
            pairs = largest.unflatten(-1, (-1, 2))
            largest = pairs.amax(-1, keepdim=True).expand_as(pairs).flatten(-2)
        return largest.ceil()  # a whole number, so that a difference keeps k's last bits

    def key(self, k: Tensor, shift: Tensor) -> Tensor:
        """[B, H, M, D] -> psi' = psi exp(-kappa) [B, H, M, 2D] (E14, E17)."""
        signs = signs_of(k)
        psi, _ = ScaledExp.apply(k.abs(), by_sign(signs, -shift), *signs)
        return psi

    def query(self, q: Tensor, shift: Tensor, eps: float) -> list[tuple[Tensor, Tensor | float]]:
        """[B, H, N, D] -> [(phi'_same, eps'), (phi'_opposite, eps')], [B, H, N, 2D] and [B, H, N, 1] (E14, E18)."""
        reach = shift.masked_fill(shift == 0, UNREACHED)
        magnitude, (positive, negative) = q.abs(), signs_of(q)
        return [
            _scaled_query(magnitude, (positive, negative), self.same.unsqueeze(-2), reach, eps),
            _scaled_query(magnitude, (negative, positive), self.opposite.unsqueeze(-2), reach, eps),
        ]

    def streams(self, state: Tensor, key_mean: Tensor) -> list[tuple[Tensor, Tensor]]:
        """state [..., 2D, D] = [S_same | S_opposite], key_mean [..., 2D, 1] -> for each query its (state, key mean)."""
        same, opposite = state.chunk(2, dim=-1)
        return [(same, key_mean), (opposite, key_mean)]


def _scaled_query(
    magnitude: Tensor, signs: Signs, temperature: Tensor, reach: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """One stream's phi' [B, H, N, 2D] and eps' [B, H, N, 1] (E18)."""
    size = magnitude * by_sign(signs, temperature)
    shift = by_sign(signs, reach)
    level = (size.detach() + shift).amax(-1, keepdim=True).clamp_min(0).ceil()  # constant and whole like the shift
    phi, _ = ScaledExp.apply(size, shift - level, *signs)
    return phi, (eps * (-level).exp()).clamp_min(torch.finfo(size.dtype).tiny)


FeatureMap = PowerMap | ExpMap
