"""The forward and the backward pass of an attention call: each allocates its results and launches its kernels.

The state of all heads is one float32 tensor [B * H, SIZE]; a row has S [2D, D], then k̄ [2D] (E1,
E2), then for an ExpMap the shift [2D] (E11). Programs that share a head write partial states, which
`combine_states_kernel` adds.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from mmpola.ops.triton import combine_kernels, exp_kernels, power_kernels
from mmpola.ops.triton.launch import (
    FUSED,
    SmallTensors,
    as_tokens,
    block_of,
    on_device_of,
    plan_tokens,
)


class Wanted(NamedTuple):
    """Which tensors get a gradient; `first` and `second` are those of `SmallTensors`."""

    q: bool
    k: bool
    v: bool
    key_position: bool
    first: bool
    second: bool


Gradients = tuple[Tensor | None, ...]
"""One gradient for each field of `Wanted`; None where it is not wanted."""


def wanted_only(found: Iterable[Tensor | None], wanted: Iterable[bool]) -> Gradients:
    """Replace gradients that are not wanted by None."""
    return tuple(d if want else None for d, want in zip(found, wanted, strict=True))


def state_size(dim: int, small: SmallTensors) -> int:
    """Return SIZE."""
    return 2 * dim * (dim + (1 if small.is_power(dim) else 2))


def forward(
    q: Tensor, k: Tensor, v: Tensor, small: SmallTensors, eps: float
) -> tuple[Tensor, Tensor]:
    """Compute o [B, N, H, D] (E3), contiguous, in q's dtype, and the state."""
    q, k, v = as_tokens(q), as_tokens(k), as_tokens(v)
    with on_device_of(q):
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
) -> Gradients:
    """Compute the gradients of the wanted tensors (E15-E18) from the gradient and the results of `forward`.

    The gradient of an ExpMap needs no o. That of the key position is the sum over the batch of dk
    as stored, which adds one rounding to q's dtype.
    """
    do, q, k, v = as_tokens(do), as_tokens(q), as_tokens(k), as_tokens(v)
    (_, keys, _, dim), is_power = k.shape, small.is_power(q.shape[3])
    from_keys = wanted.k or wanted.key_position, wanted.v, wanted.first and is_power
    want_scale = wanted.second and is_power
    with on_device_of(q):
        dq, parts, map_parts = _query_gradient(
            do, q, small, eps, o, state, wanted, any(from_keys) or want_scale
        )
        dk = dv = key_parts = products = d_position = None
        if parts is not None:
            products = _floats(k, parts.shape[0], 2 * dim) if want_scale else None
            d_state = _combine(parts, dim, 1 / keys, state, products)
            if any(from_keys):
                dk, dv, key_parts = _key_gradient(k, v, small, state, d_state, from_keys)
        if dk is not None and wanted.key_position and small.key_position is not None:
            d_position = dk.sum(0, dtype=small.key_position.dtype)
        d_map = _map_gradients(small, q, map_parts, key_parts, products)
    return wanted_only((dq, dk, dv, d_position, *d_map), wanted)


def _like(x: Tensor) -> Tensor:
    """Allocate a contiguous tensor of x's shape."""
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _floats(x: Tensor, *shape: int) -> Tensor:
    """Allocate float32 memory on the device of x."""
    return x.new_empty(shape, dtype=torch.float32)


def _compute_state(k: Tensor, v: Tensor, small: SmallTensors) -> Tensor:
    _, keys, heads, dim = k.shape
    plan = plan_tokens('state', k, small.kind(dim))
    rows, chunks = plan.grid
    parts = _floats(k, rows, chunks, state_size(dim, small))
    if 0 not in plan.grid:
        bits = (keys - 1).bit_length()  # 1/M = 2^-bits * grow
        sizes = *k.stride()[:3], *v.stride()[:3], heads, keys, plan.tokens
        if small.is_power(dim):
            power_kernels.polarity_attention_power_state_kernel[plan.grid](
                k, v, small.key_position, small.first, small.second, parts,
                *sizes, -float(bits), 2.0**bits / keys, **plan.options,
            )  # fmt: skip
        else:
            exp_kernels.polarity_attention_exp_state_kernel[plan.grid](
                k, v, small.key_position, small.cos, small.sin, parts,
                *sizes, 2.0**-bits, 2.0**bits / keys, **plan.options,
            )  # fmt: skip
    return _combine(parts, dim, 1.0) if chunks > 1 else parts.view(rows, state_size(dim, small))


def _compute_output(q: Tensor, state: Tensor, small: SmallTensors, eps: float) -> Tensor:
    _, queries, heads, dim = q.shape
    plan = plan_tokens('output', q, small.kind(dim))
    output = _like(q)
    if 0 not in plan.grid:
        sizes = *q.stride()[:3], heads, queries, plan.tokens, eps
        if small.is_power(dim):
            power_kernels.polarity_attention_power_output_kernel[plan.grid](
                q, small.first, small.second, state, output, *sizes, **plan.options
            )
        else:
            exp_kernels.polarity_attention_exp_output_kernel[plan.grid](
                q,
                small.first,
                small.second,
                small.cos,
                small.sin,
                state,
                output,
                *sizes,
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
    want_state: bool,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Return dq and the parts of the gradients of the state [B * H, chunks, SIZE] and of the map [B * H, chunks, …].

    The map's parts are the sum of dp / ln 2 [D] for a PowerMap and of dsame and dopposite [4D] for
    an ExpMap.
    """
    _, queries, heads, dim = q.shape
    plan, is_power = plan_tokens('query_gradient', q, small.kind(dim)), small.is_power(dim)
    dq = _like(q) if wanted.q else None
    d_state = _floats(q, *plan.grid, 2 * dim * (dim + 1)) if want_state else None
    want_map = wanted.first or (wanted.second and not is_power)
    d_map = _floats(q, *plan.grid, dim if is_power else 4 * dim) if want_map else None
    if 0 not in plan.grid:
        arguments = (
            state,
            dq,
            d_state,
            d_map,
            *q.stride()[:3],
            *do.stride()[:3],
            heads,
            queries,
            plan.tokens,
            eps,
        )
        if is_power:
            power_kernels.polarity_attention_power_query_gradient_kernel[plan.grid](
                q, o, do, small.first, small.second, *arguments, **plan.options
            )
        else:
            exp_kernels.polarity_attention_exp_query_gradient_kernel[plan.grid](
                q, do, small.first, small.second, small.cos, small.sin, *arguments, **plan.options
            )
    return dq, d_state, d_map


def _combine(
    parts: Tensor,
    dim: int,
    factor: float,
    state: Tensor | None = None,
    products: Tensor | None = None,
) -> Tensor:
    """Add parts [B * H, chunks, SIZE] and multiply by `factor`; `products` [B * H, 2D] gets the row sums of (E18a)."""
    rows, chunks, size = parts.shape
    combined = _floats(parts, rows, size)
    if rows:  # 8 rows of the states of 8 chunks at a time
        combine_kernels.combine_states_kernel[rows, -(-2 * dim // 8)](
            parts, combined, state, products, chunks, factor,
            D=dim, BP=8, BR=8, BD=block_of(dim), HAS_SHIFT=size == 2 * dim * (dim + 2), num_warps=4, **FUSED,
        )  # fmt: skip
    return combined


def _key_gradient(
    k: Tensor,
    v: Tensor,
    small: SmallTensors,
    state: Tensor,
    d_state: Tensor,
    wants: tuple[bool, bool, bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Return dk, dv and the parts [B * H, chunks, D] of the sum of dp / ln 2, those that `wants` asks for."""
    _, keys, heads, dim = k.shape
    plan = plan_tokens('key_gradient', k, small.kind(dim))
    dk = _like(k) if wants[0] else None
    dv = _like(v) if wants[1] else None
    d_map = _floats(k, *plan.grid, dim) if wants[2] else None
    sizes = *k.stride()[:3], *v.stride()[:3], heads, keys, plan.tokens
    if 0 not in plan.grid:
        if small.is_power(dim):
            power_kernels.polarity_attention_power_key_gradient_kernel[plan.grid](
                k,
                v,
                small.key_position,
                small.first,
                small.second,
                d_state,
                dk,
                dv,
                d_map,
                *sizes,
                **plan.options,
            )
        else:
            exp_kernels.polarity_attention_exp_key_gradient_kernel[plan.grid](
                k,
                v,
                small.key_position,
                small.cos,
                small.sin,
                state,
                d_state,
                dk,
                dv,
                *sizes,
                **plan.options,
            )
    return dk, dv, d_map


def _map_gradients(
    small: SmallTensors,
    q: Tensor,
    parts: Tensor | None,
    key_parts: Tensor | None,
    products: Tensor | None,
) -> tuple[Tensor | None, Tensor | None]:
    """Return the gradients of `first` and `second` from the parts of queries and of keys; None without any."""
    batch, _, heads, dim = q.shape
    first, second = small.first, small.second
    if parts is None and products is None:
        return None, None
    d_first = None if parts is None else _like(first)
    chunks = [0 if x is None else x.shape[1] for x in (parts, key_parts)]
    if small.is_power(dim):
        d_second = None if products is None or second is None else _like(second)
        combine_kernels.power_parameters_kernel[heads, -(-dim // 16)](
            parts, key_parts, products, first, second, d_first, d_second, batch, heads, *chunks,
            D=dim, BP=128, BW=16, num_warps=4, **FUSED,
        )  # fmt: skip
        return d_first, d_second
    assert parts is not None and d_first is not None and second is not None
    d_same, d_opposite = parts.view(batch, heads, chunks[0], 4 * dim).sum((0, 2)).chunk(2, 1)
    return d_first.copy_(d_same), _like(second).copy_(d_opposite)
