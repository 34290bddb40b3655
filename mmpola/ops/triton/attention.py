"""`mmpola::polarity_attention` and its gradient: the attention kernels under autograd.

In ordinary eager mode an autograd function launches the kernels, which takes the host a third of the time of an
operator of torch.library. Where something must see the calls (torch.compile, FLOP counters, torch.func), they are such
operators. The schema of each comes from its Python signature, whose first eight tensors are those of `Wanted`.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.utils.flop_counter import register_flop_formula

from mmpola.ops.features import PowerMap
from mmpola.ops.inputs import AttentionInputs
from mmpola.ops.tracing import is_observed
from mmpola.ops.triton.launch import SmallTensors
from mmpola.ops.triton.passes import Wanted, backward, forward


def attend(inputs: AttentionInputs) -> Tensor:
    """Compute o [B, N, H, D], differentiable, with as little time on the host as the surroundings allow."""
    cos, sin = inputs.rotary or (None, None)
    q, k, v, key_position, *parameters = inputs.tensors()
    is_power = isinstance(inputs.feature_map, PowerMap)
    others = key_position, *((*parameters, None, None) if is_power else (None, None, *parameters))
    if is_observed(q):
        return polarity_attention_operator(q, k, v, *others, cos, sin, inputs.eps)[0]
    if torch.is_grad_enabled():
        return _Attention.apply(q, k, v, *others, cos, sin, inputs.eps)
    return forward(q, k, v, _small(*others, cos, sin), inputs.eps)[0]


class _Attention(Function):
    """`attend` in eager mode."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:
        q, k, v, *others, eps = arguments
        small = _small(*others)
        output, state = forward(q, k, v, small, eps)
        ctx.save_for_backward(q, k, v, *small, None if small.exponent is None else output, state)
        ctx.eps = eps
        return output

    @staticmethod
    def backward(ctx: Any, do: Tensor) -> tuple[Tensor | None, ...]:
        *tensors, output, state = ctx.saved_tensors
        wanted = ctx.needs_input_grad[:8]
        if torch.is_grad_enabled() or is_observed(do):
            found = polarity_attention_gradient_operator(*tensors, ctx.eps, do, output, state, wanted)
            found = [d if want else None for d, want in zip(found, wanted, strict=True)]
        else:
            q, k, v, *others = tensors
            found = backward(do, q, k, v, SmallTensors(*others), ctx.eps, output, state, Wanted(*wanted))
        return *found, None, None, None


def _small(*tensors: Tensor | None) -> SmallTensors:
    return SmallTensors(*(x if x is None or x.is_contiguous() else x.contiguous() for x in tensors))


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
) -> tuple[Tensor, Tensor]:
    """Compute o [B, N, H, D] and the state [B * H, SIZE], which the gradient needs."""
    return forward(q, k, v, _small(key_position, exponent, scale, same, opposite, cos, sin), eps)


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
    o: Tensor | None,
    state: Tensor,
    wanted: list[bool],
) -> list[Tensor]:
    """Compute the gradients of the first eight tensors (E15-E18); an empty tensor where `wanted` is False."""
    small = _small(key_position, exponent, scale, same, opposite, cos, sin)
    found = backward(do, q, k, v, small, eps, o, state, Wanted(*wanted))
    # A separate empty tensor for each: the results of an operator must not share memory.
    return [do.new_empty(0) if d is None else d for d in found]


@polarity_attention_operator.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, key_position: Tensor | None, exponent: Tensor | None, *others: Any) -> Any:
    batch, _, heads, dim = q.shape
    size = 2 * dim * (dim + (1 if exponent is not None else 2))
    state = torch.empty(batch * heads, size, device=q.device, dtype=torch.float32)
    return torch.empty(q.shape, device=q.device, dtype=q.dtype), state


@polarity_attention_gradient_operator.register_fake
def _(*arguments: Any) -> list[Tensor]:
    *tensors, _cos, _sin, _eps, do, _o, _state, wanted = arguments
    return empty_gradients(tensors, wanted, do)


def empty_gradients(tensors: Iterable[Tensor | None], wanted: list[bool], do: Tensor) -> list[Tensor]:
    """Allocate a contiguous gradient for each tensor that is wanted, an empty tensor for each other one."""
    return [
        torch.empty(x.shape, device=x.device, dtype=x.dtype) if want and x is not None else do.new_empty(0)
        for x, want in zip(tensors, wanted, strict=True)
    ]


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    o, state = output
    ctx.mark_non_differentiable(state)
    *tensors, ctx.eps = inputs
    exponent = tensors[4]
    ctx.save_for_backward(*tensors, None if exponent is None else o, state)


def _backward(ctx: Any, do: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    *tensors, o, state = ctx.saved_tensors
    *wanted, _cos, _sin, _eps = ctx.needs_input_grad
    found = polarity_attention_gradient_operator(*tensors, ctx.eps, do, o, state, wanted)
    return *(d if want else None for d, want in zip(found, wanted, strict=True)), None, None, None


def no_second_gradient(ctx: Any, *_: Any) -> None:
    """Refuse the derivative of a gradient operator."""
    raise RuntimeError("backend 'triton' has no second derivative: choose backend='torch'")


polarity_attention_operator.register_autograd(_backward, setup_context=_setup_context)
polarity_attention_gradient_operator.register_autograd(no_second_gradient)


@register_flop_formula(torch.ops.mmpola.polarity_attention)
def _(q: Any, k: Any, *_: Any, **__: Any) -> int:
    """Count two products with a [2D, D] matrix per token (E2, E3)."""
    return 2 * _product_flops(q, k)


@register_flop_formula(torch.ops.mmpola.polarity_attention_gradient)
def _(q: Any, k: Any, *_: Any, **__: Any) -> int:
    """Count four products with a [2D, D] matrix per token (E16, E17)."""
    return 4 * _product_flops(q, k)


def _product_flops(q: Any, k: Any) -> int:
    """Count the FLOPs of a product [D] x [D, D] for every query and key; q and k are shapes."""
    batch, queries, heads, dim = q
    return 2 * batch * heads * (queries + k[1]) * dim * dim
