"""PolaFormer's feature map: powers (E4-E8a).

Besides the equations for autograd, compilers and exporters, this file has the chunked forward and
backward pass of the backend `torch`: in place, with the gradients (E15-E18) written out.
"""

from __future__ import annotations

import math
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
    signed_halves,
    swap_halves,
    token_level,
)

LOG2_OF_ZERO = -1e30
"""Stands for log2(0): finite, so that 0 * log(0) is 0, and exp2(p * LOG2_OF_ZERO) is 0, also for p
near 0.
"""


@dataclass(frozen=True, eq=False)
class PowerMap(FeatureMap):
    """PolaFormer's map (E4-E8a): [(x+/s)^p ; (x-/s)^p], for a query also divided by 2^level.

    One of x+ and x- is always zero, so the power is computed once per element, as
    2^(p log2|x| + c - level), where c = -p log2(s) applies the scale. Keys need no level: |x|^p of
    float16 inputs stays below 65504^5 = 1e24.

    Args:
        exponent: p, [H, D], positive; for p <= 1 too the slope at x = 0 is taken as 0.
        scale: s, [H, D], positive; None for 1.
    """

    exponent: Tensor
    scale: Tensor | None = None

    KIND = 'power'
    AXES: ClassVar = {'exponent': ('H', 'D'), 'scale': ('H', 'D')}
    OPTIONAL = ('scale',)
    TAKES_ROTARY = False

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
        return signed_halves(power * k.sign())

    def query_features(self, q: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """Compute phi_same [B, H, N, 2D] and its epsilon [B, H, N, 1] of q (E4, E7, E8a).

        phi_opposite is phi_same with its halves swapped (E8).
        """
        size, is_zero = self._log2_powers(q)
        level = token_level(size.detach().masked_fill(is_zero, 0))
        power = (size - level).exp2().masked_fill(is_zero, 0)
        return signed_halves(power * q.sign()), leveled_eps(level, eps)

    def _log2_powers(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Compute log2((|x| / s)^p), and where x is 0, for which the logarithm is replaced."""
        magnitude = x.abs()
        is_zero = magnitude < torch.finfo(x.dtype).tiny
        log2 = magnitude.masked_fill(is_zero, 1).log2()
        size = torch.addcmul(self.log2_offset(), log2, self.exponent.unsqueeze(-2))
        return size, is_zero

    def features(
        self, q: Tensor, k: Tensor, eps: float, paired: bool
    ) -> tuple[Tensor, Features, Features]:
        """Compute `FeatureMap.features`; `attention` needs only one of the two streams."""
        phi, leveled = self.query_features(q, eps)
        return self.key_features(k), (phi, leveled), (swap_halves(phi, -1), leveled)

    def attention(self, inputs: AttentionInputs) -> Tensor:
        """Compute `FeatureMap.attention`."""
        q = inputs.q.transpose(1, 2)  # [B, H, N, D]
        k = add_key_position(inputs).transpose(1, 2)  # [B, H, M, D]  (E4)
        v = inputs.v.transpose(1, 2)
        psi = self.key_features(k)  # [B, H, M, 2D]  (E6)
        key_mean = psi.mean(dim=-2).unsqueeze(-1)  # [B, H, 2D, 1]  (E1)
        state = psi.mT @ (v / v.shape[-2])  # [B, H, 2D, D] = [S_same | S_opposite]  (E2)
        states, key_means = swap_opposite(state, key_mean)
        phi, eps = self.query_features(q, inputs.eps)  # phi_same [B, H, N, 2D]  (E7, E8a)
        numerator = (phi @ states).unflatten(-1, (2, -1))  # [B, H, N, 2, D/2]
        denominator = normaliser(phi, key_means, eps).unsqueeze(-1)
        output = (numerator / denominator).flatten(-2)  # [B, H, N, D]  (E3)
        return output.transpose(1, 2)

    def chunked_forward(
        self, inputs: AttentionInputs, chunk: int
    ) -> tuple[Tensor, tuple[Tensor | None, ...]]:
        """Compute `FeatureMap.chunked_forward`; save both results of `swap_opposite`."""
        k = add_key_position(inputs).transpose(1, 2)  # (E4)
        v = inputs.v.transpose(1, 2)
        keys = k.shape[-2]
        offset = self.log2_offset()
        exponent = self.exponent.unsqueeze(-2)
        state = None
        key_mean = None
        for begin in range(0, keys, chunk):
            end = begin + chunk
            psi, _ = _key_powers(k[:, :, begin:end], exponent, offset)  # (E6)
            part_state = psi.mT @ (v[:, :, begin:end] / keys)  # (E2)
            part_mean = psi.sum(dim=-2).unsqueeze(-1) / keys  # (E1)
            if state is None or key_mean is None:
                state = part_state
                key_mean = part_mean
            else:
                state += part_state
                key_mean += part_mean
        assert state is not None and key_mean is not None
        states, key_means = swap_opposite(state, key_mean)

        q = inputs.q.transpose(1, 2)
        queries = q.shape[-2]
        output = torch.empty_like(inputs.q, memory_format=torch.contiguous_format)
        output_heads = output.transpose(1, 2)
        for begin in range(0, queries, chunk):
            end = begin + chunk
            q_chunk = q[:, :, begin:end]
            phi, _, eps = _query_powers(q_chunk, exponent, offset, inputs.eps)  # (E7, E8a)
            numerator = (phi @ states).unflatten(-1, (2, -1))
            denominator = normaliser(phi, key_means, eps).unsqueeze(-1)
            o_streams = output_heads[:, :, begin:end].unflatten(-1, (2, -1))
            torch.div(numerator, denominator, out=o_streams)  # (E3)
        return output, (states, key_means)

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
        states, key_means = saved
        needs_q, needs_k, needs_v, needs_position, needs_exponent, needs_scale = needed
        exponent = self.exponent.unsqueeze(-2)
        offset = self.log2_offset()
        d_exponent = None
        d_scale = None

        q = inputs.q.transpose(1, 2)
        o = output.transpose(1, 2)
        do = grad.transpose(1, 2)
        dq = torch.empty_like(inputs.q)
        d_states = None
        d_means = None
        queries = inputs.q.shape[1]
        for begin in range(0, max(1, queries), chunk):  # once without queries: sums need a shape
            end = begin + chunk
            q_chunk = q[:, :, begin:end]
            phi, log2, eps = _query_powers(q_chunk, exponent, offset, inputs.eps)
            o_streams = o[:, :, begin:end].unflatten(-1, (2, -1))  # [B, H, n, 2, D/2]
            do_streams = do[:, :, begin:end].unflatten(-1, (2, -1))
            inverse = normaliser(phi, key_means, eps).reciprocal()  # 1/r  [B, H, n, 2]
            c = (do_streams * o_streams).sum(-1) * -inverse  # (E15)
            y = (do_streams * inverse.unsqueeze(-1)).flatten(-2)  # [B, H, n, D]  (E15)
            d_phi = add_outer(y @ states.mT, c, key_means)  # (E16)
            d_states = add(d_states, phi.mT @ y)  # (E16)
            d_means = add(d_means, (c.mT @ phi).mT)
            # The gradient at features of 0 may be infinite, where a large query and large keys
            # share no feature: replace it by 0
            torch.ops.aten.threshold_backward(d_phi, phi, 0, grad_input=d_phi)
            d_chunk, part_exponent, part_scale = _power_gradients(
                q_chunk, phi, log2, d_phi, self, (needs_q, needs_exponent, needs_scale)
            )
            d_exponent = add(d_exponent, part_exponent)
            d_scale = add(d_scale, part_scale)
            if d_chunk is not None:
                dq.transpose(1, 2)[:, :, begin:end] = d_chunk
        assert d_states is not None and d_means is not None

        keys = inputs.k.shape[1]
        d_same, d_opposite = d_states.chunk(2, dim=-1)
        d_mean, d_swapped = d_means.chunk(2, dim=-1)
        d_state = torch.cat([d_same, swap_halves(d_opposite, -2)], dim=-1) / keys
        d_mean = (d_mean + swap_halves(d_swapped, -2)) / keys
        k = add_key_position(inputs).transpose(1, 2)
        v = inputs.v.transpose(1, 2)
        dk = torch.empty_like(inputs.k)
        dv = torch.empty_like(inputs.v)
        for begin in range(0, keys, chunk):
            end = begin + chunk
            k_chunk = k[:, :, begin:end]
            psi, log2 = _key_powers(k_chunk, exponent, offset)
            torch.matmul(psi, d_state, out=dv.transpose(1, 2)[:, :, begin:end])  # (E17)
            d_psi = (v[:, :, begin:end] @ d_state.mT).add_(d_mean.mT)  # (E17)
            d_chunk, part_exponent, part_scale = _power_gradients(
                k_chunk,
                psi,
                log2,
                d_psi,
                self,
                (needs_k or needs_position, needs_exponent, needs_scale),
            )
            d_exponent = add(d_exponent, part_exponent)
            d_scale = add(d_scale, part_scale)
            if d_chunk is not None:
                dk.transpose(1, 2)[:, :, begin:end] = d_chunk
        d_position = dk.sum(dim=0) if needs_position else None
        return [
            dq if needs_q else None,
            dk if needs_k else None,
            dv if needs_v else None,
            d_position,
            d_exponent,
            d_scale,
        ]


def leveled_eps(level: Tensor, eps: float) -> Tensor:
    """Divide epsilon by 2^level, as the features of a query are."""
    return (-level).exp2_().mul_(eps).clamp_min_(torch.finfo(level.dtype).tiny)


def swap_opposite(state: Tensor, key_mean: Tensor) -> tuple[Tensor, Tensor]:
    """Swap the halves of the features in the opposite-signed stream of a PowerMap's state.

    phi_opposite S = phi_same swap(S): with the rows of the small state swapped, one product with
    phi_same serves both streams.

    Args:
        state: [S_same | S_opposite], [..., 2D, D].
        key_mean: [..., 2D, 1].

    Returns:
        The state [..., 2D, D], and the key means of both streams [..., 2D, 2].
    """
    dim = state.shape[-1]
    same, opposite = state.chunk(2, dim=-1)
    states = torch.cat([same, opposite.roll(dim, -2)], dim=-1)
    key_means = torch.cat([key_mean, key_mean.roll(dim, -2)], dim=-1)
    return states, key_means


def _key_powers(k: Tensor, exponent: Tensor, offset: Tensor) -> tuple[Tensor, Tensor]:
    """Compute psi [B, H, n, 2D] and log2 |k| [B, H, n, D] (E4, E6)."""
    log2 = k.abs().log2_().clamp_min_(LOG2_OF_ZERO)
    size = torch.addcmul(offset, log2, exponent)
    return halves_in_place(size.exp2_().copysign_(k)), log2


def _query_powers(
    q: Tensor, exponent: Tensor, offset: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute phi_same [B, H, n, 2D], log2 |q| [B, H, n, D] and epsilon [B, H, n, 1] (E7, E8a)."""
    log2 = q.abs().log2_().clamp_min_(LOG2_OF_ZERO)
    size = torch.addcmul(offset, log2, exponent)
    level = token_level(size)
    size -= level
    phi = halves_in_place(size.exp2_().copysign_(q))
    return phi, log2, leveled_eps(level, eps)


def _power_gradients(
    x: Tensor,
    features: Tensor,
    log2: Tensor,
    d_features: Tensor,
    feature_map: PowerMap,
    needed: tuple[bool, bool, bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Compute the gradients of x, exponent and scale (E18), also through `log2_offset`."""
    needs_x, needs_exponent, needs_scale = needed
    if not (needs_x or needs_exponent or needs_scale):
        return None, None, None
    exponent = feature_map.exponent.unsqueeze(-2)
    scale = feature_map.scale
    positive, negative = features.chunk(2, dim=-1)
    d_positive, d_negative = d_features.chunk(2, dim=-1)
    weighted = torch.addcmul(positive * d_positive, negative, d_negative)  # a da of (E18)
    d_x = None
    if needs_x:
        # dx = p a da / x; the divisor carries the sign of x. At x = 0 the feature a is 0, so any
        # divisor gives the 0 of (E18); at subnormal x the result is too small.
        divisor = torch.copysign(x.abs().clamp_min_(torch.finfo(x.dtype).tiny), x)
        d_x = weighted * exponent / divisor
    d_exponent = None
    if needs_exponent:
        d_exponent = (weighted * log2).sum_to_size(exponent.shape) * math.log(2)
        d_exponent = d_exponent.squeeze(-2)
    d_scale = None
    if scale is not None and (needs_exponent or needs_scale):
        d_offset = (weighted.sum_to_size(exponent.shape) * math.log(2)).squeeze(-2)
        if d_exponent is not None:
            d_exponent -= d_offset * scale.log2()
        if needs_scale:
            d_scale = d_offset * -feature_map.exponent / (scale * math.log(2))
    return d_x, d_exponent, d_scale
