"""PolaFormer++'s feature map: exponentials (E9-E13).

Besides the equations for autograd, compilers and exporters, this file has the chunked forward and
backward pass of the backend `torch`: in place, with the gradients (E15-E17) written out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from mmpola.ops.chunked import add, add_outer, halves_in_place
from mmpola.ops.inputs import AttentionInputs, FeatureMap, Features, Gradients
from mmpola.ops.reference import (
    add_key_position,
    normaliser,
    rotate,
    rotate_by_complex,
    signed_halves,
    swap_halves,
    token_level,
)
from mmpola.ops.tracing import is_recorded

UNSHIFTED_LIMIT = 30.0
"""Largest sum of a query's and a key's exponent for which ExpMap needs no shift.

float32 reaches exp(88). The margin is for the products in the state and the squared normalisers of
second derivatives.
"""

EXCLUDED_SHIFT = -1e30
"""Shift of a channel in which the query or every key is 0, so that it does not set the level."""


@dataclass(frozen=True, eq=False)
class ExpMap(FeatureMap):
    """PolaFormer++'s map (E9): exp([q+ ; q-] * temperature) - 1, for keys exp([k+ ; k-]) - 1.

    Args:
        same: temperatures of the same-signed query features, sigma(s1), [H, 2D].
        opposite: temperatures of the opposite-signed query features, sigma(s2), [H, 2D].
    """

    same: Tensor
    opposite: Tensor

    KIND = 'exp'
    AXES: ClassVar = {'same': ('H', '2D'), 'opposite': ('H', '2D')}
    TAKES_ROTARY = True

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
        halves = signed_halves(k)
        if shift is None:
            return halves.expm1()
        return _shifted_expm1(halves, -shift)

    def query_features(
        self, q: Tensor, shift: Tensor | None, eps: float
    ) -> tuple[tuple[Tensor, Tensor | float], tuple[Tensor, Tensor | float]]:
        """Compute phi and epsilon of q for both streams, the same-signed one first (E9, E13).

        Returns:
            Two pairs of features [B, H, N, 2D] and epsilon, a number or [B, H, N, 1].
        """
        halves = signed_halves(q)
        same = _stream_features(halves, self.same, shift, eps)
        opposite = _stream_features(swap_halves(halves, -1), self.opposite, shift, eps)
        return same, opposite

    def features(
        self, q: Tensor, k: Tensor, eps: float, paired: bool
    ) -> tuple[Tensor, Features, Features]:
        """Compute `FeatureMap.features`, psi and phi shifted (E12, E13)."""
        shift = self.key_shift(q, k, paired)  # [B, H, 1, 2D]  (E11)
        psi = self.key_features(k, shift)  # [B, H, M, 2D]  (E9, E12)
        same, opposite = self.query_features(q, shift, eps)
        return psi, same, opposite

    def attention(self, inputs: AttentionInputs) -> Tensor:
        """Compute `FeatureMap.attention`."""
        rotary = inputs.rotary
        q = inputs.q.transpose(1, 2)  # [B, H, N, D]
        k = add_key_position(inputs).transpose(1, 2)  # [B, H, M, D]
        v = inputs.v.transpose(1, 2)
        psi, same, opposite = self.features(q, k, inputs.eps, paired=rotary is not None)
        key_mean = psi.mean(dim=-2).unsqueeze(-1)  # [B, H, 2D, 1]  (E1)
        state = rotate(psi, rotary).mT @ (v / v.shape[-2])  # [B, H, 2D, D]  (E2, E10)
        state_same, state_opposite = state.chunk(2, dim=-1)
        phi_same, eps_same = same  # [B, H, N, 2D]  (E9, E13)
        phi_opposite, eps_opposite = opposite
        # (E3, E10): the normaliser is not rotated
        output_same = rotate(phi_same, rotary) @ state_same
        output_same = output_same / normaliser(phi_same, key_mean, eps_same)
        output_opposite = rotate(phi_opposite, rotary) @ state_opposite
        output_opposite = output_opposite / normaliser(phi_opposite, key_mean, eps_opposite)
        return torch.cat([output_same, output_opposite], dim=-1).transpose(1, 2)

    def chunked_forward(
        self, inputs: AttentionInputs, chunk: int
    ) -> tuple[Tensor, tuple[Tensor | None, ...]]:
        """Compute `FeatureMap.chunked_forward`; save shift, state and key mean."""
        q = inputs.q.transpose(1, 2)
        k = add_key_position(inputs).transpose(1, 2)
        v = inputs.v.transpose(1, 2)
        queries = q.shape[-2]
        keys = k.shape[-2]
        rotations = _complex_rotations(inputs.rotary)
        shift = self.key_shift(q, k, paired=rotations is not None)  # (E11)
        state = None
        key_mean = None
        for begin in range(0, keys, chunk):
            end = begin + chunk
            psi = _key_exponentials(k[:, :, begin:end], shift)  # (E9, E12)
            rotated = _rotate(psi, _tokens_of(rotations, begin, end))
            part_state = rotated.mT @ (v[:, :, begin:end] / keys)  # (E2, E10)
            part_mean = psi.sum(dim=-2).unsqueeze(-1) / keys  # (E1)
            if state is None or key_mean is None:
                state = part_state
                key_mean = part_mean
            else:
                state += part_state
                key_mean += part_mean
        assert state is not None and key_mean is not None
        state_same, state_opposite = state.chunk(2, dim=-1)

        output = torch.empty_like(inputs.q, memory_format=torch.contiguous_format)
        output_same, output_opposite = output.transpose(1, 2).chunk(2, dim=-1)
        for begin in range(0, queries, chunk):
            end = begin + chunk
            halves = halves_in_place(q[:, :, begin:end])
            swapped = swap_halves(halves, -1)
            same, eps_same, _ = _query_exponentials(halves, self.same, shift, inputs.eps)
            opposite, eps_opposite, _ = _query_exponentials(
                swapped, self.opposite, shift, inputs.eps
            )
            rotation = _tokens_of(rotations, begin, end)
            numerator_same = _rotate(same, rotation) @ state_same
            numerator_opposite = _rotate(opposite, rotation) @ state_opposite
            denominator_same = normaliser(same, key_mean, eps_same)
            denominator_opposite = normaliser(opposite, key_mean, eps_opposite)
            # (E3)
            torch.div(numerator_same, denominator_same, out=output_same[:, :, begin:end])
            torch.div(
                numerator_opposite, denominator_opposite, out=output_opposite[:, :, begin:end]
            )
        return output, (shift, state, key_mean)

    def chunked_backward(
        self,
        inputs: AttentionInputs,
        output: Tensor,
        saved: Sequence[Any],
        grad: Tensor,
        needed: Sequence[bool],
        chunk: int,
    ) -> Gradients:
        """Compute `FeatureMap.chunked_backward`."""
        shift, state, key_mean = saved
        needs_q, needs_k, needs_v, needs_position, needs_same, needs_opposite = needed
        rotations = _complex_rotations(inputs.rotary)
        temperature_same = self.same.unsqueeze(-2)
        temperature_opposite = self.opposite.unsqueeze(-2)
        state_same, state_opposite = state.chunk(2, dim=-1)
        d_temperature_same = None
        d_temperature_opposite = None

        q = inputs.q.transpose(1, 2)
        o_same, o_opposite = output.transpose(1, 2).chunk(2, dim=-1)
        do_same, do_opposite = grad.transpose(1, 2).chunk(2, dim=-1)
        dq = torch.empty_like(inputs.q)
        d_state_same = None
        d_state_opposite = None
        d_mean_same = None
        d_mean_opposite = None
        queries = inputs.q.shape[1]
        for begin in range(0, max(1, queries), chunk):  # once without queries: sums need a shape
            end = begin + chunk
            q_chunk = q[:, :, begin:end]
            halves = halves_in_place(q_chunk)
            swapped = swap_halves(halves, -1)
            same, eps_same, offset_same = _query_exponentials(halves, self.same, shift, inputs.eps)
            opposite, eps_opposite, offset_opposite = _query_exponentials(
                swapped, self.opposite, shift, inputs.eps
            )
            rotation = _tokens_of(rotations, begin, end)
            d_same, part_state, part_mean = _stream_gradients(
                same,
                eps_same,
                state_same,
                key_mean,
                rotation,
                o_same[:, :, begin:end],
                do_same[:, :, begin:end],
            )
            d_state_same = add(d_state_same, part_state)
            d_mean_same = add(d_mean_same, part_mean)
            d_opposite, part_state, part_mean = _stream_gradients(
                opposite,
                eps_opposite,
                state_opposite,
                key_mean,
                rotation,
                o_opposite[:, :, begin:end],
                do_opposite[:, :, begin:end],
            )
            d_state_opposite = add(d_state_opposite, part_state)
            d_mean_opposite = add(d_mean_opposite, part_mean)
            d_size_same = _expm1_gradient(d_same, same, offset_same)
            d_size_opposite = _expm1_gradient(d_opposite, opposite, offset_opposite)
            if needs_q:
                d_halves = d_size_same * temperature_same
                d_halves = d_halves + swap_halves(d_size_opposite * temperature_opposite, -1)
                dq.transpose(1, 2)[:, :, begin:end] = _halves_gradient(q_chunk, d_halves)
            if needs_same:
                part = (d_size_same * halves).sum_to_size(temperature_same.shape).squeeze(-2)
                d_temperature_same = add(d_temperature_same, part)
            if needs_opposite:
                part = (
                    (d_size_opposite * swapped).sum_to_size(temperature_opposite.shape).squeeze(-2)
                )
                d_temperature_opposite = add(d_temperature_opposite, part)
        assert d_state_same is not None and d_state_opposite is not None
        assert d_mean_same is not None and d_mean_opposite is not None

        keys = inputs.k.shape[1]
        d_state = torch.cat([d_state_same, d_state_opposite], dim=-1) / keys
        d_mean = (d_mean_same + d_mean_opposite) / keys
        k = add_key_position(inputs).transpose(1, 2)
        v = inputs.v.transpose(1, 2)
        dk = torch.empty_like(inputs.k)
        dv = torch.empty_like(inputs.v)
        for begin in range(0, keys, chunk):
            end = begin + chunk
            k_chunk = k[:, :, begin:end]
            psi = _key_exponentials(k_chunk, shift)
            rotation = _tokens_of(rotations, begin, end)
            rotated = _rotate(psi, rotation)
            torch.matmul(rotated, d_state, out=dv.transpose(1, 2)[:, :, begin:end])  # (E17)
            if needs_k or needs_position:
                d_rotated = v[:, :, begin:end] @ d_state.mT
                d_psi = _rotate_back(d_rotated, rotation).add_(d_mean.mT)  # (E17)
                offset = None if shift is None else -shift
                d_halves = _expm1_gradient(d_psi, psi, offset)
                dk.transpose(1, 2)[:, :, begin:end] = _halves_gradient(k_chunk, d_halves)
        d_position = dk.sum(dim=0) if needs_position else None
        return [
            dq if needs_q else None,
            dk if needs_k else None,
            dv if needs_v else None,
            d_position,
            d_temperature_same,
            d_temperature_opposite,
        ]


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
        shift: the keys' shift, from `ExpMap.key_shift`.
        eps: epsilon of the normaliser.
    """
    contributes = (halves.detach() > 0) & (shift > 0)
    # EXCLUDED_SHIFT as a literal: see `default_eps`
    shift = torch.where(contributes, shift, -1e30)
    level = token_level(size.detach() + shift)  # a constant integer, like the shift
    stream_eps = (eps * (-level).exp()).clamp_min(torch.finfo(size.dtype).tiny)
    return shift - level, stream_eps


def _shifted_expm1(size: Tensor, offset: Tensor) -> Tensor:
    """Compute (exp(size) - 1) exp(offset) for size >= 0, without computing exp(size) itself.

    exp(size + offset) (1 - exp(-size)) neither overflows nor cancels.
    """
    return -size.neg().expm1() * (size + offset).exp()


def _key_exponentials(k: Tensor, shift: Tensor | None) -> Tensor:
    """Compute psi [B, H, n, 2D] (E9, E12)."""
    halves = halves_in_place(k)
    if shift is None:
        return halves.expm1()
    return _shifted_expm1_in_place(halves, -shift)


def _query_exponentials(
    halves: Tensor, temperature: Tensor, shift: Tensor | None, eps: float
) -> tuple[Tensor, Tensor | float, Tensor | None]:
    """Compute phi [B, H, n, 2D] of one stream, its epsilon and its offset (E9, E13)."""
    size = halves * temperature.unsqueeze(-2)
    if shift is None:
        return size.expm1(), smallest_eps(eps, size.dtype), None
    offset, stream_eps = query_offset(halves, size, shift, eps)
    return _shifted_expm1_in_place(size, offset), stream_eps, offset


def _shifted_expm1_in_place(size: Tensor, offset: Tensor) -> Tensor:
    """Compute `_shifted_expm1` with fewer tensors."""
    return -size.neg().expm1_().mul_((size + offset).exp_())


def _expm1_gradient(grad: Tensor, features: Tensor, offset: Tensor | None) -> Tensor:
    """Compute the gradient of the exponents: the slope is the feature plus exp(offset)."""
    if offset is None:
        return torch.addcmul(grad, grad, features)
    return grad * (features + offset.exp())


def _stream_gradients(
    phi: Tensor,
    eps: Tensor | float,
    state: Tensor,
    key_mean: Tensor,
    rotation: Tensor | None,
    output: Tensor,
    grad: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the gradients of phi, state and key mean in one stream (E15, E16)."""
    inverse = normaliser(phi, key_mean, eps).reciprocal()  # 1/r  [B, H, n, 1]
    c = (grad * output).sum(-1, keepdim=True) * -inverse  # (E15)
    y = grad * inverse  # (E15)
    d_phi = add_outer(_rotate_back(y @ state.mT, rotation), c, key_mean)  # (E16)
    d_state = _rotate(phi, rotation).mT @ y  # (E16)
    d_mean = (c.mT @ phi).mT
    return d_phi, d_state, d_mean


def _halves_gradient(x: Tensor, grad: Tensor) -> Tensor:
    """Compute the gradient of x from the gradient of [x+ ; x-]."""
    sign = x.sign()
    d_positive, d_negative = grad.chunk(2, dim=-1)
    is_positive = sign.relu()
    # Products, because `where` on random signs is many times slower on a CPU
    return torch.addcmul(is_positive * d_positive, is_positive - sign, d_negative, value=-1)


def _complex_rotations(rotary: tuple[Tensor, Tensor] | None) -> Tensor | None:
    """Return exp(i angle) [N, D], one per pair of channels, because a pair has one angle."""
    if rotary is None:
        return None
    cos, sin = rotary
    return torch.complex(cos[:, ::2].contiguous(), sin[:, ::2].contiguous())


def _tokens_of(rotations: Tensor | None, begin: int, end: int) -> Tensor | None:
    """Return the rotations of a chunk's tokens."""
    if rotations is None:
        return None
    return rotations[begin:end]


def _rotate(features: Tensor, rotation: Tensor | None) -> Tensor:
    """Rotate the features of a chunk (E10), if there are rotary tables."""
    if rotation is None:
        return features
    return rotate_by_complex(features, rotation)


def _rotate_back(grad: Tensor, rotation: Tensor | None) -> Tensor:
    """Apply the transpose of `_rotate`: a rotation by the opposite angles."""
    if rotation is None:
        return grad
    return _rotate(grad, rotation.conj())
