"""The attention of the backend `torch`: the equations in chunks of tokens, with their gradients.

Only q, k, v, o and the small state are saved for the backward pass; features exist for one chunk at
a time and are recomputed in the backward pass. Because a chunk fits into a CPU's cache, this is
also faster there than computing the whole sequence at once.

Each feature map has a forward and a backward function, which compute in place, unseen by autograd;
the gradients are (E15-E18). Inside, tensors are [B, H, n, D] for the n tokens of a chunk.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from mmpola.ops.inputs import (
    AttentionInputs,
    ExpMap,
    PowerMap,
    query_offset,
    smallest_eps,
    swap_halves,
)
from mmpola.ops.numerics import accumulation_dtype, without_autocast
from mmpola.ops.reference import (
    add_key_position,
    normaliser,
    polarity_attention_reference,
    rotate_by_complex,
    swap_opposite,
)
from mmpola.ops.tracing import is_batched, is_recorded

CHUNK_ELEMENTS = {'cpu': 2**20, 'cuda': 2**26}
"""Feature elements per chunk: 4 MB in float32 fit a CPU's cache, 256 MB keep a GPU busy."""

LOG2_OF_ZERO = -1100
"""Stands for log2(0): finite, so that 0 * log(0) is 0, and exp2(p * LOG2_OF_ZERO) is 0."""

Gradients = list[Tensor | None]


def polarity_attention_chunked(inputs: AttentionInputs) -> Tensor:
    """Compute o [B, N, H, D] in q's dtype; by the reference if the call is recorded."""
    dtype = inputs.q.dtype
    with without_autocast(inputs.q.device):
        inputs = inputs.to(accumulation_dtype(dtype))
        if is_recorded():
            output = polarity_attention_reference(inputs)
        elif isinstance(inputs.feature_map, PowerMap):
            if torch.is_grad_enabled():
                output = PowerAttention.apply(*inputs.tensors(), inputs.eps)
            else:
                output, _, _ = power_forward(inputs, inputs.feature_map)
        elif torch.is_grad_enabled():
            cos = None
            sin = None
            if inputs.rotary is not None:
                cos, sin = inputs.rotary
            output = ExpAttention.apply(*inputs.tensors(), cos, sin, inputs.eps)
        else:
            output, _, _, _ = exp_forward(inputs, inputs.feature_map)
    return output.to(dtype)


# ---- PowerMap


class PowerAttention(Function):
    """`power_forward` and `power_backward` for autograd."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        key_position: Tensor | None,
        exponent: Tensor,
        scale: Tensor | None,
        eps: float,
    ) -> Tensor:
        feature_map = PowerMap(exponent, scale)
        inputs = AttentionInputs(q, k, v, feature_map, key_position, None, eps)
        output, states, key_means = power_forward(inputs, feature_map)
        ctx.eps = eps
        ctx.save_for_backward(q, k, v, key_position, exponent, scale, output, states, key_means)
        return output

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, key_position, exponent, scale, output, states, key_means = ctx.saved_tensors
        needed = ctx.needs_input_grad[:6]
        with without_autocast(grad.device):  # `backward` may be called inside autocast
            if torch.is_grad_enabled() or is_batched(grad):
                tensors = (q, k, v, key_position, exponent, scale)
                gradients = recorded_gradients(tensors, PowerMap, None, ctx.eps, grad, needed)
            else:
                feature_map = PowerMap(exponent, scale)
                inputs = AttentionInputs(q, k, v, feature_map, key_position, None, ctx.eps)
                gradients = power_backward(
                    inputs, feature_map, states, key_means, output, grad, needed
                )
        return (*gradients, None)


def power_forward(inputs: AttentionInputs, feature_map: PowerMap) -> tuple[Tensor, Tensor, Tensor]:
    """Compute o [B, N, H, D], and state [B, H, 2D, D] and key means [B, H, 2D, 2] of both streams.

    State and key means are as `swap_opposite` returns them.
    """
    k = add_key_position(inputs).transpose(1, 2)  # (E4)
    v = inputs.v.transpose(1, 2)
    keys = k.shape[-2]
    offset = feature_map.log2_offset()
    exponent = feature_map.exponent.unsqueeze(-2)
    state = None
    key_mean = None
    for begin, end in chunk_bounds(k):
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
    output = torch.empty_like(inputs.q, memory_format=torch.contiguous_format)
    output_heads = output.transpose(1, 2)
    for begin, end in chunk_bounds(q):
        phi, _, eps = _query_powers(q[:, :, begin:end], exponent, offset, inputs.eps)  # (E7, E8a)
        numerator = (phi @ states).unflatten(-1, (2, -1))
        denominator = normaliser(phi, key_means, eps).unsqueeze(-1)
        # (E3)
        torch.div(numerator, denominator, out=output_heads[:, :, begin:end].unflatten(-1, (2, -1)))
    return output, states, key_means


def power_backward(
    inputs: AttentionInputs,
    feature_map: PowerMap,
    states: Tensor,
    key_means: Tensor,
    output: Tensor,
    grad: Tensor,
    needed: Sequence[bool],
) -> Gradients:
    """Compute the gradients of q, k, v, key position, exponent and scale (E15-E18).

    Args:
        inputs: arguments of the operator.
        feature_map: their feature map.
        states, key_means, output: results of `power_forward`.
        grad: gradient of the output, [B, N, H, D].
        needed: which of the six gradients are needed; the others are None.
    """
    needs_q, needs_k, needs_v, needs_position, needs_exponent, needs_scale = needed
    exponent = feature_map.exponent.unsqueeze(-2)
    offset = feature_map.log2_offset()
    d_exponent = None
    d_scale = None

    q = inputs.q.transpose(1, 2)
    o = output.transpose(1, 2)
    do = grad.transpose(1, 2)
    dq = torch.empty_like(inputs.q)
    d_states = None
    d_means = None
    for begin, end in chunk_bounds(q):
        q_chunk = q[:, :, begin:end]
        phi, log2, eps = _query_powers(q_chunk, exponent, offset, inputs.eps)
        o_streams = o[:, :, begin:end].unflatten(-1, (2, -1))  # [B, H, n, 2, D/2]
        do_streams = do[:, :, begin:end].unflatten(-1, (2, -1))
        inverse = normaliser(phi, key_means, eps).reciprocal()  # 1/r  [B, H, n, 2]
        c = (do_streams * o_streams).sum(-1) * -inverse  # (E15)
        y = (do_streams * inverse.unsqueeze(-1)).flatten(-2)  # [B, H, n, D]  (E15)
        d_phi = _add_outer(y @ states.mT, c, key_means)  # (E16)
        d_states = _add(d_states, phi.mT @ y)  # (E16)
        d_means = _add(d_means, (c.mT @ phi).mT)
        # The gradient at features of 0 may be infinite, where a large query and large keys share no
        # feature: replace it by 0
        torch.ops.aten.threshold_backward(d_phi, phi, 0, grad_input=d_phi)
        d_chunk, part_exponent, part_scale = _power_gradients(
            q_chunk, phi, log2, d_phi, feature_map, (needs_q, needs_exponent, needs_scale)
        )
        d_exponent = _add(d_exponent, part_exponent)
        d_scale = _add(d_scale, part_scale)
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
    for begin, end in chunk_bounds(k):
        k_chunk = k[:, :, begin:end]
        psi, log2 = _key_powers(k_chunk, exponent, offset)
        torch.matmul(psi, d_state, out=dv.transpose(1, 2)[:, :, begin:end])  # (E17)
        d_psi = (v[:, :, begin:end] @ d_state.mT).add_(d_mean.mT)  # (E17)
        d_chunk, part_exponent, part_scale = _power_gradients(
            k_chunk,
            psi,
            log2,
            d_psi,
            feature_map,
            (needs_k or needs_position, needs_exponent, needs_scale),
        )
        d_exponent = _add(d_exponent, part_exponent)
        d_scale = _add(d_scale, part_scale)
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


def _key_powers(k: Tensor, exponent: Tensor, offset: Tensor) -> tuple[Tensor, Tensor]:
    """Compute psi [B, H, n, 2D] and log2 |k| [B, H, n, D] (E4, E6)."""
    log2 = k.abs().log2_().clamp_min_(LOG2_OF_ZERO)
    size = torch.addcmul(offset, log2, exponent)
    return _signed_halves(size.exp2_().copysign_(k)), log2


def _query_powers(
    q: Tensor, exponent: Tensor, offset: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute phi_same [B, H, n, 2D], log2 |q| [B, H, n, D] and epsilon [B, H, n, 1] (E7, E8a)."""
    log2 = q.abs().log2_().clamp_min_(LOG2_OF_ZERO)
    size = torch.addcmul(offset, log2, exponent)
    level = size.amax(-1, keepdim=True).clamp_min_(0).ceil_()
    size -= level
    phi = _signed_halves(size.exp2_().copysign_(q))
    leveled_eps = (-level).exp2_().mul_(eps).clamp_min_(torch.finfo(level.dtype).tiny)
    return phi, log2, leveled_eps


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
        # dx = p a da / x, of which x carries the sign. At x = 0 the feature a is 0, so any divisor
        # gives the 0 of (E18); at subnormal x the result is too small.
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


# ---- ExpMap


class ExpAttention(Function):
    """`exp_forward` and `exp_backward` for autograd; the rotary tables get no gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        key_position: Tensor | None,
        same: Tensor,
        opposite: Tensor,
        cos: Tensor | None,
        sin: Tensor | None,
        eps: float,
    ) -> Tensor:
        feature_map = ExpMap(same, opposite)
        rotary = None
        if cos is not None and sin is not None:
            rotary = (cos, sin)
        inputs = AttentionInputs(q, k, v, feature_map, key_position, rotary, eps)
        output, shift, state, key_mean = exp_forward(inputs, feature_map)
        ctx.eps = eps
        ctx.save_for_backward(
            q, k, v, key_position, same, opposite, cos, sin, output, shift, state, key_mean
        )
        return output

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, key_position, same, opposite, cos, sin, output, shift, state, key_mean = (
            ctx.saved_tensors
        )
        needed = ctx.needs_input_grad[:6]
        rotary = None
        if cos is not None:
            rotary = (cos, sin)
        with without_autocast(grad.device):  # `backward` may be called inside autocast
            if torch.is_grad_enabled() or is_batched(grad):
                tensors = (q, k, v, key_position, same, opposite)
                gradients = recorded_gradients(tensors, ExpMap, rotary, ctx.eps, grad, needed)
            else:
                feature_map = ExpMap(same, opposite)
                inputs = AttentionInputs(q, k, v, feature_map, key_position, rotary, ctx.eps)
                gradients = exp_backward(
                    inputs, feature_map, shift, state, key_mean, output, grad, needed
                )
        return (*gradients, None, None, None)


def exp_forward(
    inputs: AttentionInputs, feature_map: ExpMap
) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
    """Compute o [B, N, H, D], the shift, the state [B, H, 2D, D] and the key mean [B, H, 2D, 1]."""
    q = inputs.q.transpose(1, 2)
    k = add_key_position(inputs).transpose(1, 2)
    v = inputs.v.transpose(1, 2)
    keys = k.shape[-2]
    rotations = _complex_rotations(inputs.rotary)
    shift = feature_map.key_shift(q, k, paired=rotations is not None)  # (E11)
    state = None
    key_mean = None
    for begin, end in chunk_bounds(k):
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
    for begin, end in chunk_bounds(q):
        halves = _signed_halves(q[:, :, begin:end])
        swapped = swap_halves(halves, -1)
        same, eps_same, _ = _query_exponentials(halves, feature_map.same, shift, inputs.eps)
        opposite, eps_opposite, _ = _query_exponentials(
            swapped, feature_map.opposite, shift, inputs.eps
        )
        rotation = _tokens_of(rotations, begin, end)
        numerator_same = _rotate(same, rotation) @ state_same
        numerator_opposite = _rotate(opposite, rotation) @ state_opposite
        denominator_same = normaliser(same, key_mean, eps_same)
        denominator_opposite = normaliser(opposite, key_mean, eps_opposite)
        # (E3)
        torch.div(numerator_same, denominator_same, out=output_same[:, :, begin:end])
        torch.div(numerator_opposite, denominator_opposite, out=output_opposite[:, :, begin:end])
    return output, shift, state, key_mean


def exp_backward(
    inputs: AttentionInputs,
    feature_map: ExpMap,
    shift: Tensor | None,
    state: Tensor,
    key_mean: Tensor,
    output: Tensor,
    grad: Tensor,
    needed: Sequence[bool],
) -> Gradients:
    """Compute the gradients of q, k, v, key position and both temperatures (E15-E17).

    Args:
        inputs: arguments of the operator.
        feature_map: their feature map.
        shift, state, key_mean, output: results of `exp_forward`.
        grad: gradient of the output, [B, N, H, D].
        needed: which of the six gradients are needed; the others are None.
    """
    needs_q, needs_k, needs_v, needs_position, needs_same, needs_opposite = needed
    rotations = _complex_rotations(inputs.rotary)
    temperature_same = feature_map.same.unsqueeze(-2)
    temperature_opposite = feature_map.opposite.unsqueeze(-2)
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
    for begin, end in chunk_bounds(q):
        q_chunk = q[:, :, begin:end]
        halves = _signed_halves(q_chunk)
        swapped = swap_halves(halves, -1)
        same, eps_same, offset_same = _query_exponentials(
            halves, feature_map.same, shift, inputs.eps
        )
        opposite, eps_opposite, offset_opposite = _query_exponentials(
            swapped, feature_map.opposite, shift, inputs.eps
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
        d_state_same = _add(d_state_same, part_state)
        d_mean_same = _add(d_mean_same, part_mean)
        d_opposite, part_state, part_mean = _stream_gradients(
            opposite,
            eps_opposite,
            state_opposite,
            key_mean,
            rotation,
            o_opposite[:, :, begin:end],
            do_opposite[:, :, begin:end],
        )
        d_state_opposite = _add(d_state_opposite, part_state)
        d_mean_opposite = _add(d_mean_opposite, part_mean)
        d_size_same = _expm1_gradient(d_same, same, offset_same)
        d_size_opposite = _expm1_gradient(d_opposite, opposite, offset_opposite)
        if needs_q:
            d_halves = d_size_same * temperature_same
            d_halves = d_halves + swap_halves(d_size_opposite * temperature_opposite, -1)
            dq.transpose(1, 2)[:, :, begin:end] = _signed_halves_gradient(q_chunk, d_halves)
        if needs_same:
            part = (d_size_same * halves).sum_to_size(temperature_same.shape).squeeze(-2)
            d_temperature_same = _add(d_temperature_same, part)
        if needs_opposite:
            part = (d_size_opposite * swapped).sum_to_size(temperature_opposite.shape).squeeze(-2)
            d_temperature_opposite = _add(d_temperature_opposite, part)
    assert d_state_same is not None and d_state_opposite is not None
    assert d_mean_same is not None and d_mean_opposite is not None

    keys = inputs.k.shape[1]
    d_state = torch.cat([d_state_same, d_state_opposite], dim=-1) / keys
    d_mean = (d_mean_same + d_mean_opposite) / keys
    k = add_key_position(inputs).transpose(1, 2)
    v = inputs.v.transpose(1, 2)
    dk = torch.empty_like(inputs.k)
    dv = torch.empty_like(inputs.v)
    for begin, end in chunk_bounds(k):
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
            dk.transpose(1, 2)[:, :, begin:end] = _signed_halves_gradient(k_chunk, d_halves)
    d_position = dk.sum(dim=0) if needs_position else None
    return [
        dq if needs_q else None,
        dk if needs_k else None,
        dv if needs_v else None,
        d_position,
        d_temperature_same,
        d_temperature_opposite,
    ]


def _key_exponentials(k: Tensor, shift: Tensor | None) -> Tensor:
    """Compute psi [B, H, n, 2D] (E9, E12)."""
    halves = _signed_halves(k)
    if shift is None:
        return halves.expm1()
    return _shifted_expm1(halves, -shift)


def _query_exponentials(
    halves: Tensor, temperature: Tensor, shift: Tensor | None, eps: float
) -> tuple[Tensor, Tensor | float, Tensor | None]:
    """Compute phi [B, H, n, 2D] of one stream, its epsilon and its offset (E9, E13)."""
    size = halves * temperature.unsqueeze(-2)
    if shift is None:
        return size.expm1(), smallest_eps(eps, size.dtype), None
    offset, stream_eps = query_offset(halves, size, shift, eps)
    return _shifted_expm1(size, offset), stream_eps, offset


def _shifted_expm1(size: Tensor, offset: Tensor) -> Tensor:
    """Compute (exp(size) - 1) exp(offset) for size >= 0, as inputs.py does."""
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
    d_phi = _add_outer(_rotate_back(y @ state.mT, rotation), c, key_mean)  # (E16)
    d_state = _rotate(phi, rotation).mT @ y  # (E16)
    d_mean = (c.mT @ phi).mT
    return d_phi, d_state, d_mean


# ---- Both


def recorded_gradients(
    tensors: Sequence[Tensor | None],
    map_type: type[PowerMap] | type[ExpMap],
    rotary: tuple[Tensor, Tensor] | None,
    eps: float,
    grad: Tensor,
    needed: Sequence[bool],
) -> Gradients:
    """Compute gradients by the reference, from operations that autograd and vmap know.

    They can be differentiated again (`create_graph=True`), and `grad` may be batched.

    Args:
        tensors: q, k, v, key position and the two of the feature map.
        map_type: class of the feature map.
        rotary, eps: other arguments of the operator.
        grad: gradient of the output, [B, N, H, D].
        needed: which gradients are needed; the others are None.
    """
    differentiable = torch.is_grad_enabled()
    with torch.enable_grad():
        # Views, so that each argument gets its own gradient only, even if one tensor is several
        # arguments or is computed from another
        views: list[Any] = []
        for x in tensors:
            views.append(None if x is None else x.view_as(x))
        q, k, v, key_position, first, second = views
        inputs = AttentionInputs(q, k, v, map_type(first, second), key_position, rotary, eps)
        output = polarity_attention_reference(inputs)
    indices = [index for index, is_needed in enumerate(needed) if is_needed]
    leaves = [views[index] for index in indices]
    found = torch.autograd.grad(
        output, leaves, grad, create_graph=differentiable, allow_unused=True
    )
    gradients: Gradients = [None] * len(views)
    for index, gradient in zip(indices, found, strict=True):
        gradients[index] = gradient
    return gradients


def chunk_bounds(x: Tensor) -> list[tuple[int, int]]:
    """Return begin and end of each chunk of the tokens of x [B, H, N, D]."""
    batch, heads, tokens, dim = x.shape
    budget = CHUNK_ELEMENTS.get(x.device.type, CHUNK_ELEMENTS['cuda'])
    size = max(1, budget // max(1, batch * heads * 2 * dim))
    bounds = [(0, min(size, tokens))]  # also without tokens, so that sums have a shape
    for begin in range(size, tokens, size):
        bounds.append((begin, min(begin + size, tokens)))
    return bounds


def _add(total: Tensor | None, part: Tensor | None) -> Tensor | None:
    """Add a chunk's part to a total in place; None is 0."""
    if part is None:
        return total
    if total is None:
        return part
    return total.add_(part)


def _add_outer(d_phi: Tensor, c: Tensor, key_mean: Tensor) -> Tensor:
    """Add c [B, H, n, S] times key_mean [B, H, 2D, S] to d_phi [B, H, n, 2D] in place."""
    batch, heads, tokens, features = d_phi.shape
    flat = d_phi.view(batch * heads, tokens, features)
    flat.baddbmm_(c.flatten(0, 1), key_mean.mT.flatten(0, 1))
    return d_phi


def _signed_halves(x: Tensor) -> Tensor:
    """Compute [x+ ; x-] [..., 2D] of x [..., D] without a concatenation."""
    dim = x.shape[-1]
    halves = x.new_empty((*x.shape[:-1], 2 * dim))
    positive = torch.clamp_min(x, 0, out=halves.narrow(-1, 0, dim))
    torch.sub(positive, x, out=halves.narrow(-1, dim, dim))
    return halves


def _signed_halves_gradient(x: Tensor, grad: Tensor) -> Tensor:
    """Compute the gradient of x from that of its halves."""
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
