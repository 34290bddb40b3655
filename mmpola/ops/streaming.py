"""The `reference` backend: the plain equations streamed over chunks of tokens, with the closed-form gradient E15-E18.

Only q, k, v and the small states outlive the forward pass; features exist a chunk at a time and are recomputed in the
backward pass. Chunks stay in the processor's cache, which is also what makes this faster than the plain lines on a CPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from mmpola.ops.feature_map import FeatureMap
from mmpola.ops.inputs import AttentionInputs
from mmpola.ops.numerics import accumulation_dtype, is_traced, without_autocast
from mmpola.ops.reference import normaliser, plain_attention, positioned_key, read

CHUNK_ELEMENTS = {'cpu': 2**20, 'cuda': 2**26}
"""Feature elements of one chunk: 4 MB in float32 stay near a CPU's cache, 256 MB keep a GPU busy in few launches."""

Turn = Tensor | None
"""[N, D] complex: what turns each interleaved pair of features."""


def reference_attention(inputs: AttentionInputs) -> Tensor:
    """o [B, N, H, D] in q's dtype. Compilers and exporters trace the plain lines, which they fuse themselves."""
    dtype = inputs.q.dtype
    inputs = _in_accumulation_dtype(inputs)
    with without_autocast(inputs.q.device):
        traced = is_traced()
        output = plain_attention(inputs) if traced else StreamedAttention.apply(inputs, *inputs.tensors())
    return output.to(dtype)


class StreamedAttention(Function):
    """`plain_attention` in chunks, differentiable in every tensor of `AttentionInputs.tensors`."""

    @staticmethod
    def forward(ctx: Any, inputs: AttentionInputs, *tensors: Tensor | None) -> Tensor:
        output, *saved = _forward(inputs)
        # The context must not hold the inputs themselves: saved tensors are what autograd may free.
        ctx.inputs = _with_tensors(inputs, [None] * len(tensors))
        ctx.save_for_backward(output, *saved, *tensors)
        return output

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        output, shift, state, key_mean, *tensors = ctx.saved_tensors
        needs = ctx.needs_input_grad[1:]
        if torch.is_grad_enabled():  # create_graph=True: a second derivative needs a recorded first one
            wanted = [x for x, need in zip(tensors, needs, strict=True) if need]
            recorded = plain_attention(_with_tensors(ctx.inputs, tensors))
            found = iter(torch.autograd.grad(recorded, wanted, grad, create_graph=True, allow_unused=True))
            return None, *(next(found) if need else None for need in needs)
        leaves = [
            None if x is None else x.detach().requires_grad_(need) for x, need in zip(tensors, needs, strict=True)
        ]
        return None, *_backward(_with_tensors(ctx.inputs, leaves), shift, state, key_mean, output, grad)


def _forward(inputs: AttentionInputs) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
    """o [B, N, H, D], the map's shift, state [B, H, 2D, D] and key mean [B, H, 2D, 1]."""
    q, feature_map, turns = inputs.q, inputs.feature_map, _turns(inputs)
    batch, keys, heads, dim = inputs.k.shape
    key = positioned_key(inputs)
    shift = feature_map.shift(q, key.transpose(1, 2), paired=inputs.rotary is not None)  # (E11)
    state = q.new_zeros(batch, heads, 2 * dim, dim)
    key_mean = q.new_zeros(batch, heads, 2 * dim, 1)
    for k, v, turn in _chunks(turns, key, inputs.v):
        psi = feature_map.key(k, shift)
        key_mean += psi.sum(dim=-2).unsqueeze(-1) / keys  # (E1)
        state += _rotate(psi, turn).mT @ (v / keys)  # (E2)
    streams = feature_map.streams(state, key_mean)
    output = torch.empty_like(q, memory_format=torch.contiguous_format)
    for chunk, o, turn in _chunks(turns, q, output):
        phis = feature_map.query(chunk, shift, inputs.eps)
        reads = [read(phi, _rotate(phi, turn), *stream, eps) for (phi, eps), stream in zip(phis, streams, strict=True)]
        torch.cat(reads, dim=-1, out=o)  # (E3)
    return output, shift, state, key_mean


def _backward(
    inputs: AttentionInputs, shift: Tensor | None, state: Tensor, key_mean: Tensor, output: Tensor, grad: Tensor
) -> list[Tensor | None]:
    """Gradients of `inputs.tensors()`, None for those that do not require one."""
    feature_map, turns, keys = inputs.feature_map, _turns(inputs), inputs.k.shape[1]
    parameters = {name: x for name, x in feature_map.parameters().items() if x is not None and x.requires_grad}
    d_parameters = {name: torch.zeros_like(x) for name, x in parameters.items()}
    with torch.enable_grad():
        leaves = state.requires_grad_(), key_mean.requires_grad_()
        streams = feature_map.streams(*leaves)
    d_streams = [(torch.zeros_like(s), torch.zeros_like(m)) for s, m in streams]

    dq = torch.empty_like(inputs.q)
    for q, o, do, dq_chunk, turn in _chunks(turns, inputs.q, output, grad, dq):
        with torch.enable_grad():
            q = q.detach().requires_grad_(inputs.q.requires_grad)
            phis = feature_map.query(q, shift, inputs.eps)
        d_phis = []
        halves = zip(o.chunk(len(phis), dim=-1), do.chunk(len(phis), dim=-1), strict=True)
        for (phi, eps), stream, (o_half, do_half), d_stream in zip(phis, streams, halves, d_streams, strict=True):
            d_phi, *found = _read_gradient(phi.detach(), *stream, turn, eps, o_half, do_half)
            d_phis.append(d_phi)
            for total, part in zip(d_stream, found, strict=True):
                total += part
        _feature_gradient([phi for phi, _ in phis], d_phis, q, parameters, dq_chunk, d_parameters)

    d_state, d_key_mean = torch.autograd.grad(
        [x for stream in streams for x in stream], leaves, [x for stream in d_streams for x in stream]
    )
    d_state, d_key_mean = d_state / keys, d_key_mean / keys
    dk, dv = torch.empty_like(inputs.k), torch.empty_like(inputs.v)
    key = positioned_key(inputs).detach()
    key_needed = inputs.k.requires_grad or (inputs.key_position is not None and inputs.key_position.requires_grad)
    for k, v, dk_chunk, dv_chunk, turn in _chunks(turns, key, inputs.v.detach(), dk, dv):
        with torch.enable_grad():
            k = k.detach().requires_grad_(key_needed)
            psi = feature_map.key(k, shift)
        torch.matmul(_rotate(psi.detach(), turn), d_state, out=dv_chunk)  # (E17)
        d_psi = _rotate_back(v @ d_state.mT, turn).add_(d_key_mean.mT)  # (E17)
        _feature_gradient([psi], [d_psi], k, parameters, dk_chunk, d_parameters)

    d_key_position = None if inputs.key_position is None else dk.sum(dim=0)
    gradients = [dq, dk, dv, d_key_position, *(d_parameters.get(name) for name in feature_map.parameters())]
    return [d if x is not None and x.requires_grad else None for x, d in zip(inputs.tensors(), gradients, strict=True)]


def _read_gradient(
    phi: Tensor, state: Tensor, key_mean: Tensor, turn: Turn, eps: Tensor | float, output: Tensor, grad: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of `read` with respect to phi, state and key mean (E15, E16)."""
    streams = (key_mean.shape[-1], -1)
    inverse = normaliser(phi, key_mean, eps).reciprocal()  # 1/r  [B, H, N, S]
    c = (grad * output).unflatten(-1, streams).sum(-1) * -inverse
    y = (grad.unflatten(-1, streams) * inverse.unsqueeze(-1)).flatten(-2)
    d_phi = _rotate_back(y @ state.mT, turn)
    d_phi.view(-1, *d_phi.shape[2:]).baddbmm_(c.flatten(0, 1), key_mean.mT.flatten(0, 1))
    return d_phi, _rotate(phi, turn).mT @ y, (c.mT @ phi).mT


def _turns(inputs: AttentionInputs) -> Turn:
    """The rotary tables as complex numbers, one for the two channels of a pair, whose angle is the same."""
    if inputs.rotary is None:
        return None
    cos, sin = inputs.rotary
    return torch.complex(cos[:, ::2].contiguous(), sin[:, ::2].contiguous())


def _rotate(features: Tensor, turn: Turn) -> Tensor:
    """`reference.rotate` in one pass over memory instead of five; exporters know no complex numbers."""
    if turn is None:
        return features
    return torch.view_as_real(torch.view_as_complex(features.unflatten(-1, (-1, 2))) * turn).flatten(-2)


def _rotate_back(grad: Tensor, turn: Turn) -> Tensor:
    """The transpose of `_rotate`: the same turn by the opposite angles."""
    return _rotate(grad, None if turn is None else turn.conj())


def _feature_gradient(
    features: list[Tensor],
    grads: list[Tensor],
    x: Tensor,
    parameters: dict[str, Tensor],
    dx: Tensor,
    d_parameters: dict[str, Tensor],
) -> None:
    """Write the gradient of a chunk x through its features (E18) to dx and add those of the map's parameters."""
    wanted = [*([x] if x.requires_grad else []), *parameters.values()]
    recorded = [(f, d) for f, d in zip(features, grads, strict=True) if f.requires_grad]
    if not recorded:
        return
    found = torch.autograd.grad([f for f, _ in recorded], wanted, [d for _, d in recorded], allow_unused=True)
    if x.requires_grad:
        dx.copy_(found[0])
    for name, part in zip(parameters, found[len(found) - len(parameters) :], strict=True):
        if part is not None:
            d_parameters[name] += part


def _chunks(turns: Turn, *tensors: Tensor) -> Iterator[tuple[Any, ...]]:
    """Views of [B, N, H, D] tensors as [B, H, n, D], n tokens at a time, and the rows of the turns."""
    batch, tokens, heads, dim = tensors[0].shape
    budget = CHUNK_ELEMENTS.get(tensors[0].device.type, CHUNK_ELEMENTS['cuda'])
    size = max(1, budget // max(1, batch * heads * 2 * dim))
    for start in range(0, tokens, size):
        rows = slice(start, start + size)
        yield (
            *(x[:, rows].transpose(1, 2) for x in tensors),
            None if turns is None else turns[rows],
        )


def _in_accumulation_dtype(inputs: AttentionInputs) -> AttentionInputs:
    dtype = accumulation_dtype(inputs.q.dtype)
    rotary = None if inputs.rotary is None else (inputs.rotary[0].to(dtype), inputs.rotary[1].to(dtype))
    tensors = [None if x is None else x.to(dtype) for x in inputs.tensors()]
    return replace(_with_tensors(inputs, tensors), rotary=rotary)


def _with_tensors(inputs: AttentionInputs, tensors: list[Any]) -> AttentionInputs:
    """The same inputs with the tensors of `AttentionInputs.tensors` exchanged."""
    q, k, v, key_position, *parameters = tensors
    names = inputs.feature_map.parameters()
    feature_map: FeatureMap = inputs.feature_map.with_parameters(**dict(zip(names, parameters, strict=True)))
    return replace(inputs, q=q, k=k, v=v, key_position=key_position, feature_map=feature_map)
