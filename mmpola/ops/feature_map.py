"""Feature maps: how queries and keys become non-negative features (E4-E9, E11-E13).

A map computes one key feature tensor and one or two query feature tensors, [B, H, N, D] -> [B, H, N, 2D]. `streams`
returns the part of the state that each query feature tensor is multiplied with. `shift` returns what a map must know
about all keys to prevent its features from overflowing, or None if it need not know anything.

Eager code runs autograd functions, which are fast on a CPU. Where `is_recorded`, the same features are computed with
PyTorch's own operators only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from mmpola.ops.numerics import is_recorded

LOG2_OF_ZERO = -1100
"""Used for log2(0): finite, so that 0 * log(0) is 0, and so small that exp2(p * LOG2_OF_ZERO) is 0 even in float64."""

UNSHIFTED_LIMIT = 30.0
"""Largest sum of a query's and a key's exponent for which ExpMap needs no shift.

float32 reaches exp(88). The margin is for the products in the state and the squared normalisers of second derivatives.
"""

EXCLUDED = -1e30
"""Shift of a channel in which the query or every key is 0: it excludes the channel from the level of (E13)."""


def swap_halves(x: Tensor, dim: int) -> Tensor:
    """Swap the two halves of `dim`: the positive features with the negative ones."""
    first, second = x.chunk(2, dim)
    return torch.cat([second, first], dim)


def signed_halves(x: Tensor) -> Tensor:
    """Compute [x+ ; x-] [..., 2D] of x [..., D]; the gradient at 0 is 0."""
    return torch.cat([x.relu(), x.neg().relu()], dim=-1) if is_recorded() else SignedHalves.apply(x)


def signed_power(x: Tensor, exponent: Tensor, offset: Tensor, *, leveled: bool) -> tuple[Tensor, Tensor | None]:
    """Compute [(x+)^p 2^(c-l) ; (x-)^p 2^(c-l)] [..., 2D] of x [..., D], and l [..., 1] (E6, E7, E8a).

    Args:
        x: [..., D].
        exponent: p; it broadcasts to x.
        offset: c = -p log2(s), which applies the scale s; it broadcasts to x.
        leveled: whether l is the level of each token; otherwise l is 0, given as None.
    """
    if not is_recorded():
        return SignedPower.apply(x, exponent, offset, leveled)
    magnitude = x.abs()
    is_zero = magnitude < torch.finfo(x.dtype).tiny
    size = torch.addcmul(offset, magnitude.masked_fill(is_zero, 1).log2(), exponent)
    level = _level(size.detach().masked_fill(is_zero, 0)) if leveled else None
    power = (size if level is None else size - level).exp2().masked_fill(is_zero, 0)
    return signed_halves(power * x.sign()), level


def _level(size: Tensor) -> Tensor:
    """Return the smallest integer >= 0 that no element of a token exceeds: [..., D] -> [..., 1]."""
    return size.amax(-1, keepdim=True).clamp_min(0).ceil()


def shifted_expm1(size: Tensor, offset: Tensor | None) -> Tensor:
    """Compute (exp(size) - 1) exp(offset) for size >= 0; see `ShiftedExpm1`."""
    if not is_recorded():
        return ShiftedExpm1.apply(size, offset)
    return size.expm1() if offset is None else -size.neg().expm1() * (size + offset).exp()


def _write_halves(x: Tensor) -> Tensor:
    """Compute `signed_halves` in place of a concatenation, not recorded by autograd."""
    halves = x.new_empty(*x.shape[:-1], 2 * x.shape[-1])
    positive, negative = halves.chunk(2, dim=-1)
    torch.clamp_min(x, 0, out=positive)
    torch.sub(positive, x, out=negative)
    return halves


class SignedHalves(Function):
    """x [..., D] -> [x+ ; x-] [..., 2D]; the gradient at 0 is 0."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return _write_halves(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        sign, (grad_positive, grad_negative) = x.sign(), grad.chunk(2, dim=-1)
        positive = sign.relu()  # products, because `where` on random signs is many times slower on a CPU
        return torch.addcmul(positive * grad_positive, positive - sign, grad_negative, value=-1)


class SignedPower(Function):
    """`signed_power`, with the gradient of (E18); the level is a constant.

    One of x+ and x- is always zero, so the power is computed once per element, as exp2(p log2|x| + c - l).
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, exponent: Tensor, offset: Tensor, leveled: bool) -> tuple[Tensor, Tensor | None]:
        log2 = x.abs().log2_().clamp_min_(LOG2_OF_ZERO)
        size, level = torch.addcmul(offset, log2, exponent), None
        if leveled:
            level = _level(size)
            size -= level
            ctx.mark_non_differentiable(level)
        features = _write_halves(torch.copysign(size.exp2_(), x))
        ctx.save_for_backward(x, exponent, offset, log2, features)
        return features, level

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Any) -> tuple[Tensor | None, ...]:
        x, exponent, offset, log2, features = ctx.saved_tensors
        magnitude = x.abs()
        if torch.is_grad_enabled():  # second derivative: autograd must record the logarithm, with a finite slope at 0
            magnitude = magnitude.masked_fill(x == 0, 1)
            log2 = magnitude.log2()
        (positive, negative), (grad_positive, grad_negative) = features.chunk(2, dim=-1), grad.chunk(2, dim=-1)
        weighted = torch.addcmul(positive * grad_positive, negative, grad_negative)  # a da
        grad_x = grad_exponent = grad_offset = None
        if ctx.needs_input_grad[0]:
            # dx = p a / x da with the sign of the half. At x = 0 the feature a is 0, so any divisor gives the 0 of
            # (E18); for subnormal x the slope is too small.
            divisor = torch.copysign(magnitude.clamp_min(torch.finfo(x.dtype).tiny), x)
            grad_x = weighted * exponent / divisor
        if ctx.needs_input_grad[1]:
            grad_exponent = (weighted * log2).sum_to_size(exponent.shape) * math.log(2)
        if ctx.needs_input_grad[2]:
            grad_offset = weighted.sum_to_size(offset.shape) * math.log(2)
        return grad_x, grad_exponent, grad_offset, None


class ShiftedExpm1(Function):
    """size, offset [..., 2D] -> (exp(size) - 1) exp(offset) for size >= 0, without computing exp(size) itself.

    Computed as exp(size + offset) (1 - exp(-size)), which neither overflows nor cancels. The slope is the feature plus
    exp(offset). `offset` is treated as a constant; None means 0, if exp(size) is known not to overflow.
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
    """PolaFormer's map (E4-E8a): [(x+/s)^p ; (x-/s)^p], of a query divided by 2^level.

    Args:
        exponent: p, [H, D], greater than 1.
        scale: s, [H, D], positive; None for 1.
    """

    exponent: Tensor
    scale: Tensor | None = None

    def parameters(self) -> dict[str, Tensor | None]:
        """Return the map's tensors by name."""
        return {'exponent': self.exponent, 'scale': self.scale}

    def shift(self, q: Tensor, k: Tensor, paired: bool) -> None:
        """Return None: a key's powers need no shift, since |x|^p of float16 inputs stays below 65504^5 = 1e24."""

    def key(self, k: Tensor, shift: Tensor | None) -> Tensor:
        """Compute psi [B, H, M, 2D] of k [B, H, M, D] (E4, E6)."""
        return self._features(k, leveled=False)[0]

    def query(self, q: Tensor, shift: Tensor | None, eps: float) -> list[tuple[Tensor, Tensor | float]]:
        """Compute [(phi'_same [B, H, N, 2D], eps' [B, H, N, 1])] of q [B, H, N, D] (E4, E7, E8a).

        phi'_opposite is phi'_same with its halves swapped (E8); `streams` swaps the rows of the state instead.
        """
        features, level = self._features(q, leveled=True)
        assert level is not None
        return [(features, (eps * (-level).exp2()).clamp_min(torch.finfo(q.dtype).tiny))]

    def _features(self, x: Tensor, *, leveled: bool) -> tuple[Tensor, Tensor | None]:
        offset = torch.zeros_like(self.exponent) if self.scale is None else -self.exponent * self.scale.log2()
        return signed_power(x, self.exponent.unsqueeze(-2), offset.unsqueeze(-2), leveled=leveled)

    def streams(self, state: Tensor, key_mean: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Return the one state [..., 2D, D] and its key means [..., 2D, 2], for both streams together.

        phi_opposite S = phi_same swap(S): after swapping rows of the small state one product serves both streams.

        Args:
            state: [S_same | S_opposite], [..., 2D, D].
            key_mean: [..., 2D, 1].
        """
        same, opposite = state.chunk(2, dim=-1)
        both_states = torch.cat([same, swap_halves(opposite, -2)], dim=-1)
        both_means = torch.cat([key_mean, swap_halves(key_mean, -2)], dim=-1)
        return [(both_states, both_means)]


@dataclass(frozen=True, eq=False)
class ExpMap:
    """PolaFormer++'s map (E9): exp([q+ ; q-] * temperature) - 1 for queries, exp([k+ ; k-]) - 1 for keys.

    Args:
        same: temperatures of the same-signed query features, sigma(s1), [H, 2D].
        opposite: temperatures of the opposite-signed query features, sigma(s2), [H, 2D].
    """

    same: Tensor
    opposite: Tensor

    def parameters(self) -> dict[str, Tensor | None]:
        """Return the map's tensors by name."""
        return {'same': self.same, 'opposite': self.opposite}

    def shift(self, q: Tensor, k: Tensor, paired: bool) -> Tensor | None:
        """Compute kappa [B, H, 1, 2D] (E11), a constant for autograd; 0 where no key is positive in the channel.

        None if no exponential can exceed float32's range: then E9 is computed directly, in half the time. Only eager
        CPU tensors are inspected: another device would need a synchronisation, and values are unknown under tracing.

        Args:
            q: [B, H, N, D].
            k: [B, H, M, D].
            paired: whether rotary tables will mix the two channels of an interleaved pair, which then share a shift.
        """
        q, k = q.detach(), k.detach()
        can_inspect = k.device.type == 'cpu' and type(k) is Tensor and not is_recorded()
        if can_inspect and self._exponent_bound(q, k) <= UNSHIFTED_LIMIT:
            return None
        largest = torch.cat([k.amax(-2, keepdim=True), -k.amin(-2, keepdim=True)], dim=-1).clamp_min(0)
        if paired:
            pairs = largest.unflatten(-1, (-1, 2))
            largest = pairs.amax(-1, keepdim=True).expand_as(pairs).flatten(-2)
        return largest.ceil()  # an integer, so that subtracting it keeps the last bits of k

    def _exponent_bound(self, q: Tensor, k: Tensor) -> Tensor:
        """Compute an upper bound [] of the exponents in products of query and key features."""
        temperature = torch.maximum(self.same.detach().abs().amax(), self.opposite.detach().abs().amax())
        largest_q, largest_k = (torch.stack(x.aminmax()).abs().amax() if x.numel() else x.new_zeros(()) for x in (q, k))
        return largest_q * temperature + largest_k

    def key(self, k: Tensor, shift: Tensor | None) -> Tensor:
        """Compute psi' = psi exp(-kappa) [B, H, M, 2D] of k [B, H, M, D] (E9, E12)."""
        return shifted_expm1(signed_halves(k), None if shift is None else -shift)

    def query(self, q: Tensor, shift: Tensor | None, eps: float) -> list[tuple[Tensor, Tensor | float]]:
        """Compute [(phi'_same, eps'), (phi'_opposite, eps')], [B, H, N, 2D] and [B, H, N, 1], of q (E9, E13)."""
        halves = signed_halves(q)
        return [
            _shifted_query(halves, self.same.unsqueeze(-2), shift, eps),
            _shifted_query(swap_halves(halves, -1), self.opposite.unsqueeze(-2), shift, eps),
        ]

    def streams(self, state: Tensor, key_mean: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Return (S_same, key_mean) and (S_opposite, key_mean), one for each query feature tensor.

        Args:
            state: [S_same | S_opposite], [..., 2D, D].
            key_mean: [..., 2D, 1].
        """
        same, opposite = state.chunk(2, dim=-1)
        return [(same, key_mean), (opposite, key_mean)]


def _shifted_query(
    halves: Tensor, temperature: Tensor, shift: Tensor | None, eps: float
) -> tuple[Tensor, Tensor | float]:
    """Compute one stream's phi' [B, H, N, 2D] and eps' [B, H, N, 1] (E13); without a shift phi (E9) and eps."""
    size = halves * temperature
    if shift is None:
        return shifted_expm1(size, None), max(eps, torch.finfo(size.dtype).tiny)
    contributes = (halves.detach() > 0) & (shift > 0)
    shift = torch.where(contributes, shift, EXCLUDED)
    level = _level(size.detach() + shift)  # a constant integer, like the shift
    return shifted_expm1(size, shift - level), (eps * (-level).exp()).clamp_min(torch.finfo(size.dtype).tiny)


FeatureMap = PowerMap | ExpMap
