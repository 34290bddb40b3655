"""The passes of an ExpMap: each allocates its results and launches its kernels."""

from __future__ import annotations

from torch import Tensor

from mmpola.ops.triton.exp_kernels import (
    polarity_attention_exp_key_gradient_kernel,
    polarity_attention_exp_output_kernel,
    polarity_attention_exp_query_gradient_kernel,
    polarity_attention_exp_state_kernel,
)
from mmpola.ops.triton.launch import Plan, SmallTensors, plan_tokens, token_strides
from mmpola.ops.triton.passes import PassGradients, Wanted, combine, floats, like

READS_OUTPUT = False
"""Whether the backward pass reads o."""


def state_size(dim: int) -> int:
    """Return SIZE, the length of a row of the state: S, k̄ and the shift."""
    return 2 * dim * (dim + 2)


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
    """Compute the gradients of q, k, v and both temperatures (E15-E17); None if not wanted.

    That of k also if the key position's is wanted. `o` is not read.
    """
    keys = k.shape[1]
    dim = k.shape[3]
    wants_dk = wanted.k or wanted.key_position
    dq, state_parts, map_parts = _query_gradient(
        do, q, small, eps, state, wanted, wants_dk or wanted.v
    )
    dk = None
    dv = None
    if state_parts is not None:
        d_state = combine(state_parts, dim, 1 / keys, state)
        dk, dv = _key_gradient(k, v, small, state, d_state, wants_dk, wanted.v)
    d_same = None
    d_opposite = None
    if map_parts is not None:
        assert small.second is not None
        batch, _, heads, _ = q.shape
        parts = map_parts.view(batch, heads, map_parts.shape[1], 4 * dim)
        sum_same, sum_opposite = parts.sum((0, 2)).chunk(2, 1)
        d_same = like(small.first).copy_(sum_same)
        d_opposite = like(small.second).copy_(sum_opposite)
    return dq, dk, dv, d_same, d_opposite


def _plan(name: str, x: Tensor, small: SmallTensors) -> Plan:
    return plan_tokens(name, x, 'exp' if small.cos is None else 'rotary')


def _compute_state(k: Tensor, v: Tensor, small: SmallTensors) -> Tensor:
    _, keys, heads, dim = k.shape
    plan = _plan('state', k, small)
    rows, chunks = plan.launch_grid
    parts = floats(k, rows, chunks, state_size(dim))
    if rows > 0 and chunks > 0:
        bits = (keys - 1).bit_length()
        grow = 2.0**bits / keys  # 1 / M = 2^-bits * grow, of (E1) and (E2)
        polarity_attention_exp_state_kernel[plan.launch_grid](
            k,
            v,
            small.key_position,
            small.cos,
            small.sin,
            parts,
            *token_strides(k),
            *token_strides(v),
            heads,
            keys,
            plan.tokens,
            2.0**-bits,
            grow,
            **plan.options,
        )
    if chunks > 1:
        return combine(parts, dim, 1.0)
    return parts.view(rows, state_size(dim))


def _compute_output(q: Tensor, state: Tensor, small: SmallTensors, eps: float) -> Tensor:
    _, queries, heads, _ = q.shape
    plan = _plan('output', q, small)
    output = like(q)
    if 0 in plan.launch_grid:
        return output
    polarity_attention_exp_output_kernel[plan.launch_grid](
        q,
        small.first,
        small.second,
        small.cos,
        small.sin,
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
    state: Tensor,
    wanted: Wanted,
    wants_state: bool,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Compute dq and the chunks' parts of the gradients of state and temperatures.

    Returns:
        dq; the parts of the state's gradient [B * H, chunks, 2D * (D + 1)]; those of both
        temperatures' [B * H, chunks, 4D]. None where they are not wanted.
    """
    _, queries, heads, dim = q.shape
    plan = _plan('query_gradient', q, small)
    dq = None
    if wanted.q:
        dq = like(q)
    d_state = None
    if wants_state:
        d_state = floats(q, *plan.launch_grid, 2 * dim * (dim + 1))
    d_map = None
    if wanted.first or wanted.second:
        d_map = floats(q, *plan.launch_grid, 4 * dim)
    if 0 in plan.launch_grid:
        return dq, d_state, d_map
    polarity_attention_exp_query_gradient_kernel[plan.launch_grid](
        q,
        do,
        small.first,
        small.second,
        small.cos,
        small.sin,
        state,
        dq,
        d_state,
        d_map,
        *token_strides(q),
        *token_strides(do),
        heads,
        queries,
        plan.tokens,
        eps,
        **plan.options,
    )
    return dq, d_state, d_map


def _key_gradient(
    k: Tensor,
    v: Tensor,
    small: SmallTensors,
    state: Tensor,
    d_state: Tensor,
    wants_dk: bool,
    wants_dv: bool,
) -> tuple[Tensor | None, Tensor | None]:
    """Compute dk and dv; None if unwanted."""
    _, keys, heads, _ = k.shape
    plan = _plan('key_gradient', k, small)
    dk = None
    if wants_dk:
        dk = like(k)
    dv = None
    if wants_dv:
        dv = like(v)
    if 0 in plan.launch_grid:
        return dk, dv
    polarity_attention_exp_key_gradient_kernel[plan.launch_grid](
        k,
        v,
        small.key_position,
        small.cos,
        small.sin,
        state,
        d_state,
        dk,
        dv,
        *token_strides(k),
        *token_strides(v),
        heads,
        keys,
        plan.tokens,
        **plan.options,
    )
    return dk, dv
