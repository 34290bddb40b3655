"""The passes of a PowerMap: each allocates its results and launches its kernels."""

from __future__ import annotations

from torch import Tensor

from mmpola.ops.triton.combine_kernels import power_parameters_kernel
from mmpola.ops.triton.launch import (
    FUSION_OPTIONS,
    SmallTensors,
    ceil_div,
    plan_tokens,
    token_strides,
)
from mmpola.ops.triton.passes import PassGradients, Wanted, combine, floats, like
from mmpola.ops.triton.power_kernels import (
    polarity_attention_power_key_gradient_kernel,
    polarity_attention_power_output_kernel,
    polarity_attention_power_query_gradient_kernel,
    polarity_attention_power_state_kernel,
)

READS_OUTPUT = True
"""Whether the backward pass reads o."""


def state_size(dim: int) -> int:
    """Return SIZE, the length of a row of the state: S and k̄."""
    return 2 * dim * (dim + 1)


def forward(
    q: Tensor, k: Tensor, v: Tensor, small: SmallTensors, eps: float
) -> tuple[Tensor, Tensor]:
    """Compute o [B, N, H, D] (E3), contiguous, in q's dtype, and the state."""
    state = _compute_state(k, v, small)
    return _compute_output(q, state, small, eps), state


def backward(
    do: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    small: SmallTensors,
    eps: float,
    o: Tensor | None,
    state: Tensor,
    wanted: Wanted,
) -> PassGradients:
    """Compute the gradients of q, k, v, exponent and scale (E15-E18a); None if not wanted.

    That of k also if the key position's is wanted.
    """
    rows = state.shape[0]
    keys = k.shape[1]
    dim = k.shape[3]
    wants_dk = wanted.k or wanted.key_position
    wants_keys = wants_dk or wanted.v or wanted.first
    dq, state_parts, query_parts = _query_gradient(
        do, q, small, eps, o, state, wanted, wants_keys or wanted.second
    )
    dk = None
    dv = None
    key_parts = None
    products = None
    if state_parts is not None:
        if wanted.second:
            products = floats(k, rows, 2 * dim)
        d_state = combine(state_parts, dim, 1 / keys, state, products)
        if wants_keys:
            dk, dv, key_parts = _key_gradient(
                k, v, small, d_state, wants_dk, wanted.v, wanted.first
            )
    d_exponent, d_scale = _parameter_gradients(small, q, query_parts, key_parts, products)
    return dq, dk, dv, d_exponent, d_scale


def _compute_state(k: Tensor, v: Tensor, small: SmallTensors) -> Tensor:
    _, keys, heads, dim = k.shape
    plan = plan_tokens('state', k, 'power')
    rows, chunks = plan.launch_grid
    parts = floats(k, rows, chunks, state_size(dim))
    if rows > 0 and chunks > 0:
        bits = (keys - 1).bit_length()
        grow = 2.0**bits / keys  # 1 / M = 2^-bits * grow, of (E1) and (E2)
        polarity_attention_power_state_kernel[plan.launch_grid](
            k,
            v,
            small.key_position,
            small.first,
            small.second,
            parts,
            *token_strides(k),
            *token_strides(v),
            heads,
            keys,
            plan.tokens,
            -float(bits),
            grow,
            **plan.options,
        )
    if chunks > 1:
        return combine(parts, dim, 1.0)
    return parts.view(rows, state_size(dim))


def _compute_output(q: Tensor, state: Tensor, small: SmallTensors, eps: float) -> Tensor:
    _, queries, heads, _ = q.shape
    plan = plan_tokens('output', q, 'power')
    output = like(q)
    if 0 in plan.launch_grid:
        return output
    polarity_attention_power_output_kernel[plan.launch_grid](
        q,
        small.first,
        small.second,
        state,
        output,
        *token_strides(q),
        heads,
        queries,
        plan.tokens,
        eps,
        **plan.options,
    )
    return output


def _query_gradient(
    do: Tensor,
    q: Tensor,
    small: SmallTensors,
    eps: float,
    o: Tensor | None,
    state: Tensor,
    wanted: Wanted,
    wants_state: bool,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Compute dq and the chunks' parts of the gradients of state and exponent; None if unwanted.

    Returns:
        dq; the parts of the state's gradient [B * H, chunks, SIZE]; those of the sum of dp / ln 2
        [B * H, chunks, D].
    """
    _, queries, heads, dim = q.shape
    plan = plan_tokens('query_gradient', q, 'power')
    dq = None
    if wanted.q:
        dq = like(q)
    d_state = None
    if wants_state:
        d_state = floats(q, *plan.launch_grid, state_size(dim))
    d_exponent = None
    if wanted.first:
        d_exponent = floats(q, *plan.launch_grid, dim)
    if 0 in plan.launch_grid:
        return dq, d_state, d_exponent
    polarity_attention_power_query_gradient_kernel[plan.launch_grid](
        q,
        o,
        do,
        small.first,
        small.second,
        state,
        dq,
        d_state,
        d_exponent,
        *token_strides(q),
        *token_strides(do),
        heads,
        queries,
        plan.tokens,
        eps,
        **plan.options,
    )
    return dq, d_state, d_exponent


def _key_gradient(
    k: Tensor,
    v: Tensor,
    small: SmallTensors,
    d_state: Tensor,
    wants_dk: bool,
    wants_dv: bool,
    wants_exponent: bool,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Compute dk, dv and the parts [B * H, chunks, D] of the sum of dp / ln 2; None if unwanted."""
    _, keys, heads, dim = k.shape
    plan = plan_tokens('key_gradient', k, 'power')
    dk = None
    if wants_dk:
        dk = like(k)
    dv = None
    if wants_dv:
        dv = like(v)
    d_exponent = None
    if wants_exponent:
        d_exponent = floats(k, *plan.launch_grid, dim)
    if 0 in plan.launch_grid:
        return dk, dv, d_exponent
    polarity_attention_power_key_gradient_kernel[plan.launch_grid](
        k,
        v,
        small.key_position,
        small.first,
        small.second,
        d_state,
        dk,
        dv,
        d_exponent,
        *token_strides(k),
        *token_strides(v),
        heads,
        keys,
        plan.tokens,
        **plan.options,
    )
    return dk, dv, d_exponent


def _parameter_gradients(
    small: SmallTensors,
    q: Tensor,
    query_parts: Tensor | None,
    key_parts: Tensor | None,
    products: Tensor | None,
) -> tuple[Tensor | None, Tensor | None]:
    """Compute the gradients of exponent and scale from the parts of queries and keys."""
    batch, _, heads, dim = q.shape
    exponent = small.first
    scale = small.second
    if query_parts is None and products is None:
        return None, None
    d_exponent = None
    query_chunks = 0
    if query_parts is not None:
        d_exponent = like(exponent)
        query_chunks = query_parts.shape[1]
    key_chunks = 0
    if key_parts is not None:
        key_chunks = key_parts.shape[1]
    d_scale = None
    if products is not None and scale is not None:
        d_scale = like(scale)
    power_parameters_kernel[heads, ceil_div(dim, 16)](
        query_parts,
        key_parts,
        products,
        exponent,
        scale,
        d_exponent,
        d_scale,
        batch,
        heads,
        query_chunks,
        key_chunks,
        D=dim,
        BP=128,
        BW=16,
        num_warps=4,
        **FUSION_OPTIONS,
    )
    return d_exponent, d_scale
