"""The arguments of both operators: feature maps, and one bundle for each operator.

`PowerMap` and `ExpMap` also say how queries and keys become non-negative features (E4-E9, E11-E13).
`key_features` and `query_features` state the equations in plain PyTorch, for autograd, compilers
and exporters; [B, H, N, D] becomes [B, H, N, 2D]. chunked.py computes the same in place, with the
gradients written out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from mmpola.ops.tracing import is_recorded

UNSHIFTED_LIMIT = 30.0
"""Largest sum of a query's and a key's exponent for which ExpMap needs no shift.

float32 reaches exp(88). The margin is for the products in the state and the squared normalisers of
second derivatives.
"""

EXCLUDED_SHIFT = -1e30
"""Shift of a channel in which the query or every key is 0, so that it does not set the level."""


def swap_halves(x: Tensor, dim: int) -> Tensor:
    """Swap the two halves of `dim`: the positive features with the negative ones."""
    return x.roll(x.shape[dim] // 2, dim)


def token_level(size: Tensor) -> Tensor:
    """Return the smallest integer >= 0 that no element of a token exceeds: [..., D] -> [..., 1]."""
    return size.amax(-1, keepdim=True).clamp_min_(0).ceil_()


def _signed_halves(x: Tensor) -> Tensor:
    """Compute [x+ ; x-] [..., 2D] of x [..., D]; the gradient at 0 is 0."""
    return torch.cat([x.relu(), x.neg().relu()], dim=-1)


@dataclass(frozen=True, eq=False)
class PowerMap:
    """PolaFormer's map (E4-E8a): [(x+/s)^p ; (x-/s)^p], for a query also divided by 2^level.

    One of x+ and x- is always zero, so the power is computed once per element, as
    2^(p log2|x| + c - level), where c = -p log2(s) applies the scale. Keys need no level: |x|^p of
    float16 inputs stays below 65504^5 = 1e24.

    Args:
        exponent: p, [H, D], greater than 1.
        scale: s, [H, D], positive; None for 1.
    """

    exponent: Tensor
    scale: Tensor | None = None

    def parameters(self) -> dict[str, Tensor | None]:
        """Return the map's tensors by name."""
        return {'exponent': self.exponent, 'scale': self.scale}

    def log2_offset(self) -> Tensor:
        """Compute c [H, 1, D], by which the scale shifts the logarithm of a power."""
        if self.scale is None:
            offset = torch.zeros_like(self.exponent)
        else:
            offset = -self.exponent * self.scale.log2()
        return offset.unsqueeze(-2)

    def key_features(self, k: Tensor) -> Tensor:
        """Compute psi [B, H, M, 2D] of k [B, H, M, D] (E4, E6)."""
        size, is_zero = self._log2_powers(k)
        power = size.exp2().masked_fill(is_zero, 0)
        return _signed_halves(power * k.sign())

    def query_features(self, q: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """Compute phi_same [B, H, N, 2D] and its epsilon [B, H, N, 1] of q (E4, E7, E8a).

        phi_opposite is phi_same with its halves swapped (E8).
        """
        size, is_zero = self._log2_powers(q)
        level = token_level(size.detach().masked_fill(is_zero, 0))
        power = (size - level).exp2().masked_fill(is_zero, 0)
        return _signed_halves(power * q.sign()), leveled_eps(level, eps)

    def _log2_powers(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Compute log2((|x| / s)^p), and where x is 0, for which the logarithm is replaced."""
        magnitude = x.abs()
        is_zero = magnitude < torch.finfo(x.dtype).tiny
        log2 = magnitude.masked_fill(is_zero, 1).log2()
        size = torch.addcmul(self.log2_offset(), log2, self.exponent.unsqueeze(-2))
        return size, is_zero


def leveled_eps(level: Tensor, eps: float) -> Tensor:
    """Divide epsilon by 2^level, as the features of a query are."""
    return (-level).exp2_().mul_(eps).clamp_min_(torch.finfo(level.dtype).tiny)


@dataclass(frozen=True, eq=False)
class ExpMap:
    """PolaFormer++'s map (E9): exp([q+ ; q-] * temperature) - 1, for keys exp([k+ ; k-]) - 1.

    Args:
        same: temperatures of the same-signed query features, sigma(s1), [H, 2D].
        opposite: temperatures of the opposite-signed query features, sigma(s2), [H, 2D].
    """

    same: Tensor
    opposite: Tensor

    def parameters(self) -> dict[str, Tensor | None]:
        """Return the map's tensors by name."""
        return {'same': self.same, 'opposite': self.opposite}

    def key_shift(self, q: Tensor, k: Tensor, paired: bool) -> Tensor | None:
        """Compute kappa [B, H, 1, 2D] (E11), a constant for autograd.

        It is 0 where no key is positive in the channel. None if no exponential can exceed float32's
        range: (E9) is then computed directly, in half the time. Only eager CPU tensors are
        inspected: another device would need a synchronisation, and values are unknown under
        tracing.

        Args:
            q: [B, H, N, D].
            k: [B, H, M, D].
            paired: whether rotary tables will mix the two channels of an interleaved pair, which
                then share a shift.
        """
        q = q.detach()
        k = k.detach()
        if k.device.type == 'cpu' and type(k) is Tensor and not is_recorded():
            largest_temperature = max(_largest(self.same), _largest(self.opposite))
            if _largest(q) * largest_temperature + _largest(k) <= UNSHIFTED_LIMIT:
                return None
        largest_positive = k.amax(-2, keepdim=True)
        largest_negative = -k.amin(-2, keepdim=True)
        shift = torch.cat([largest_positive, largest_negative], dim=-1).clamp_min(0)
        if paired:
            pairs = shift.unflatten(-1, (-1, 2))
            shift = pairs.amax(-1, keepdim=True).expand_as(pairs).flatten(-2)
        return shift.ceil()  # an integer, so that subtracting it keeps the last bits of k

    def key_features(self, k: Tensor, shift: Tensor | None) -> Tensor:
        """Compute psi exp(-kappa) [B, H, M, 2D] of k [B, H, M, D] (E9, E12)."""
        halves = _signed_halves(k)
        if shift is None:
            return halves.expm1()
        return _shifted_expm1(halves, -shift)

    def query_features(
        self, q: Tensor, shift: Tensor | None, eps: float
    ) -> tuple[tuple[Tensor, Tensor | float], tuple[Tensor, Tensor | float]]:
        """Compute phi and epsilon of both streams, the same-signed one first, of q (E9, E13).

        Returns:
            Two pairs of features [B, H, N, 2D] and epsilon, a number or [B, H, N, 1].
        """
        halves = _signed_halves(q)
        same = _stream_features(halves, self.same, shift, eps)
        opposite = _stream_features(swap_halves(halves, -1), self.opposite, shift, eps)
        return same, opposite


def _largest(x: Tensor) -> float:
    """Return the largest magnitude of a tensor, which may be empty."""
    if x.numel() == 0:
        return 0.0
    return float(x.detach().abs().amax())


def _stream_features(
    halves: Tensor, temperature: Tensor, shift: Tensor | None, eps: float
) -> tuple[Tensor, Tensor | float]:
    """Compute the query features of one stream and their epsilon (E9, E13)."""
    size = halves * temperature.unsqueeze(-2)
    if shift is None:
        return size.expm1(), smallest_eps(eps, size.dtype)
    offset, stream_eps = query_offset(halves, size, shift, eps)
    return _shifted_expm1(size, offset), stream_eps


def smallest_eps(eps: float, dtype: torch.dtype) -> float:
    """Return epsilon, at least the smallest normal number of the dtype."""
    return max(eps, torch.finfo(dtype).tiny)


def query_offset(halves: Tensor, size: Tensor, shift: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Compute a stream's shift minus its level [B, H, N, 2D], and epsilon [B, H, N, 1] (E13).

    Args:
        halves: [q+ ; q-], [B, H, N, 2D], or with the halves swapped.
        size: the exponents, `halves` times the temperature.
        shift: of the keys, see `ExpMap.key_shift`.
        eps: epsilon of the normaliser.
    """
    contributes = (halves.detach() > 0) & (shift > 0)
    shift = torch.where(contributes, shift, EXCLUDED_SHIFT)
    level = token_level(size.detach() + shift)  # a constant integer, like the shift
    stream_eps = (eps * (-level).exp()).clamp_min(torch.finfo(size.dtype).tiny)
    return shift - level, stream_eps


def _shifted_expm1(size: Tensor, offset: Tensor) -> Tensor:
    """Compute (exp(size) - 1) exp(offset) for size >= 0, without computing exp(size) itself.

    exp(size + offset) (1 - exp(-size)) neither overflows nor cancels.
    """
    return -size.neg().expm1() * (size + offset).exp()


FeatureMap = PowerMap | ExpMap
Rotary = tuple[Tensor, Tensor] | None


@dataclass(frozen=True, eq=False)
class AttentionInputs:
    """The arguments of `polarity_attention`, checked by `validate_attention`."""

    q: Tensor  # [B, N, H, D]
    k: Tensor  # [B, M, H, D]
    v: Tensor  # [B, M, H, D]
    feature_map: FeatureMap
    key_position: Tensor | None  # [M, H, D]
    rotary: Rotary  # (cos, sin), each [N, 2D]
    eps: float

    def tensors(self) -> tuple[Any, ...]:
        """Return the differentiable tensors: q, k, v, key position, two of the feature map."""
        first, second = self.feature_map.parameters().values()
        return self.q, self.k, self.v, self.key_position, first, second

    def to(self, dtype: torch.dtype) -> AttentionInputs:
        """Convert every tensor to a dtype."""
        feature_map = self.feature_map
        if isinstance(feature_map, PowerMap):
            scale = feature_map.scale
            if scale is not None:
                scale = scale.to(dtype)
            feature_map = PowerMap(feature_map.exponent.to(dtype), scale)
        else:
            feature_map = ExpMap(feature_map.same.to(dtype), feature_map.opposite.to(dtype))
        key_position = self.key_position
        if key_position is not None:
            key_position = key_position.to(dtype)
        rotary = self.rotary
        if rotary is not None:
            rotary = (rotary[0].to(dtype), rotary[1].to(dtype))
        q = self.q.to(dtype)
        k = self.k.to(dtype)
        v = self.v.to(dtype)
        return AttentionInputs(q, k, v, feature_map, key_position, rotary, self.eps)


@dataclass(frozen=True, eq=False)
class MixAndGateInputs:
    """The arguments of `mix_and_gate`, checked by `validate_mix_and_gate`."""

    attended: Tensor  # [B, N, H, D]
    values: Tensor  # [B, N, H, D]
    gate: Tensor  # [B, N, C], C = H * D
    weight: Tensor  # [D or C, 1, k, k], k odd; for a sequence [D or C, 1, k]
    bias: Tensor | None  # [D or C]
    grid: Sequence[int]  # (h, w), h * w = N; for a sequence (N,)

    def tensors(self) -> tuple[Any, ...]:
        """Return the differentiable tensors: all but the grid."""
        return self.attended, self.values, self.gate, self.weight, self.bias

    def as_map(self) -> MixAndGateInputs:
        """Return a sequence as a map of one row: grid (1, N), weight [D or C, 1, 1, k]."""
        return replace(self, weight=self.weight.unsqueeze(2), grid=(1, *self.grid))
