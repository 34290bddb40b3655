"""The `reference` backend's attention: the equations in chunks of tokens, with the gradients E15-E18 in closed form.

Between the forward and the backward pass only q, k, v, o and the small state are kept; features exist for one chunk at
a time and are recomputed in the backward pass. Because a chunk fits into a CPU's cache, this is also faster there than
computing the whole sequence at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from mmpola.ops.feature_map import FeatureMap
from mmpola.ops.inputs import AttentionInputs, AttentionTensors
from mmpola.ops.numerics import accumulation_dtype, is_recorded, without_autocast
from mmpola.ops.reference import add_key_position, normaliser, polarity_attention_reference, read_state

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
        else:
            output = ChunkedAttention.apply(inputs.rotary, inputs.eps, *inputs.tensors())
    return output.to(dtype)


class ChunkedAttention(Function):
    """`polarity_attention_reference` in chunks: (rotary, eps, *AttentionTensors) -> o; rotary gets no gradient."""

    @staticmethod
    def forward(ctx: Any, rotary: tuple[Tensor, Tensor] | None, eps: float, *tensors: Any) -> Tensor:
        inputs = AttentionInputs.from_tensors(AttentionTensors._make(tensors), rotary, eps)
        output, shift, state, key_mean = _forward(inputs)
        ctx.rotary, ctx.eps = rotary, eps
        ctx.save_for_backward(output, shift, state, key_mean, *tensors)
        return output

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        with without_autocast(grad.device):  # on, where `loss.backward()` is called inside an autocast region
            return None, None, *_gradients(ctx, grad)


def _gradients(ctx: Any, grad: Tensor) -> list[Tensor | None]:
    """Compute the gradients of the saved tensors, recorded by autograd if it is to derive them again."""
    output, shift, state, key_mean, *tensors = ctx.saved_tensors
    _, _, *needed = ctx.needs_input_grad
    if torch.is_grad_enabled():  # create_graph=True: for second derivatives autograd must record the first
        inputs = AttentionInputs.from_tensors(AttentionTensors._make(tensors), ctx.rotary, ctx.eps)
        wanted = [x for x, need in zip(tensors, needed, strict=True) if need]
        recorded = polarity_attention_reference(inputs)
        found = iter(torch.autograd.grad(recorded, wanted, grad, create_graph=True, allow_unused=True))
        return [next(found) if need else None for need in needed]
    leaves = [None if x is None else x.detach().requires_grad_(need) for x, need in zip(tensors, needed, strict=True)]
    inputs = AttentionInputs.from_tensors(AttentionTensors._make(leaves), ctx.rotary, ctx.eps)
    return _backward(inputs, shift, state, key_mean, output, grad)


def _forward(inputs: AttentionInputs) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
    """Compute o [B, N, H, D], the map's shift, the state [B, H, 2D, D] and the key mean [B, H, 2D, 1]."""
    q, feature_map, rotation = inputs.q, inputs.feature_map, _rotation(inputs)
    batch, keys, heads, dim = inputs.k.shape
    key = add_key_position(inputs)  # (E4)
    shift = feature_map.shift(q, key.transpose(1, 2), paired=inputs.rotary is not None)  # (E11)
    state = q.new_zeros(batch, heads, 2 * dim, dim)
    key_mean = q.new_zeros(batch, heads, 2 * dim, 1)
    for k, v, turn in _chunks(rotation, key, inputs.v):
        psi = feature_map.key(k, shift)  # (E6, E9, E12)
        key_mean += psi.sum(dim=-2).unsqueeze(-1) / keys  # (E1)
        state += _rotate(psi, turn).mT @ (v / keys)  # (E2, E10)
    streams = feature_map.streams(state, key_mean)
    output = torch.empty_like(q, memory_format=torch.contiguous_format)
    for chunk, o, turn in _chunks(rotation, q, output):
        phis = feature_map.query(chunk, shift, inputs.eps)  # (E7-E9, E13)
        outputs = [
            read_state(phi, _rotate(phi, turn), *stream, eps) for (phi, eps), stream in zip(phis, streams, strict=True)
        ]
        torch.cat(outputs, dim=-1, out=o)  # (E3)
    return output, shift, state, key_mean


def _backward(
    inputs: AttentionInputs, shift: Tensor | None, state: Tensor, key_mean: Tensor, output: Tensor, grad: Tensor
) -> list[Tensor | None]:
    """Compute the gradients of `inputs.tensors()`; None for those that do not require one."""
    rotation, keys = _rotation(inputs), inputs.k.shape[1]
    parameters = inputs.feature_map.parameters()
    d_parameters = {name: torch.zeros_like(x) for name, x in parameters.items() if x is not None and x.requires_grad}
    with torch.enable_grad():
        leaves = state.requires_grad_(), key_mean.requires_grad_()
        streams = inputs.feature_map.streams(*leaves)
    d_streams = [(torch.zeros_like(s), torch.zeros_like(m)) for s, m in streams]
    dq = _query_gradient(inputs, rotation, shift, streams, d_streams, output, grad, d_parameters)
    d_state, d_key_mean = torch.autograd.grad(
        [x for stream in streams for x in stream], leaves, [x for stream in d_streams for x in stream]
    )
    dk, dv = _key_gradient(inputs, rotation, shift, d_state / keys, d_key_mean / keys, d_parameters)
    d_key_position = None if inputs.key_position is None else dk.sum(dim=0)
    gradients = AttentionTensors(dq, dk, dv, d_key_position, **d_parameters)
    return [d if x is not None and x.requires_grad else None for x, d in zip(inputs.tensors(), gradients, strict=True)]


def _query_gradient(
    inputs: AttentionInputs,
    rotation: Rotation,
    shift: Tensor | None,
    streams: list[tuple[Tensor, Tensor]],
    d_streams: list[tuple[Tensor, Tensor]],
    output: Tensor,
    grad: Tensor,
    d_parameters: dict[str, Tensor],
) -> Tensor:
    """Return dq [B, N, H, D]; add the queries' part of the other gradients to `d_streams` and `d_parameters`."""
    dq = torch.empty_like(inputs.q)
    for q, o, do, dq_chunk, turn in _chunks(rotation, inputs.q, output, grad, dq):
        with torch.enable_grad():
            q = q.detach().requires_grad_(inputs.q.requires_grad)
            phis = inputs.feature_map.query(q, shift, inputs.eps)
        d_phis = []
        halves = zip(o.chunk(len(phis), dim=-1), do.chunk(len(phis), dim=-1), strict=True)
        for (phi, eps), stream, (o_half, do_half), d_stream in zip(phis, streams, halves, d_streams, strict=True):
            d_phi, *found = _read_state_gradient(phi.detach(), *stream, turn, eps, o_half, do_half)
            d_phis.append(d_phi)
            for total, part in zip(d_stream, found, strict=True):
                total += part
        _feature_gradient([phi for phi, _ in phis], d_phis, q, inputs.feature_map, dq_chunk, d_parameters)
    return dq


def _key_gradient(
    inputs: AttentionInputs,
    rotation: Rotation,
    shift: Tensor | None,
    d_state: Tensor,
    d_key_mean: Tensor,
    d_parameters: dict[str, Tensor],
) -> tuple[Tensor, Tensor]:
    """Return dk and dv [B, M, H, D]; add the keys' part to `d_parameters`. `d_state`, `d_key_mean`: divided by M."""
    dk, dv = torch.empty_like(inputs.k), torch.empty_like(inputs.v)
    key = add_key_position(inputs).detach()
    key_needed = inputs.k.requires_grad or (inputs.key_position is not None and inputs.key_position.requires_grad)
    for k, v, dk_chunk, dv_chunk, turn in _chunks(rotation, key, inputs.v.detach(), dk, dv):
        with torch.enable_grad():
            k = k.detach().requires_grad_(key_needed)
            psi = inputs.feature_map.key(k, shift)
        torch.matmul(_rotate(psi.detach(), turn), d_state, out=dv_chunk)  # (E17)
        d_psi = _rotate_back(v @ d_state.mT, turn).add_(d_key_mean.mT)  # (E17)
        _feature_gradient([psi], [d_psi], k, inputs.feature_map, dk_chunk, d_parameters)
    return dk, dv


def _read_state_gradient(
    phi: Tensor, state: Tensor, key_mean: Tensor, turn: Rotation, eps: Tensor | float, output: Tensor, grad: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the gradients of `read_state` with respect to phi, state and key mean (E15, E16)."""
    streams = (key_mean.shape[-1], -1)
    inverse = normaliser(phi, key_mean, eps).reciprocal()  # 1/r  [B, H, N, S]
    c = (grad * output).unflatten(-1, streams).sum(-1) * -inverse
    y = (grad.unflatten(-1, streams) * inverse.unsqueeze(-1)).flatten(-2)
    d_phi = _rotate_back(y @ state.mT, turn)
    d_phi.view(-1, *d_phi.shape[2:]).baddbmm_(c.flatten(0, 1), key_mean.mT.flatten(0, 1))
    return d_phi, _rotate(phi, turn).mT @ y, (c.mT @ phi).mT


def _feature_gradient(
    features: list[Tensor],
    grads: list[Tensor],
    x: Tensor,
    feature_map: FeatureMap,
    dx: Tensor,
    d_parameters: dict[str, Tensor],
) -> None:
    """Write the gradient of a chunk x through its features (E18) into `dx`; add the parameters' to `d_parameters`."""
    recorded = [(f, d) for f, d in zip(features, grads, strict=True) if f.requires_grad]
    if not recorded:
        return
    wanted = {name: p for name, p in feature_map.parameters().items() if p is not None and name in d_parameters}
    if x.requires_grad:
        wanted['x'] = x
    outputs, d_outputs = zip(*recorded, strict=True)
    gradients = torch.autograd.grad(outputs, [*wanted.values()], d_outputs, allow_unused=True)
    found = dict(zip(wanted, gradients, strict=True))
    if x.requires_grad:
        dx.copy_(found.pop('x'))
    for name, part in found.items():
        if part is not None:
            d_parameters[name] += part


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
    return torch.view_as_real(torch.view_as_complex(features.unflatten(-1, (-1, 2))) * turn).flatten(-2)


def _rotate_back(grad: Tensor, turn: Rotation) -> Tensor:
    """Apply the transpose of `_rotate`: a rotation by the opposite angles."""
    return _rotate(grad, None if turn is None else turn.conj())


def _chunks(rotation: Rotation, *tensors: Tensor) -> Iterator[tuple[Any, ...]]:
    """Yield views [B, H, n, D] of tensors [B, N, H, D], n tokens at a time, and these tokens' rows of the rotation."""
    batch, tokens, heads, dim = tensors[0].shape
    budget = CHUNK_ELEMENTS.get(tensors[0].device.type, CHUNK_ELEMENTS['cuda'])
    size = max(1, budget // max(1, batch * heads * 2 * dim))
    for start in range(0, tokens, size):
        rows = slice(start, start + size)
        yield *(x[:, rows].transpose(1, 2) for x in tensors), None if rotation is None else rotation[rows]


def _in_accumulation_dtype(inputs: AttentionInputs) -> AttentionInputs:
    dtype = accumulation_dtype(inputs.q.dtype)
    rotary = None if inputs.rotary is None else (inputs.rotary[0].to(dtype), inputs.rotary[1].to(dtype))
    tensors = AttentionTensors._make(None if x is None else x.to(dtype) for x in inputs.tensors())
    return AttentionInputs.from_tensors(tensors, rotary, inputs.eps)
