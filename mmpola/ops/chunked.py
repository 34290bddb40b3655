"""The attention of the backend `torch`: the equations in chunks of tokens, with the gradients E15-E18 in closed form.

Between the forward and the backward pass only q, k, v, o and the small state are kept; features
exist for one chunk at a time and are recomputed in the backward pass. Because a chunk fits into a
CPU's cache, this is also faster there than computing the whole sequence at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from mmpola.ops.features import FeatureMap
from mmpola.ops.inputs import AttentionInputs, Rotary
from mmpola.ops.numerics import accumulation_dtype, without_autocast
from mmpola.ops.reference import (
    add_key_position,
    normaliser,
    polarity_attention_reference,
    read_state,
)
from mmpola.ops.tracing import is_recorded

CHUNK_ELEMENTS = {'cpu': 2**20, 'cuda': 2**26}
"""Feature elements per chunk: 4 MB in float32 stay in a CPU's cache, 256 MB keep a GPU busy with few launches."""

Rotation = Tensor | None
"""exp(i angle) [N, D], complex: the factor of each interleaved pair of features; None without rotary tables."""


def polarity_attention_chunked(inputs: AttentionInputs) -> Tensor:
    """Compute o [B, N, H, D] in q's dtype. Where `is_recorded`, compute the reference instead."""
    dtype = inputs.q.dtype
    inputs = _in_accumulation_dtype(inputs)
    with without_autocast(inputs.q.device):
        if is_recorded():
            output = polarity_attention_reference(inputs)
        elif torch.is_grad_enabled():
            output = ChunkedAttention.apply(
                type(inputs.feature_map), inputs.rotary, inputs.eps, *inputs.tensors()
            )
        else:
            output = _forward(inputs)[0]
    return output.to(dtype)


class ChunkedAttention(Function):
    """`polarity_attention_reference` in chunks, of the arguments of `AttentionInputs.from_tensors`.

    The rotary tables get no gradient.
    """

    @staticmethod
    def forward(
        ctx: Any, map_type: type[FeatureMap], rotary: Rotary, eps: float, *tensors: Any
    ) -> Tensor:
        output, shift, state, key_mean = _forward(
            AttentionInputs.from_tensors(map_type, rotary, eps, *tensors)
        )
        ctx.constants = map_type, eps
        ctx.save_for_backward(output, shift, state, key_mean, *(rotary or (None, None)), *tensors)
        return output

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        with without_autocast(
            grad.device
        ):  # on, where `loss.backward()` is called inside an autocast region
            return None, None, None, *_gradients(ctx, grad)


def _gradients(ctx: Any, grad: Tensor) -> list[Tensor | None]:
    """Compute the gradients of the saved tensors, recorded by autograd if it is to derive them again."""
    output, shift, state, key_mean, cos, sin, *tensors = ctx.saved_tensors
    (map_type, eps), rotary = ctx.constants, None if cos is None else (cos, sin)
    needed = ctx.needs_input_grad[-len(tensors) :]
    recording = (
        torch.is_grad_enabled()
    )  # create_graph=True: for second derivatives autograd must record the first
    if recording:
        # Views: one tensor may be several arguments, or computed from another one, and each gets
        # its own part only.
        tensors = [None if x is None else x.view_as(x) for x in tensors]
    inputs = AttentionInputs.from_tensors(map_type, rotary, eps, *tensors)
    if not recording:
        return _backward(inputs, shift, state, key_mean, output, grad, needed)
    wanted = [x for x, need in zip(tensors, needed, strict=True) if need]
    recorded = polarity_attention_reference(inputs)
    found = iter(torch.autograd.grad(recorded, wanted, grad, create_graph=True, allow_unused=True))
    return [next(found) if need else None for need in needed]


def _forward(inputs: AttentionInputs) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
    """Compute o [B, N, H, D], the map's shift, the state [B, H, 2D, D] and the key mean [B, H, 2D, 1]."""
    q, feature_map, rotation, keys = (
        inputs.q,
        inputs.feature_map,
        _rotation(inputs),
        inputs.k.shape[1],
    )
    key = add_key_position(inputs)  # (E4)
    shift = feature_map.shift(q, key.transpose(1, 2), paired=inputs.rotary is not None)  # (E11)
    totals: list[Any] = []
    for k, v, turn in _chunks(rotation, key, inputs.v):
        psi, _ = feature_map.key_and_vjp(k, shift)  # (E6, E9, E12)
        # (E1, E2, E10)
        totals = _add_parts(
            totals, [_rotate(psi, turn).mT @ (v / keys), psi.sum(dim=-2).unsqueeze(-1) / keys]
        )
    state, key_mean = totals
    streams = feature_map.streams(state, key_mean)
    output = torch.empty_like(q, memory_format=torch.contiguous_format)
    for chunk, o, turn in _chunks(rotation, q, output):
        phis, _ = feature_map.query_and_vjp(chunk, shift, inputs.eps)  # (E7-E9, E13)
        outputs = [
            read_state(phi, _rotate(phi, turn), *stream, eps)
            for (phi, eps), stream in zip(phis, streams, strict=True)
        ]
        torch.cat(outputs, dim=-1, out=o)  # (E3)
    return output, shift, state, key_mean


def _backward(
    inputs: AttentionInputs,
    shift: Tensor | None,
    state: Tensor,
    key_mean: Tensor,
    output: Tensor,
    grad: Tensor,
    needed: Sequence[bool],
) -> list[Tensor | None]:
    """Compute the gradients of `inputs.tensors()`; None for those that are not needed."""
    feature_map, rotation, keys = inputs.feature_map, _rotation(inputs), inputs.k.shape[1]
    need_q, need_k, _, need_position, *need_map = needed
    streams = feature_map.streams(state, key_mean)
    dq = torch.empty_like(inputs.q)
    d_streams: list[Any] = []
    d_map: list[Tensor | None] = []
    for q, o, do, dq_chunk, turn in _chunks(rotation, inputs.q, output, grad, dq):
        phis, vjp = feature_map.query_and_vjp(q, shift, inputs.eps)
        halves = zip(o.chunk(len(phis), dim=-1), do.chunk(len(phis), dim=-1), strict=True)
        d_phis, parts = [], []
        for (phi, eps), stream, (o_half, do_half) in zip(phis, streams, halves, strict=True):
            d_phi, *found = _read_state_gradient(phi, *stream, turn, eps, o_half, do_half)
            d_phis.append(d_phi)
            parts += found
        d_streams = _add_parts(d_streams, parts)
        d_chunk, *d_parameters = vjp(d_phis, (need_q, *need_map))
        d_map = _add_parts(d_map, d_parameters)
        if d_chunk is not None:
            dq_chunk.copy_(d_chunk)
    d_state, d_key_mean = feature_map.streams_vjp(
        list(zip(d_streams[::2], d_streams[1::2], strict=True))
    )
    d_state, d_key_mean = d_state / keys, d_key_mean / keys
    dk, dv = torch.empty_like(inputs.k), torch.empty_like(inputs.v)
    for k, v, dk_chunk, dv_chunk, turn in _chunks(
        rotation, add_key_position(inputs), inputs.v, dk, dv
    ):
        psi, vjp = feature_map.key_and_vjp(k, shift)
        torch.matmul(_rotate(psi, turn), d_state, out=dv_chunk)  # (E17)
        d_psi = _rotate_back(v @ d_state.mT, turn).add_(d_key_mean.mT)  # (E17)
        d_chunk, *d_parameters = vjp([d_psi], (need_k or need_position, *need_map))
        d_map = _add_parts(d_map, d_parameters)
        if d_chunk is not None:
            dk_chunk.copy_(d_chunk)
    d_position = dk.sum(dim=0) if need_position else None
    gradients = dq, dk, dv, d_position, *d_map
    return [d if need else None for d, need in zip(gradients, needed, strict=True)]


def _read_state_gradient(
    phi: Tensor,
    state: Tensor,
    key_mean: Tensor,
    turn: Rotation,
    eps: Tensor | float,
    output: Tensor,
    grad: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the gradients of `read_state` with respect to phi, state and key mean (E15, E16)."""
    streams = (key_mean.shape[-1], -1)
    inverse = normaliser(phi, key_mean, eps).reciprocal()  # 1/r  [B, H, N, S]
    c = (grad * output).unflatten(-1, streams).sum(-1) * -inverse
    y = (grad.unflatten(-1, streams) * inverse.unsqueeze(-1)).flatten(-2)
    d_phi = _rotate_back(y @ state.mT, turn)
    batch, heads, *rest = d_phi.shape
    d_phi.view(batch * heads, *rest).baddbmm_(c.flatten(0, 1), key_mean.mT.flatten(0, 1))
    return d_phi, _rotate(phi, turn).mT @ y, (c.mT @ phi).mT


def _rotation(inputs: AttentionInputs) -> Rotation:
    """Return the rotary tables as complex numbers, one per pair, since its two channels share their angle."""
    if inputs.rotary is None:
        return None
    cos, sin = inputs.rotary
    return torch.complex(cos[:, ::2].contiguous(), sin[:, ::2].contiguous())


def _rotate(features: Tensor, turn: Rotation) -> Tensor:
    """Compute `reference.rotate` in one pass over memory instead of five; exporters do not support complex numbers."""
    if turn is None:
        return features
    return torch.view_as_real(
        torch.view_as_complex(features.unflatten(-1, (-1, 2))) * turn
    ).flatten(-2)


def _rotate_back(grad: Tensor, turn: Rotation) -> Tensor:
    """Apply the transpose of `_rotate`: a rotation by the opposite angles."""
    return _rotate(grad, None if turn is None else turn.conj())


def _add_parts(totals: list[Tensor | None], parts: Sequence[Tensor | None]) -> list[Any]:
    """Add a chunk's parts to the totals in place, which are the parts of the first chunk; None is 0."""
    pairs = zip(totals or [None] * len(parts), parts, strict=True)
    return [
        total if part is None else part if total is None else total.add_(part)
        for total, part in pairs
    ]


def _chunks(rotation: Rotation, *tensors: Tensor) -> Iterable[tuple[Any, ...]]:
    """Return views [B, H, n, D] of tensors [B, N, H, D], n tokens at a time, and these tokens' rows of the rotation."""
    batch, tokens, heads, dim = tensors[0].shape
    budget = CHUNK_ELEMENTS.get(tensors[0].device.type, CHUNK_ELEMENTS['cuda'])
    size = max(1, budget // max(1, batch * heads * 2 * dim))
    tensors = tuple([x.transpose(1, 2) for x in tensors])
    if size >= tokens:
        return [(*tensors, rotation)]
    starts = range(0, tokens, size)
    rows = zip(*(x.split(size, dim=-2) for x in tensors), strict=True)
    turns = (None if rotation is None else rotation[i : i + size] for i in starts)
    return ((*views, turn) for views, turn in zip(rows, turns, strict=True))


def _in_accumulation_dtype(inputs: AttentionInputs) -> AttentionInputs:
    dtype, tensors, rotary = accumulation_dtype(inputs.q.dtype), inputs.tensors(), inputs.rotary
    if all(x is None or x.dtype == dtype for x in (*tensors, *(rotary or ()))):
        return inputs
    rotary = None if rotary is None else (rotary[0].to(dtype), rotary[1].to(dtype))
    tensors = tuple(None if x is None else x.to(dtype) for x in tensors)
    return AttentionInputs.from_tensors(type(inputs.feature_map), rotary, inputs.eps, *tensors)
