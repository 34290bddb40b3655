"""Feature maps: what turns queries and keys into non-negative features (E4-E8, E9, E11-E13).

A map gives one key feature tensor and one or two query feature tensors, in the layout [B, H, N, D] -> [B, H, N, 2D].
`streams` lines the two value streams (same-signed, opposite-signed) up with the query features they are read with.
`shift` is what a map must know of all queries and keys to make features that do not overflow; None if they cannot.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from mmpola.ops.numerics import is_traced

LOG2_OF_ZERO = -1100.0
"""Stands for log2(0): finite, so that 0 * log(0) is 0, and so small that exp2(p * it) is 0 in float64, any scale."""

IN_RANGE = 30.0
"""Sum of a query's and a key's exponents up to which float32 (88) holds what is formed of their features: products in
the state, and the squared normalisers of a second derivative.
"""

UNREACHED = -1e30
"""Stands for log(0), as the shift where a query or every key is 0: there the query's feature counts nothing."""


def swap_halves(x: Tensor, dim: int) -> Tensor:
    """Exchange the two halves of `dim`: the positive features with the negative ones."""
    first, second = x.chunk(2, dim)
    return torch.cat([second, first], dim)


def signed_halves(x: Tensor) -> Tensor:
    """x [..., D] -> [x+ ; x-] [..., 2D], not recorded by autograd."""
    if is_traced():  # a compiler plans memory itself, and does not know `out=` with views
        positive = x.relu()
        return torch.cat([positive, positive - x], dim=-1)
    halves = x.new_empty(*x.shape[:-1], 2 * x.shape[-1])
    positive, negative = halves.chunk(2, dim=-1)
    torch.clamp_min(x, 0, out=positive)
    torch.sub(positive, x, out=negative)
    return halves


class SignedHalves(Function):
    """x [..., D] -> [x+ ; x-] [..., 2D]; 0 has no gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return signed_halves(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        sign, (grad_positive, grad_negative) = x.sign(), grad.chunk(2, dim=-1)
        positive = sign.relu()  # products, because a CPU selects by random signs at a tenth of their speed
        return torch.addcmul(positive * grad_positive, positive - sign, grad_negative, value=-1)


class SignedPower(Function):
    """x [..., D] -> [(x+)^p 2^c ; (x-)^p 2^c] [..., 2D] (E6), with the gradient of (E18).

    One of x+, x- is always zero, so the power is computed once per element, as exp2(p log2|x| + c). The exponent p and
    c, which holds the scale (E4), broadcast to x.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, exponent: Tensor, offset: Tensor) -> Tensor:
        log2 = x.abs().log2_().clamp_min_(LOG2_OF_ZERO)
        signed = torch.copysign(torch.addcmul(offset, log2, exponent).exp2_(), x)
        features = signed_halves(signed)
        ctx.save_for_backward(x, exponent, offset, log2, features)
        return features

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, exponent, offset, log2, features = ctx.saved_tensors
        magnitude = x.abs()
        if torch.is_grad_enabled():  # a second derivative: the logarithm recorded, and finite slopes of it where x = 0
            magnitude = magnitude.masked_fill(x == 0, 1)
            log2 = magnitude.log2()
        (positive, negative), (grad_positive, grad_negative) = features.chunk(2, dim=-1), grad.chunk(2, dim=-1)
        weighted = torch.addcmul(positive * grad_positive, negative, grad_negative)  # a da
        grad_x = grad_exponent = grad_offset = None
        if ctx.needs_input_grad[0]:
            # p a / x, whose sign is that of the half; x = 0 has a = 0, so any other divisor gives the 0 of (E18). A
            # subnormal x gets too small a slope.
            divisor = torch.copysign(magnitude.clamp_min(torch.finfo(x.dtype).tiny), x)
            grad_x = weighted * exponent / divisor
        if ctx.needs_input_grad[1]:
            grad_exponent = (weighted * log2).sum_to_size(exponent.shape) * math.log(2)
        if ctx.needs_input_grad[2]:
            grad_offset = weighted.sum_to_size(offset.shape) * math.log(2)
        return grad_x, grad_exponent, grad_offset


class ScaledExp(Function):
    """size, offset [..., 2D] -> (exp(size) - 1) exp(offset) for size >= 0, so that exp(size) itself is never formed.

    It is computed as exp(size + offset) (1 - exp(-size)), which neither overflows nor cancels; the slope is itself plus
    exp(offset). `offset` is a constant, None for 0 where exp(size) is known to stay in range.
    """

    @staticmethod
    def forward(ctx: Any, size: Tensor, offset: Tensor | None) -> Tensor:
        features = size.expm1() if offset is None else -size.neg().expm1_().mul_((size + offset).exp_())
        ctx.save_for_backward(features, offset)
        return features

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        features, offset = ctx.saved_tensors
        if offset is None:
            return torch.addcmul(grad, grad, features), None
        return grad * (features + offset.exp()), None


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

    def shift(self, q: Tensor, k: Tensor, paired: bool) -> None:
        """None: powers are not shifted; |x|^p of fp16 inputs stays below 65504^5 = 1e24."""

    def key(self, k: Tensor, shift: Tensor | None) -> Tensor:
        """[B, H, M, D] -> psi [B, H, M, 2D] (E4, E6)."""
        return self._features(k)

    def query(self, q: Tensor, shift: Tensor | None, eps: float) -> list[tuple[Tensor, Tensor | float]]:
        """[B, H, N, D] -> [(phi_same [B, H, N, 2D], eps)] (E7); phi_opposite is that with its halves swapped (E8)."""
        return [(self._features(q), eps)]

    def _features(self, x: Tensor) -> Tensor:
        offset = torch.zeros_like(self.exponent) if self.scale is None else -self.exponent * self.scale.log2()
        return SignedPower.apply(x, self.exponent.unsqueeze(-2), offset.unsqueeze(-2))

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
    """PolaFormer++'s map with channel-wise spikiness (E9): exp([q+ ; q-] * temperature) - 1, keys without temperature.

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

    def shift(self, q: Tensor, k: Tensor, paired: bool) -> Tensor | None:
        """kappa [B, H, 1, 2D] of keys [B, H, M, D] (E11), a constant; 0 where no key reaches the channel.

        None where a CPU sees that no exponential can leave float32's range: E9 is computed as it stands, in half the
        time. Another device would have to be waited for; a compiler, an exporter and a fake tensor cannot know.

        Args:
            paired: whether rotary tables will mix the channels of an interleaved pair, which then share it.
        """
        q, k = q.detach(), k.detach()
        known = k.device.type == 'cpu' and type(k) is Tensor and not is_traced()
        if known and self._largest_exponent(q, k) <= IN_RANGE:
            return None
        largest = torch.cat([k.amax(-2, keepdim=True), -k.amin(-2, keepdim=True)], dim=-1).clamp_min(0)
        if paired:
            pairs = largest.unflatten(-1, (-1, 2))
            largest = pairs.amax(-1, keepdim=True).expand_as(pairs).flatten(-2)
        return largest.ceil()  # a whole number, so that a difference keeps k's last bits

    def _largest_exponent(self, q: Tensor, k: Tensor) -> Tensor:
        """A bound of what `exp` sees in products of query and key features, []."""
        temperature = torch.maximum(self.same.detach().abs().amax(), self.opposite.detach().abs().amax())
        largest_q, largest_k = (torch.stack(x.aminmax()).abs().amax() if x.numel() else x.new_zeros(()) for x in (q, k))
        return largest_q * temperature + largest_k

    def key(self, k: Tensor, shift: Tensor | None) -> Tensor:
        """[B, H, M, D] -> psi' = psi exp(-kappa) [B, H, M, 2D] (E9, E12)."""
        return ScaledExp.apply(SignedHalves.apply(k), None if shift is None else -shift)

    def query(self, q: Tensor, shift: Tensor | None, eps: float) -> list[tuple[Tensor, Tensor | float]]:
        """[B, H, N, D] -> [(phi'_same, eps'), (phi'_opposite, eps')], [B, H, N, 2D] and [B, H, N, 1] (E9, E13)."""
        same = SignedHalves.apply(q)
        return [
            _scaled_query(same, self.same.unsqueeze(-2), shift, eps),
            _scaled_query(swap_halves(same, -1), self.opposite.unsqueeze(-2), shift, eps),
        ]

    def streams(self, state: Tensor, key_mean: Tensor) -> list[tuple[Tensor, Tensor]]:
        """state [..., 2D, D] = [S_same | S_opposite], key_mean [..., 2D, 1] -> for each query its (state, key mean)."""
        same, opposite = state.chunk(2, dim=-1)
        return [(same, key_mean), (opposite, key_mean)]


def _scaled_query(
    halves: Tensor, temperature: Tensor, shift: Tensor | None, eps: float
) -> tuple[Tensor, Tensor | float]:
    """One stream's phi' [B, H, N, 2D] and eps' [B, H, N, 1] (E13); phi (E9) and eps itself without a shift."""
    size = halves * temperature
    if shift is None:
        return ScaledExp.apply(size, None), max(eps, torch.finfo(size.dtype).tiny)
    reached = (halves.detach() > 0) & (shift > 0)
    shift = torch.where(reached, shift, UNREACHED)
    level = (size.detach() + shift).amax(-1, keepdim=True).clamp_min(0).ceil()  # constant and whole like the shift
    return ScaledExp.apply(size, shift - level), (eps * (-level).exp()).clamp_min(torch.finfo(size.dtype).tiny)


FeatureMap = PowerMap | ExpMap
