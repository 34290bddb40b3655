"""`mmpola::polarity_attention` and its gradient: the attention kernels under autograd.

In ordinary eager mode an autograd function launches the kernels, which takes the host a third of
the time of an operator of torch.library. Where something must see the calls (torch.compile, FLOP
counters, torch.func), they are such operators. Their first six tensors are those of `Wanted`.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.utils.flop_counter import register_flop_formula

from mmpola.ops.inputs import AttentionInputs
from mmpola.ops.tracing import is_observed
from mmpola.ops.triton.launch import SmallTensors
from mmpola.ops.triton.passes import Gradients, Wanted, backward, forward, state_size, wanted_only


def attend(inputs: AttentionInputs) -> Tensor:
    """Compute o [B, N, H, D], differentiable, with as little time on the host as the surroundings allow."""
    cos, sin = inputs.rotary or (None, None)
    arguments = *inputs.tensors(), cos, sin, inputs.eps
    if is_observed(inputs.q):
        return polarity_attention_operator(*arguments)[0]
    return (_Attention.apply if torch.is_grad_enabled() else _forward)(*arguments)[0]


def _forward(*arguments: Any) -> tuple[Tensor, Tensor]:
    """Compute o [B, N, H, D] and the state [B * H, SIZE], which the gradient needs."""
    q, k, v, *small, eps = arguments
    return forward(q, k, v, SmallTensors.contiguous(*small), eps)


def _gradients(*arguments: Any) -> Gradients:
    """Compute the gradients of the first six tensors (E15-E18); None where they are not wanted."""
    q, k, v, *small, eps, do, o, state, wanted = arguments
    return backward(do, q, k, v, SmallTensors.contiguous(*small), eps, o, state, Wanted(*wanted))


TENSORS = (
    'Tensor q, Tensor k, Tensor v, Tensor? key_position, Tensor first, Tensor? second, Tensor? cos, Tensor? sin, '
    'float eps'
)

polarity_attention_operator = torch.library.custom_op(
    'mmpola::polarity_attention',
    _forward,
    mutates_args=(),
    schema=f'({TENSORS}) -> (Tensor, Tensor)',
)


@torch.library.custom_op(
    'mmpola::polarity_attention_gradient',
    mutates_args=(),
    schema=f'({TENSORS}, Tensor do, Tensor? o, Tensor state, bool[] wanted) -> Tensor[]',
)
def polarity_attention_gradient_operator(*arguments: Any) -> list[Tensor]:
    """Compute `_gradients`; an empty tensor where they are not wanted."""
    return present(_gradients(*arguments), arguments[0])


def present(found: Gradients, like: Tensor) -> list[Tensor]:
    """Replace None by empty tensors, a separate one for each: results of an operator must not share memory."""
    return [like.new_empty(0) if d is None else d for d in found]


@polarity_attention_operator.register_fake
def _(*arguments: Any) -> tuple[Tensor, Tensor]:
    q, _k, _v, *small, _eps = arguments
    batch, _, heads, dim = q.shape
    state = torch.empty(
        batch * heads, state_size(dim, SmallTensors(*small)), device=q.device, dtype=torch.float32
    )
    return torch.empty(q.shape, device=q.device, dtype=q.dtype), state


@polarity_attention_gradient_operator.register_fake
def _(*arguments: Any) -> list[Tensor]:
    *tensors, _cos, _sin, _eps, do, _o, _state, wanted = arguments
    return empty_gradients(tensors, wanted, do)


def empty_gradients(
    tensors: Iterable[Tensor | None], wanted: list[bool], do: Tensor
) -> list[Tensor]:
    """Allocate a contiguous gradient for each tensor that is wanted, an empty tensor for each other one."""
    return [
        torch.empty(x.shape, device=x.device, dtype=x.dtype)
        if want and x is not None
        else do.new_empty(0)
        for x, want in zip(tensors, wanted, strict=True)
    ]


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    o, state = output
    ctx.mark_non_differentiable(state)
    ctx.set_materialize_grads(False)  # the state's would be zeros
    *tensors, ctx.eps = inputs
    is_power = SmallTensors(*tensors[3:]).is_power(o.shape[3])
    ctx.save_for_backward(*tensors, o if is_power else None, state)


def _backward(ctx: Any, do: Tensor, *_: Any) -> Gradients:
    *tensors, o, state = ctx.saved_tensors
    *wanted, _cos, _sin, _eps = ctx.needs_input_grad
    arguments = *tensors, ctx.eps, do, o, state, wanted
    if torch.is_grad_enabled() or is_observed(do):
        return (
            *wanted_only(polarity_attention_gradient_operator(*arguments), wanted),
            None,
            None,
            None,
        )
    return *_gradients(*arguments), None, None, None


class _Attention(Function):
    """`attend` in eager mode."""

    forward = staticmethod(_forward)
    setup_context = staticmethod(_setup_context)
    backward = staticmethod(_backward)


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
