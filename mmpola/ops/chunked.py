"""The attention of the backend `torch`: the equations in chunks of tokens, with their gradients.

Only q, k, v, o and the small state are saved for the backward pass; features exist for one chunk at
a time and are recomputed in the backward pass. Because a chunk fits into a CPU's cache, this is
also faster there than computing the whole sequence at once.

The two passes, `chunked_forward` and `chunked_backward`, are methods of the feature maps. This file
calls them, under autograd if gradients are needed, and has what both backward passes share.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from mmpola.ops.inputs import AttentionInputs, FeatureMap, Gradients
from mmpola.ops.numerics import accumulation_dtype, without_autocast
from mmpola.ops.reference import polarity_attention_reference
from mmpola.ops.tracing import is_batched, is_recorded

CHUNK_ELEMENTS = {'cpu': 2**20, 'cuda': 2**26}
"""Feature elements per chunk: 4 MB in float32 fit a CPU's cache, 256 MB keep a GPU busy."""


def polarity_attention_chunked(inputs: AttentionInputs) -> Tensor:
    """Compute o [B, N, H, D] in q's dtype.

    The reference computes it if something records the call (`is_recorded`), or if the feature map
    has no chunked passes, as another author's may.
    """
    dtype = inputs.q.dtype
    with without_autocast(inputs.q.device):
        inputs = _in_dtype(inputs, accumulation_dtype(dtype))
        feature_map = inputs.feature_map
        has_passes = type(feature_map).chunked_forward is not FeatureMap.chunked_forward
        if is_recorded() or not has_passes:
            output = polarity_attention_reference(inputs)
        elif torch.is_grad_enabled():
            cos = None
            sin = None
            if inputs.rotary is not None:
                cos, sin = inputs.rotary
            first, second = feature_map.parameters().values()
            output = ChunkedAttention.apply(
                type(feature_map),
                inputs.eps,
                inputs.q,
                inputs.k,
                inputs.v,
                inputs.key_position,
                first,
                second,
                cos,
                sin,
            )
        else:
            output, _ = feature_map.chunked_forward(inputs, chunk_size(inputs.q))
    return output.to(dtype)


def _in_dtype(inputs: AttentionInputs, dtype: torch.dtype) -> AttentionInputs:
    """Convert every tensor of the arguments to a dtype."""
    feature_map = inputs.feature_map
    build: Any = type(feature_map)
    parameters = []
    for name in feature_map.AXES:
        x = getattr(feature_map, name)
        if x is not None:
            x = x.to(dtype)
        parameters.append(x)
    key_position = inputs.key_position
    if key_position is not None:
        key_position = key_position.to(dtype)
    rotary = inputs.rotary
    if rotary is not None:
        rotary = (rotary[0].to(dtype), rotary[1].to(dtype))
    q = inputs.q.to(dtype)
    k = inputs.k.to(dtype)
    v = inputs.v.to(dtype)
    return AttentionInputs(q, k, v, build(*parameters), key_position, rotary, inputs.eps)


class ChunkedAttention(Function):
    """The two passes of a feature map for autograd; the rotary tables get no gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        build_map: Callable[..., FeatureMap],
        eps: float,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        key_position: Tensor | None,
        first: Tensor,
        second: Tensor | None,
        cos: Tensor | None,
        sin: Tensor | None,
    ) -> Tensor:
        rotary = None
        if cos is not None and sin is not None:
            rotary = (cos, sin)
        feature_map = build_map(first, second)
        inputs = AttentionInputs(q, k, v, feature_map, key_position, rotary, eps)
        output, saved = feature_map.chunked_forward(inputs, chunk_size(inputs.q))
        ctx.build_map = build_map
        ctx.eps = eps
        ctx.save_for_backward(q, k, v, key_position, first, second, cos, sin, output, *saved)
        return output

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, key_position, first, second, cos, sin, output, *saved = ctx.saved_tensors
        needed = ctx.needs_input_grad[2:8]
        rotary = None
        if cos is not None:
            rotary = (cos, sin)
        with without_autocast(grad.device):  # `backward` may be called inside autocast
            if torch.is_grad_enabled() or is_batched(grad):
                tensors = (q, k, v, key_position, first, second)
                gradients = recorded_gradients(
                    tensors, ctx.build_map, rotary, ctx.eps, grad, needed
                )
            else:
                feature_map = ctx.build_map(first, second)
                inputs = AttentionInputs(q, k, v, feature_map, key_position, rotary, ctx.eps)
                gradients = feature_map.chunked_backward(
                    inputs, output, saved, grad, needed, chunk_size(q)
                )
        return (None, None, *gradients, None, None)


def recorded_gradients(
    tensors: Sequence[Tensor | None],
    build_map: Callable[..., FeatureMap],
    rotary: tuple[Tensor, Tensor] | None,
    eps: float,
    grad: Tensor,
    needed: Sequence[bool],
) -> Gradients:
    """Compute gradients by the reference, from operations that autograd and vmap know.

    They can be differentiated again (`create_graph=True`), and `grad` may be batched.

    Args:
        tensors: q, k, v, key position and the two of the feature map.
        build_map: makes the feature map of its two tensors.
        rotary, eps: other arguments of the operator.
        grad: gradient of the output, [B, N, H, D].
        needed: which of the six gradients are needed; the others are None.
    """
    differentiable = torch.is_grad_enabled()
    with torch.enable_grad():
        # Views, so that each argument gets its own gradient only, even if one tensor is several
        # arguments or is computed from another
        views: list[Any] = []
        for x in tensors:
            views.append(None if x is None else x.view_as(x))
        q, k, v, key_position, first, second = views
        inputs = AttentionInputs(q, k, v, build_map(first, second), key_position, rotary, eps)
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


def chunk_size(q: Tensor) -> int:
    """Return how many tokens of q [B, N, H, D], or of the keys, make a chunk."""
    batch, _, heads, dim = q.shape
    budget = CHUNK_ELEMENTS.get(q.device.type, CHUNK_ELEMENTS['cuda'])
    return max(1, budget // max(1, batch * heads * 2 * dim))


def add(total: Tensor | None, part: Tensor | None) -> Tensor | None:
    """Add the part of a chunk to the total in place; None stands for 0."""
    if part is None:
        return total
    if total is None:
        return part
    return total.add_(part)


def add_outer(d_phi: Tensor, c: Tensor, key_mean: Tensor) -> Tensor:
    """Add c [B, H, n, S] times key_mean [B, H, 2D, S] to d_phi [B, H, n, 2D] in place."""
    batch, heads, tokens, features = d_phi.shape
    flat = d_phi.view(batch * heads, tokens, features)
    flat.baddbmm_(c.flatten(0, 1), key_mean.mT.flatten(0, 1))
    return d_phi


def halves_in_place(x: Tensor) -> Tensor:
    """Compute [x+ ; x-] [..., 2D] of x [..., D] without a concatenation."""
    dim = x.shape[-1]
    halves = x.new_empty((*x.shape[:-1], 2 * dim))
    positive = torch.clamp_min(x, 0, out=halves.narrow(-1, 0, dim))
    torch.sub(positive, x, out=halves.narrow(-1, dim, dim))
    return halves
