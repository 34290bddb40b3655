"""`mmpola::polarity_attention` and its gradient: the attention kernels as torch.library operators.

Autograd, torch.compile and the FLOP counter see these two operators only, never the kernels. The schema of each comes
from its Python signature, whose first eight tensors are those of `AttentionTensors`, in that order.
"""

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from mmpola.ops.inputs import AttentionTensors
from mmpola.ops.triton.launch import SmallTensors, as_tokens
from mmpola.ops.triton.passes import launch_key_gradient, launch_output, launch_query_gradient, launch_state


@torch.library.custom_op('mmpola::polarity_attention', mutates_args=())
def polarity_attention_operator(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    key_position: Tensor | None,
    exponent: Tensor | None,
    scale: Tensor | None,
    same: Tensor | None,
    opposite: Tensor | None,
    cos: Tensor | None,
    sin: Tensor | None,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compute o [B, N, H, D] and what the gradient needs: state [B, H, 2D, D], key mean and shift [B, H, 2D], float32.

    The map's parameters and the rotary tables are float32. A PowerMap has no shift; it returns an empty tensor.
    """
    small = SmallTensors(key_position, exponent, scale, same, opposite, cos, sin).contiguous()
    state, key_mean, shift = launch_state(as_tokens(k), as_tokens(v), small)
    output = launch_output(as_tokens(q), state, key_mean, shift, small, eps)
    return output, state, key_mean, key_mean.new_empty(0) if shift is None else shift


@torch.library.custom_op('mmpola::polarity_attention_gradient', mutates_args=())
def polarity_attention_gradient_operator(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    key_position: Tensor | None,
    exponent: Tensor | None,
    scale: Tensor | None,
    same: Tensor | None,
    opposite: Tensor | None,
    cos: Tensor | None,
    sin: Tensor | None,
    eps: float,
    do: Tensor,
    state: Tensor,
    key_mean: Tensor,
    shift: Tensor,
    wanted: list[bool],
) -> list[Tensor]:
    """Compute the gradients of `AttentionTensors` (E15-E18); an empty tensor where `wanted` is False.

    The gradient of the key position is the sum over the batch of dk as stored, which adds one rounding to q's dtype.
    """
    small = SmallTensors(key_position, exponent, scale, same, opposite, cos, sin).contiguous()
    q, k, v, do = as_tokens(q), as_tokens(k), as_tokens(v), as_tokens(do)
    is_power = exponent is not None
    key_shift = None if is_power else shift
    wants = dict(zip(AttentionTensors._fields, wanted, strict=True))
    want_key = wants['k'] or wants['key_position']
    want_map = wants['exponent'] or wants['scale'] or wants['same'] or wants['opposite']
    want_map_from_keys = is_power and want_map  # an ExpMap's parameters do not enter the key features
    want_keys = want_key or wants['v'] or want_map_from_keys

    found: dict[str, Tensor | None] = {}
    found['q'], d_state, d_key_mean, d_map = launch_query_gradient(
        do, q, state, key_mean, key_shift, small, eps, (wants['q'], want_keys, want_map)
    )
    if d_state is not None and d_key_mean is not None:
        keys = k.shape[1]
        found['k'], found['v'], d_map_from_keys = launch_key_gradient(
            k, v, d_state / keys, d_key_mean / keys, key_shift, small, (want_key, wants['v'], want_map_from_keys)
        )
        if d_map is not None and d_map_from_keys is not None:
            d_map = d_map + d_map_from_keys
    if wants['key_position'] and key_position is not None and (dk := found['k']) is not None:
        found['key_position'] = dk.sum(0, dtype=torch.float32).to(key_position.dtype)
    if d_map is not None:
        found |= _map_gradients(d_map, small)
    # A separate empty tensor for each: the results of an operator must not share memory.
    return [do.new_empty(0) if not want or (d := found[name]) is None else d for name, want in wants.items()]


def _map_gradients(sums: Tensor, small: SmallTensors) -> dict[str, Tensor | None]:
    """Turn the kernels' sums, [H, 2, D] for a PowerMap and [H, 4, D] for an ExpMap, into the parameters' gradients."""
    if small.exponent is None:
        same, opposite = sums.unflatten(1, (2, 2)).flatten(2).unbind(1)
        return {'same': same.clone(), 'opposite': opposite.clone()}
    exponent, scale = sums.unbind(1)
    # With u = x / s: ds = -(sum of u du) / s.
    return {'exponent': exponent * math.log(2), 'scale': None if small.scale is None else -scale / small.scale}


@polarity_attention_operator.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, key_position: Tensor | None, exponent: Tensor | None, *others: Any) -> Any:
    batch, _, heads, dim = q.shape
    state = torch.empty(batch, heads, 2 * dim, dim, device=q.device, dtype=torch.float32)
    key_mean = torch.empty(batch, heads, 2 * dim, device=q.device, dtype=torch.float32)
    shift = torch.empty_like(key_mean) if exponent is None else key_mean.new_empty(0)
    return torch.empty(q.shape, device=q.device, dtype=q.dtype), state, key_mean, shift


@polarity_attention_gradient_operator.register_fake
def _(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    key_position: Tensor | None,
    exponent: Tensor | None,
    scale: Tensor | None,
    same: Tensor | None,
    opposite: Tensor | None,
    cos: Tensor | None,
    sin: Tensor | None,
    eps: float,
    do: Tensor,
    state: Tensor,
    key_mean: Tensor,
    shift: Tensor,
    wanted: list[bool],
) -> list[Tensor]:
    tensors = AttentionTensors(q, k, v, key_position, exponent, scale, same, opposite)
    return empty_gradients(tensors, wanted, do)


def empty_gradients(tensors: Iterable[Tensor | None], wanted: list[bool], do: Tensor) -> list[Tensor]:
    """Allocate a contiguous gradient for each tensor that is wanted, an empty tensor for each other one."""
    return [
        torch.empty(x.shape, device=x.device, dtype=x.dtype) if want and x is not None else do.new_empty(0)
        for x, want in zip(tensors, wanted, strict=True)
    ]


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor, Tensor]) -> None:
    _, state, key_mean, shift = output
    ctx.mark_non_differentiable(state, key_mean, shift)
    *tensors, ctx.eps = inputs
    ctx.save_for_backward(*tensors, state, key_mean, shift)


def _backward(ctx: Any, do: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    *tensors, state, key_mean, shift = ctx.saved_tensors
    *wanted, _cos, _sin, _eps = ctx.needs_input_grad
    found = polarity_attention_gradient_operator(*tensors, ctx.eps, do, state, key_mean, shift, wanted)
    return *(d if want else None for d, want in zip(found, wanted, strict=True)), None, None, None


def no_second_gradient(ctx: Any, *_: Any) -> None:
    """Refuse the derivative of a gradient operator."""
    raise RuntimeError("backend 'triton' has no second derivative: choose backend='reference'")


polarity_attention_operator.register_autograd(_backward, setup_context=_setup_context)
polarity_attention_gradient_operator.register_autograd(no_second_gradient)


@register_flop_formula(torch.ops.mmpola.polarity_attention)
def _(q: Any, k: Any, *_: Any, **__: Any) -> int:
    """Two products with a [2D, D] matrix per token (E2, E3)."""
    return 2 * _product_flops(q, k)


@register_flop_formula(torch.ops.mmpola.polarity_attention_gradient)
def _(q: Any, k: Any, *_: Any, **__: Any) -> int:
    """Four products with a [2D, D] matrix per token (E16, E17)."""
    return 4 * _product_flops(q, k)


def _product_flops(q: Any, k: Any) -> int:
    """FLOPs of a product [D] x [D, D] for every query and key; q and k are shapes."""
    batch, queries, heads, dim = q
    return 2 * batch * heads * (queries + k[1]) * dim * dim
