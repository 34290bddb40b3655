"""The passes of an attention call: each allocates its results and launches its kernels.

The state of all heads is one float32 tensor [B * H, SIZE]; a row has S [2D, D], then k̄ [2D] (E1,
E2), then for an ExpMap the shift [2D] (E11). Programs that share a head write partial states, which
`combine_states_kernel` adds.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from mmpola.ops.triton import combine_kernels, exp_kernels, power_kernels
from mmpola.ops.triton.launch import (
    FUSION_OPTIONS,
    SmallTensors,
    as_tokens,
    block_of,
    ceil_div,
    on_device_of,
    plan_tokens,
    token_strides,
)


class Wanted(NamedTuple):
    """Which tensors get a gradient; `first` and `second` are those of `SmallTensors`."""

    q: bool
    k: bool
    v: bool
    key_position: bool
    first: bool
    second: bool


PassGradients = tuple[Tensor | None, ...]
"""One gradient for each field of `Wanted`; None where it is not wanted."""


def state_size(dim: int, small: SmallTensors) -> int:
    """Return SIZE, the length of a row of the state."""
    columns = dim + 1
    if not small.is_power(dim):
        columns = dim + 2  # and the shift
    return 2 * dim * columns


def forward(
    q: Tensor, k: Tensor, v: Tensor, small: SmallTensors, eps: float
) -> tuple[Tensor, Tensor]:
    """Compute o [B, N, H, D] (E3), contiguous, in q's dtype, and the state."""
    q = as_tokens(q)
    k = as_tokens(k)
    v = as_tokens(v)
    with on_device_of(q):
        state = _compute_state(k, v, small)
        output = _compute_output(q, state, small, eps)
    return output, state


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
    """Compute the gradients of the wanted tensors (E15-E18); the others are None.

    An ExpMap needs no o. The gradient of the key position is the sum over the batch of dk as it is
    stored, that is, rounded to q's dtype.
    """
    do = as_tokens(do)
    q = as_tokens(q)
    k = as_tokens(k)
    v = as_tokens(v)
    _, keys, _, dim = k.shape
    is_power = small.is_power(dim)
    wants_dk = wanted.k or wanted.key_position
    wants_exponent = wanted.first and is_power
    wants_scale = wanted.second and is_power
    wants_keys = wants_dk or wanted.v or wants_exponent
    dk = None
    dv = None
    d_position = None
    key_parts = None
    products = None
    with on_device_of(q):
        dq, state_parts, map_parts = _query_gradient(
            do, q, small, eps, o, state, wanted, wants_keys or wants_scale
        )
        if state_parts is not None:
            if wants_scale:
                products = _floats(k, state_parts.shape[0], 2 * dim)
            d_state = _combine(state_parts, dim, 1 / keys, state, products)
            if wants_keys:
                dk, dv, key_parts = _key_gradient(
                    k, v, small, state, d_state, wants_dk, wanted.v, wants_exponent
                )
        if dk is not None and wanted.key_position and small.key_position is not None:
            d_position = dk.sum(0, dtype=small.key_position.dtype)
        d_first, d_second = _map_gradients(small, q, map_parts, key_parts, products)
    return (
        dq if wanted.q else None,
        dk if wanted.k else None,
        dv if wanted.v else None,
        d_position if wanted.key_position else None,
        d_first if wanted.first else None,
        d_second if wanted.second else None,
    )


def _like(x: Tensor) -> Tensor:
    """Allocate a contiguous tensor of x's shape."""
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _floats(x: Tensor, *shape: int) -> Tensor:
    """Allocate float32 memory on the device of x."""
    return x.new_empty(shape, dtype=torch.float32)


def _compute_state(k: Tensor, v: Tensor, small: SmallTensors) -> Tensor:
    _, keys, heads, dim = k.shape
    plan = plan_tokens('state', k, small.kind(dim))
    rows, chunks = plan.launch_grid
    parts = _floats(k, rows, chunks, state_size(dim, small))
    if rows > 0 and chunks > 0:
        bits = (keys - 1).bit_length()
        grow = 2.0**bits / keys  # 1 / M = 2^-bits * grow, of (E1) and (E2)
        if small.is_power(dim):
            power_kernels.polarity_attention_power_state_kernel[plan.launch_grid](
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
        else:
            exp_kernels.polarity_attention_exp_state_kernel[plan.launch_grid](
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
        return _combine(parts, dim, 1.0)
    return parts.view(rows, state_size(dim, small))


def _compute_output(q: Tensor, state: Tensor, small: SmallTensors, eps: float) -> Tensor:
    _, queries, heads, dim = q.shape
    plan = plan_tokens('output', q, small.kind(dim))
    output = _like(q)
    if 0 in plan.launch_grid:
        return output
    if small.is_power(dim):
        power_kernels.polarity_attention_power_output_kernel[plan.launch_grid](
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
    else:
        exp_kernels.polarity_attention_exp_output_kernel[plan.launch_grid](
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
    o: Tensor | None,
    state: Tensor,
    wanted: Wanted,
    wants_state: bool,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Compute dq and the chunks' parts of the gradients of the state and of the feature map.

    Returns:
        dq; the parts of the state's gradient [B * H, chunks, 2D * (D + 1)]; the parts of the
        feature map's: sums of dp / ln 2 [B * H, chunks, D] of a PowerMap, gradients of both
        temperatures [B * H, chunks, 4D] of an ExpMap. None where they are not wanted.
    """
    _, queries, heads, dim = q.shape
    is_power = small.is_power(dim)
    plan = plan_tokens('query_gradient', q, small.kind(dim))
    dq = None
    if wanted.q:
        dq = _like(q)
    d_state = None
    if wants_state:
        d_state = _floats(q, *plan.launch_grid, 2 * dim * (dim + 1))
    d_map = None
    if is_power and wanted.first:
        d_map = _floats(q, *plan.launch_grid, dim)
    if not is_power and (wanted.first or wanted.second):
        d_map = _floats(q, *plan.launch_grid, 4 * dim)
    if 0 in plan.launch_grid:
        return dq, d_state, d_map
    if is_power:
        power_kernels.polarity_attention_power_query_gradient_kernel[plan.launch_grid](
            q,
            o,
            do,
            small.first,
            small.second,
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
    else:
        exp_kernels.polarity_attention_exp_query_gradient_kernel[plan.launch_grid](
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


def _combine(
    parts: Tensor,
    dim: int,
    factor: float,
    state: Tensor | None = None,
    products: Tensor | None = None,
) -> Tensor:
    """Add the parts [B * H, chunks, SIZE] of a state and multiply the sum by `factor`.

    `products` [B * H, 2D], if given, receives w of (E18a), for which `parts` are those of the
    gradient of `state`.
    """
    rows, chunks, size = parts.shape
    combined = _floats(parts, rows, size)
    if rows == 0:
        return combined
    # 8 rows of the states of 8 chunks at a time
    combine_kernels.combine_states_kernel[rows, ceil_div(2 * dim, 8)](
        parts,
        combined,
        state,
        products,
        chunks,
        factor,
        D=dim,
        BP=8,
        BR=8,
        BD=block_of(dim),
        HAS_SHIFT=size == 2 * dim * (dim + 2),
        num_warps=4,
        **FUSION_OPTIONS,
    )
    return combined


def _key_gradient(
    k: Tensor,
    v: Tensor,
    small: SmallTensors,
    state: Tensor,
    d_state: Tensor,
    wants_dk: bool,
    wants_dv: bool,
    wants_exponent: bool,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Compute dk, dv and the parts [B * H, chunks, D] of the sum of dp / ln 2; None if unwanted."""
    _, keys, heads, dim = k.shape
    plan = plan_tokens('key_gradient', k, small.kind(dim))
    dk = None
    if wants_dk:
        dk = _like(k)
    dv = None
    if wants_dv:
        dv = _like(v)
    d_map = None
    if wants_exponent:
        d_map = _floats(k, *plan.launch_grid, dim)
    if 0 in plan.launch_grid:
        return dk, dv, d_map
    if small.is_power(dim):
        power_kernels.polarity_attention_power_key_gradient_kernel[plan.launch_grid](
            k,
            v,
            small.key_position,
            small.first,
            small.second,
            d_state,
            dk,
            dv,
            d_map,
            *token_strides(k),
            *token_strides(v),
            heads,
            keys,
            plan.tokens,
            **plan.options,
        )
    else:
        exp_kernels.polarity_attention_exp_key_gradient_kernel[plan.launch_grid](
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
    return dk, dv, d_map


def _map_gradients(
    small: SmallTensors,
    q: Tensor,
    query_parts: Tensor | None,
    key_parts: Tensor | None,
    products: Tensor | None,
) -> tuple[Tensor | None, Tensor | None]:
    """Compute the gradients of `first` and `second` from the parts of queries and keys."""
    batch, _, heads, dim = q.shape
    first = small.first
    second = small.second
    if query_parts is None and products is None:
        return None, None
    if not small.is_power(dim):
        assert query_parts is not None and second is not None
        parts = query_parts.view(batch, heads, query_parts.shape[1], 4 * dim)
        d_same, d_opposite = parts.sum((0, 2)).chunk(2, 1)
        return _like(first).copy_(d_same), _like(second).copy_(d_opposite)
    d_first = None
    query_chunks = 0
    if query_parts is not None:
        d_first = _like(first)
        query_chunks = query_parts.shape[1]
    key_chunks = 0
    if key_parts is not None:
        key_chunks = key_parts.shape[1]
    d_second = None
    if products is not None and second is not None:
        d_second = _like(second)
    combine_kernels.power_parameters_kernel[heads, ceil_div(dim, 16)](
        query_parts,
        key_parts,
        products,
        first,
        second,
        d_first,
        d_second,
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
    return d_first, d_second
