"""The four passes of an attention call: each allocates its outputs and launches the kernel of the feature map.

Partial results of programs are added by `torch.sum` in a fixed order, so that results are reproducible bit for bit.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mmpola.ops.triton import exp_kernels, power_kernels
from mmpola.ops.triton.launch import ONE_PRODUCT_STATE, SmallTensors, on_device_of, plan_tokens


def launch_state(k: Tensor, v: Tensor, small: SmallTensors) -> tuple[Tensor, Tensor, Tensor | None]:
    """Compute the state [B, H, 2D, D], key mean and shift [B, H, 2D] (E1, E2, E11), float32; PowerMap: no shift."""
    batch, keys, heads, dim = k.shape
    plan = plan_tokens('state', k, small)
    rows, chunks = plan.grid
    state = torch.empty(rows, chunks, 2 * dim, dim, device=k.device, dtype=torch.float32)
    key_mean = torch.empty(rows, chunks, 2 * dim, device=k.device, dtype=torch.float32)
    shift = torch.empty_like(key_mean) if small.exponent is None else None
    shrink = 2.0 ** -(keys - 1).bit_length()  # 1/M = shrink * grow
    sizes = *k.stride()[:3], *v.stride()[:3], heads, keys, plan.tokens, shrink, 1 / (shrink * keys)
    if not plan.is_empty:
        with on_device_of(k):
            if small.exponent is not None:
                power_kernels.polarity_attention_power_state_kernel[plan.grid](
                    k, v, small.key_position, small.exponent, small.scale, state, key_mean, *sizes, **plan.options
                )
            else:
                exp_kernels.polarity_attention_exp_state_kernel[plan.grid](
                    k, v, small.key_position, small.cos, small.sin, state, key_mean, shift, *sizes, **plan.options
                )
    if shift is not None:  # bring the chunks' sums, each with its own shift, to the largest one
        shifts, shift = shift, shift.amax(1)
        decay = (shifts - shift.unsqueeze(1)).exp_()
        state *= decay.unsqueeze(-1)
        key_mean *= decay
        shift = shift.view(batch, heads, 2 * dim)
    return state.sum(1).view(batch, heads, 2 * dim, dim), key_mean.sum(1).view(batch, heads, 2 * dim), shift


def launch_output(
    q: Tensor, state: Tensor, key_mean: Tensor, shift: Tensor | None, small: SmallTensors, eps: float
) -> Tensor:
    """Compute o [B, N, H, D] (E3), contiguous, in q's dtype."""
    _, queries, heads, _ = q.shape
    plan = plan_tokens('output', q, small)
    output = torch.empty(q.shape, device=q.device, dtype=q.dtype)
    sizes = *q.stride()[:3], heads, queries, plan.tokens, eps
    if not plan.is_empty:
        with on_device_of(q):
            if small.exponent is not None:
                power_kernels.polarity_attention_power_output_kernel[plan.grid](
                    q, small.exponent, small.scale, state, key_mean, output, *sizes, **plan.options
                )
            else:
                exp_kernels.polarity_attention_exp_output_kernel[plan.grid](
                    q, small.same, small.opposite, small.cos, small.sin, state, key_mean, shift, output,
                    *sizes, **plan.options,
                )  # fmt: skip
    return output


def launch_query_gradient(
    do: Tensor,
    q: Tensor,
    state: Tensor,
    key_mean: Tensor,
    shift: Tensor | None,
    small: SmallTensors,
    eps: float,
    wants: tuple[bool, bool, bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]:
    """Compute dq [B, N, H, D], dS [B, H, 2D, D], dk̄ [B, H, 2D] and sums for the map's parameters (E15, E16, E18).

    Args:
        do: gradient of the output [B, N, H, D], unit stride in D.
        wants: whether dq, dS with dk̄, and the parameters' sums are wanted; None is returned for the others.

    Returns:
        The sums are [H, 2, D] (of dp / ln 2, u du) for a PowerMap and [H, 4, D] (dsame, dopposite) for an ExpMap.
    """
    batch, queries, heads, dim = q.shape
    plan = plan_tokens('query_gradient', q, small)
    rows, chunks = plan.grid
    count = 2 if small.exponent is not None else 4
    dq = torch.empty(q.shape, device=q.device, dtype=q.dtype) if wants[0] else None
    d_state = torch.empty(rows, chunks, 2 * dim, dim, device=q.device, dtype=torch.float32) if wants[1] else None
    d_key_mean = torch.empty(rows, chunks, 2 * dim, device=q.device, dtype=torch.float32) if wants[1] else None
    d_map = torch.empty(rows, chunks, count, dim, device=q.device, dtype=torch.float32) if wants[2] else None
    outputs = dq, d_state, d_key_mean, d_map
    sizes = *q.stride()[:3], *do.stride()[:3], heads, queries, plan.tokens, eps
    if not plan.is_empty:
        with on_device_of(q):
            if small.exponent is not None:
                power_kernels.polarity_attention_power_query_gradient_kernel[plan.grid](
                    q, do, small.exponent, small.scale, state, key_mean, *outputs, *sizes, **plan.options
                )
            else:
                exp_kernels.polarity_attention_exp_query_gradient_kernel[plan.grid](
                    q, do, small.same, small.opposite, small.cos, small.sin, state, key_mean, shift,
                    *outputs, *sizes, **plan.options,
                )  # fmt: skip
    return (
        dq,
        None if d_state is None else d_state.sum(1).view(batch, heads, 2 * dim, dim),
        None if d_key_mean is None else d_key_mean.sum(1).view(batch, heads, 2 * dim),
        None if d_map is None else d_map.view(batch, heads, chunks, count, dim).sum((0, 2)),
    )


def launch_key_gradient(
    k: Tensor,
    v: Tensor,
    d_state: Tensor,
    d_key_mean: Tensor,
    shift: Tensor | None,
    small: SmallTensors,
    wants: tuple[bool, bool, bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Compute dk, dv [B, M, H, D] and, for a PowerMap, the parameters' sums [H, 2, D] (E17, E18).

    Args:
        d_state: gradient of the state [B, H, 2D, D], divided by M.
        d_key_mean: gradient of the key mean [B, H, 2D], divided by M.
        wants: whether dk, dv and the parameters' sums are wanted; None is returned for the others.
    """
    batch, keys, heads, dim = k.shape
    plan = plan_tokens('key_gradient', k, small)
    rows, chunks = plan.grid
    dk = torch.empty(k.shape, device=k.device, dtype=k.dtype) if wants[0] else None
    dv = torch.empty(v.shape, device=v.device, dtype=v.dtype) if wants[1] else None
    d_map = torch.empty(rows, chunks, 2, dim, device=k.device, dtype=torch.float32) if wants[2] else None
    # dk needs dSᵀ and dv needs dS on the right of a product. At BD = 128 both together take 256 KB of shared memory,
    # more than there is, so dk and dv get a launch each.
    launches: list[tuple[Tensor | None, Tensor | None, Tensor | None]] = [(dk, dv, d_map)]
    if plan.options['BD'] >= ONE_PRODUCT_STATE:
        launches = [(dk, None, d_map), (None, dv, None)]
    sizes = *k.stride()[:3], *v.stride()[:3], heads, keys, plan.tokens
    for outputs in launches:
        if plan.is_empty or all(x is None for x in outputs):
            continue
        with on_device_of(k):
            if small.exponent is not None:
                power_kernels.polarity_attention_power_key_gradient_kernel[plan.grid](
                    k, v, small.key_position, small.exponent, small.scale, d_state, d_key_mean,
                    *outputs, *sizes, **plan.options,
                )  # fmt: skip
            else:
                exp_kernels.polarity_attention_exp_key_gradient_kernel[plan.grid](
                    k, v, small.key_position, small.cos, small.sin, d_state, d_key_mean, shift,
                    outputs[0], outputs[1], *sizes, **plan.options,
                )  # fmt: skip
    return dk, dv, None if d_map is None else d_map.view(batch, heads, chunks, 2, dim).sum((0, 2))
