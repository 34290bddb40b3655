"""Feature maps: how queries and keys become non-negative features (E4-E9, E11-E13).

A map computes one key feature tensor and one or two query feature tensors, [B, H, N, D] -> [B, H,
N, 2D]. `streams` returns the part of the state that each query feature tensor is multiplied with.
`shift` returns what a map must know before it computes features, once for all tokens.

`key` and `query` state the equations in plain PyTorch, for any surroundings. `key_and_vjp` and
`query_and_vjp` compute the same fast and in place, not recorded by autograd; each also returns its
vector-Jacobian product: a function that takes the gradients of the features, and which of the
gradients of the tokens and of the map's two parameters are needed, and returns these, or None.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mmpola.ops.tracing import is_recorded

LOG2_OF_ZERO = -1100
"""Used for log2(0): finite, so that 0 * log(0) is 0, and so small that exp2(p * LOG2_OF_ZERO) is 0 even in float64."""

UNSHIFTED_LIMIT = 30.0
"""Largest sum of a query's and a key's exponent for which ExpMap needs no shift.

float32 reaches exp(88). The margin is for the products in the state and the squared normalisers of
second derivatives.
"""

EXCLUDED = -1e30
"""Shift of a channel in which the query or every key is 0: it excludes the channel from the level of (E13)."""

Queries = list[tuple[Tensor, Tensor | float]]
"""Each query feature tensor phi [B, H, N, 2D] with its epsilon, a number or [B, H, N, 1]."""

Gradients = tuple[Tensor | None, Tensor | None, Tensor | None]
"""Of the tokens [B, H, N, D] and of the map's two parameters."""

Vjp = Callable[[Sequence[Tensor], Sequence[bool]], Gradients]


def swap_halves(x: Tensor, dim: int) -> Tensor:
    """Swap the two halves of `dim`: the positive features with the negative ones."""
    return x.roll(x.shape[dim] // 2, dim)


def _signed_halves(x: Tensor) -> Tensor:
    """Compute [x+ ; x-] [..., 2D] of x [..., D]; the gradient at 0 is 0."""
    return torch.cat([x.relu(), x.neg().relu()], dim=-1)


def _write_halves(x: Tensor) -> Tensor:
    """Compute `_signed_halves` in place of a concatenation."""
    dim = x.shape[-1]
    halves = x.new_empty((*x.shape[:-1], 2 * dim))
    positive = torch.clamp_min(x, 0, out=halves.narrow(-1, 0, dim))
    torch.sub(positive, x, out=halves.narrow(-1, dim, dim))
    return halves


def _halves_gradient(x: Tensor, grad: Tensor) -> Tensor:
    sign, (grad_positive, grad_negative) = x.sign(), grad.chunk(2, dim=-1)
    positive = (
        sign.relu()
    )  # products, because `where` on random signs is many times slower on a CPU
    return torch.addcmul(positive * grad_positive, positive - sign, grad_negative, value=-1)


def _level(size: Tensor) -> Tensor:
    """Return the smallest integer >= 0 that no element of a token exceeds: [..., D] -> [..., 1]."""
    return size.amax(-1, keepdim=True).clamp_min_(0).ceil_()


@dataclass(frozen=True, eq=False)
class PowerMap:
    """PolaFormer's map (E4-E8a): [(x+/s)^p ; (x-/s)^p], of a query divided by 2^level.

    One of x+ and x- is always zero, so the power is computed once per element, as 2^(p log2|x| + c
    - level), where c = -p log2(s) applies the scale.

    Args:
        exponent: p, [H, D], greater than 1.
        scale: s, [H, D], positive; None for 1.
    """

    exponent: Tensor
    scale: Tensor | None = None

    def parameters(self) -> dict[str, Tensor | None]:
        """Return the map's tensors by name."""
        return {'exponent': self.exponent, 'scale': self.scale}

    def shift(self, q: Tensor, k: Tensor, paired: bool) -> Tensor | None:
        """Return c [H, 1, D] for eager code; `key` and `query` compute it themselves, as autograd must see.

        A key's powers need no shift against overflow, since |x|^p of float16 inputs stays below
        65504^5 = 1e24.
        """
        return None if is_recorded() else self._offset()

    def _offset(self) -> Tensor:
        offset = (
            torch.zeros_like(self.exponent)
            if self.scale is None
            else -self.exponent * self.scale.log2()
        )
        return offset.unsqueeze(-2)

    def key(self, k: Tensor, shift: Tensor | None) -> Tensor:
        """Compute psi [B, H, M, 2D] of k [B, H, M, D] (E4, E6)."""
        return self._features(k, leveled=False)[0]

    def query(self, q: Tensor, shift: Tensor | None, eps: float) -> Queries:
        """Compute [(phi'_same [B, H, N, 2D], eps' [B, H, N, 1])] of q [B, H, N, D] (E4, E7, E8a).

        phi'_opposite is phi'_same with its halves swapped (E8); `streams` swaps the rows of the
        state instead.
        """
        features, level = self._features(q, leveled=True)
        return [(features, _leveled_eps(level, eps))]

    def _features(self, x: Tensor, *, leveled: bool) -> tuple[Tensor, Tensor]:
        magnitude = x.abs()
        is_zero = magnitude < torch.finfo(x.dtype).tiny
        log2 = magnitude.masked_fill(is_zero, 1).log2()
        size = torch.addcmul(self._offset(), log2, self.exponent.unsqueeze(-2))
        level = _level(size.detach().masked_fill(is_zero, 0)) if leveled else size.new_zeros(())
        power = (size - level if leveled else size).exp2().masked_fill(is_zero, 0)
        return _signed_halves(power * x.sign()), level

    def key_and_vjp(self, k: Tensor, shift: Tensor | None) -> tuple[Tensor, Vjp]:
        """Compute `key`, and its gradients later."""
        features, _, vjp = self._features_and_vjp(k, shift, leveled=False)
        return features, vjp

    def query_and_vjp(self, q: Tensor, shift: Tensor | None, eps: float) -> tuple[Queries, Vjp]:
        """Compute `query`, and its gradients later; the level is a constant."""
        features, level, vjp = self._features_and_vjp(q, shift, leveled=True)
        assert level is not None
        return [(features, _leveled_eps(level, eps))], vjp

    def _features_and_vjp(
        self, x: Tensor, offset: Tensor | None, *, leveled: bool
    ) -> tuple[Tensor, Tensor | None, Vjp]:
        assert offset is not None
        exponent, level = self.exponent.unsqueeze(-2), None
        log2 = x.abs().log2_().clamp_min_(LOG2_OF_ZERO)
        size = torch.addcmul(offset, log2, exponent)
        if leveled:
            level = _level(size)
            size -= level
        features = _write_halves(size.exp2_().copysign_(x))

        def vjp(grads: Sequence[Tensor], needed: Sequence[bool]) -> Gradients:
            """Compute (E18), and the gradients that come through c."""
            if not any(needed):
                return None, None, None
            grad = grads[0]
            if leveled:  # where a large query shares no feature with large keys, it may be infinite at features of 0
                torch.ops.aten.threshold_backward(grad, features, 0, grad_input=grad)
            (positive, negative), (grad_positive, grad_negative) = (
                features.chunk(2, dim=-1),
                grad.chunk(2, dim=-1),
            )
            weighted = torch.addcmul(positive * grad_positive, negative, grad_negative)  # a da
            d_x = d_exponent = d_scale = None
            if needed[0]:
                # dx = p a / x da with the sign of the half. At x = 0 the feature a is 0, so any
                # divisor gives the 0 of (E18); for subnormal x the slope is too small.
                d_x = (
                    weighted
                    * exponent
                    / torch.copysign(x.abs().clamp_min_(torch.finfo(x.dtype).tiny), x)
                )
            if needed[1]:
                d_exponent = ((weighted * log2).sum_to_size(exponent.shape) * math.log(2)).squeeze(
                    -2
                )
            if self.scale is not None and any(needed[1:]):
                d_offset = (weighted.sum_to_size(offset.shape) * math.log(2)).squeeze(-2)
                if d_exponent is not None:
                    d_exponent -= d_offset * self.scale.log2()
                if needed[2]:
                    d_scale = d_offset * -self.exponent / (self.scale * math.log(2))
            return d_x, d_exponent, d_scale

        return features, level, vjp

    def streams(self, state: Tensor, key_mean: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Return the one state [..., 2D, D] and its key means [..., 2D, 2], for both streams together.

        phi_opposite S = phi_same swap(S): after swapping rows of the small state one product serves
        both streams.

        Args:
            state: [S_same | S_opposite], [..., 2D, D].
            key_mean: [..., 2D, 1].
        """
        same, opposite = state.chunk(2, dim=-1)
        both_states = torch.cat([same, swap_halves(opposite, -2)], dim=-1)
        both_means = torch.cat([key_mean, swap_halves(key_mean, -2)], dim=-1)
        return [(both_states, both_means)]

    def streams_vjp(self, grads: Sequence[Sequence[Tensor]]) -> tuple[Tensor, Tensor]:
        """Return the gradients of state and key mean from those of `streams`, which is its own inverse."""
        ((d_states, d_means),) = grads
        (d_same, d_opposite), (d_mean, d_swapped) = (
            d_states.chunk(2, dim=-1),
            d_means.chunk(2, dim=-1),
        )
        return torch.cat([d_same, swap_halves(d_opposite, -2)], dim=-1), d_mean + swap_halves(
            d_swapped, -2
        )


def _leveled_eps(level: Tensor, eps: float) -> Tensor:
    return (-level).exp2_().mul_(eps).clamp_min_(torch.finfo(level.dtype).tiny)


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

        None if no exponential can exceed float32's range: then E9 is computed directly, in half the
        time. Only eager CPU tensors are inspected: another device would need a synchronisation, and
        values are unknown under tracing.

        Args:
            q: [B, H, N, D].
            k: [B, H, M, D].
            paired: whether rotary tables will mix the two channels of an interleaved pair, which
                then share a shift.
        """
        q, k = q.detach(), k.detach()
        can_inspect = k.device.type == 'cpu' and type(k) is Tensor and not is_recorded()
        if can_inspect and self._exponent_bound(q, k) <= UNSHIFTED_LIMIT:
            return None
        largest = torch.cat(
            [k.amax(-2, keepdim=True), -k.amin(-2, keepdim=True)], dim=-1
        ).clamp_min(0)
        if paired:
            pairs = largest.unflatten(-1, (-1, 2))
            largest = pairs.amax(-1, keepdim=True).expand_as(pairs).flatten(-2)
        return largest.ceil()  # an integer, so that subtracting it keeps the last bits of k

    def _exponent_bound(self, q: Tensor, k: Tensor) -> float:
        """Compute an upper bound of the exponents in products of query and key features."""
        largest_q, largest_k, same, opposite = (
            float(x.abs().amax()) if x.numel() else 0.0
            for x in (q, k, self.same.detach(), self.opposite.detach())
        )
        return largest_q * max(same, opposite) + largest_k

    def key(self, k: Tensor, shift: Tensor | None) -> Tensor:
        """Compute psi' = psi exp(-kappa) [B, H, M, 2D] of k [B, H, M, D] (E9, E12)."""
        halves = _signed_halves(k)
        return _shifted_expm1(halves, None if shift is None else -shift)

    def query(self, q: Tensor, shift: Tensor | None, eps: float) -> Queries:
        """Compute [(phi'_same, eps'), (phi'_opposite, eps')], [B, H, N, 2D] and [B, H, N, 1], of q (E9, E13)."""
        halves, found = _signed_halves(q), []
        for part, temperature in ((halves, self.same), (swap_halves(halves, -1), self.opposite)):
            size = part * temperature.unsqueeze(-2)
            offset, stream_eps = _query_offset(part, size, shift, eps)
            found.append((_shifted_expm1(size, offset), stream_eps))
        return found

    def key_and_vjp(self, k: Tensor, shift: Tensor | None) -> tuple[Tensor, Vjp]:
        """Compute `key`, and its gradient later."""
        offset = None if shift is None else -shift
        psi = _write_expm1(_write_halves(k), offset)

        def vjp(grads: Sequence[Tensor], needed: Sequence[bool]) -> Gradients:
            dk = _halves_gradient(k, _expm1_gradient(grads[0], psi, offset)) if needed[0] else None
            return dk, None, None

        return psi, vjp

    def query_and_vjp(self, q: Tensor, shift: Tensor | None, eps: float) -> tuple[Queries, Vjp]:
        """Compute `query`, and its gradients later; shift and level are constants."""
        halves = _write_halves(q)
        parts, temperatures = (
            (halves, swap_halves(halves, -1)),
            (self.same.unsqueeze(-2), self.opposite.unsqueeze(-2)),
        )
        found: Queries = []
        offsets = []
        for part, temperature in zip(parts, temperatures, strict=True):
            size = part * temperature
            offset, stream_eps = _query_offset(part, size, shift, eps)
            found.append((_write_expm1(size, offset), stream_eps))
            offsets.append(offset)

        def vjp(grads: Sequence[Tensor], needed: Sequence[bool]) -> Gradients:
            d_sizes = [
                _expm1_gradient(*x)
                for x in zip(grads, (phi for phi, _ in found), offsets, strict=True)
            ]
            dq = None
            if needed[0]:
                d_same, d_opposite = (
                    d * temperature for d, temperature in zip(d_sizes, temperatures, strict=True)
                )
                dq = _halves_gradient(q, d_same + swap_halves(d_opposite, -1))
            d_temperatures = [
                (d * part).sum_to_size(temperature.shape).squeeze(-2) if need else None
                for d, part, temperature, need in zip(
                    d_sizes, parts, temperatures, needed[1:], strict=True
                )
            ]
            return dq, d_temperatures[0], d_temperatures[1]

        return found, vjp

    def streams(self, state: Tensor, key_mean: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Return (S_same, key_mean) and (S_opposite, key_mean), one for each query feature tensor.

        Args:
            state: [S_same | S_opposite], [..., 2D, D].
            key_mean: [..., 2D, 1].
        """
        same, opposite = state.chunk(2, dim=-1)
        return [(same, key_mean), (opposite, key_mean)]

    def streams_vjp(self, grads: Sequence[Sequence[Tensor]]) -> tuple[Tensor, Tensor]:
        """Return the gradients of state and key mean from those of `streams`."""
        (d_same, d_mean), (d_opposite, d_other_mean) = grads
        return torch.cat([d_same, d_opposite], dim=-1), d_mean + d_other_mean


def _query_offset(
    halves: Tensor, size: Tensor, shift: Tensor | None, eps: float
) -> tuple[Tensor | None, Tensor | float]:
    """Compute a stream's shift minus level [B, H, N, 2D] and eps' [B, H, N, 1] (E13); without a shift None and eps."""
    if shift is None:
        return None, max(eps, torch.finfo(size.dtype).tiny)
    contributes = (halves.detach() > 0) & (shift > 0)
    shift = torch.where(contributes, shift, EXCLUDED)
    level = _level(size.detach() + shift)  # a constant integer, like the shift
    return shift - level, (eps * (-level).exp()).clamp_min(torch.finfo(size.dtype).tiny)


def _shifted_expm1(size: Tensor, offset: Tensor | None) -> Tensor:
    """Compute (exp(size) - 1) exp(offset) [..., 2D] for size >= 0, without computing exp(size) itself.

    As exp(size + offset) (1 - exp(-size)), which neither overflows nor cancels. None is an offset
    of 0, if exp(size) is known not to overflow.
    """
    return size.expm1() if offset is None else -size.neg().expm1() * (size + offset).exp()


def _write_expm1(size: Tensor, offset: Tensor | None) -> Tensor:
    """Compute `_shifted_expm1` in place."""
    return size.expm1() if offset is None else -size.neg().expm1_().mul_((size + offset).exp_())


def _expm1_gradient(grad: Tensor, features: Tensor, offset: Tensor | None) -> Tensor:
    """Compute the gradient of `_shifted_expm1` for size: the slope is the feature plus exp(offset)."""
    return (
        torch.addcmul(grad, grad, features) if offset is None else grad * (features + offset.exp())
    )


FeatureMap = PowerMap | ExpMap
