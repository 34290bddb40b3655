"""`mmpola::polarity_attention` and its gradient: the attention kernels under autograd.

In ordinary eager mode an autograd function launches the kernels, which takes a third of the host
time of an operator of torch.library. Where something must see the calls (torch.compile, FLOP
counters, torch.func), they are operators of torch.library. The first six tensors of each are the
fields of `Wanted`.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.utils.flop_counter import register_flop_formula

from mmpola.ops.inputs import AttentionInputs
from mmpola.ops.tracing import is_observed
from mmpola.ops.triton.launch import SmallTensors, contiguous
from mmpola.ops.triton.operator_gradients import (
    empty_gradients,
    no_second_gradient,
    wanted_only,
    without_none,
)
from mmpola.ops.triton.passes import PassGradients, Wanted, backward, forward, state_size


def attend(inputs: AttentionInputs) -> Tensor:
    """Compute o [B, N, H, D], differentiable, with as little time on the host as possible."""
    q, k, v, key_position, first, second = inputs.tensors()
    cos = None
    sin = None
    if inputs.rotary is not None:
        cos, sin = inputs.rotary
    eps = inputs.eps
    if is_observed(q):
        output, _ = polarity_attention_operator(q, k, v, key_position, first, second, cos, sin, eps)
        return output
    if torch.is_grad_enabled():
        return AttentionFunction.apply(q, k, v, key_position, first, second, cos, sin, eps)
    output, _ = run_forward(q, k, v, key_position, first, second, cos, sin, eps)
    return output


def run_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    key_position: Tensor | None,
    first: Tensor,
    second: Tensor | None,
    cos: Tensor | None,
    sin: Tensor | None,
    eps: float,
) -> tuple[Tensor, Tensor]:
    """Compute o [B, N, H, D] and the state [B * H, SIZE], which the gradient needs.

    `first` and `second` are the tensors of the feature map, see `SmallTensors`.
    """
    small = contiguous(key_position, first, second, cos, sin)
    return forward(q, k, v, small, eps)


def run_backward(
    do: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    key_position: Tensor | None,
    first: Tensor,
    second: Tensor | None,
    cos: Tensor | None,
    sin: Tensor | None,
    eps: float,
    o: Tensor | None,
    state: Tensor,
    wanted: Wanted,
) -> PassGradients:
    """Compute the gradients of the first six tensors (E15-E18); None where they are not wanted."""
    small = contiguous(key_position, first, second, cos, sin)
    return backward(do, q, k, v, small, eps, o, state, wanted)


class AttentionFunction(Function):
    """`attend` in eager mode."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        key_position: Tensor | None,
        first: Tensor,
        second: Tensor | None,
        cos: Tensor | None,
        sin: Tensor | None,
        eps: float,
    ) -> Tensor:
        o, state = run_forward(q, k, v, key_position, first, second, cos, sin, eps)
        keep_for_backward(ctx, (q, k, v, key_position, first, second, cos, sin, eps), (o, state))
        return o

    @staticmethod
    def backward(ctx: Any, do: Tensor) -> PassGradients:
        return attention_gradients(ctx, do)


def keep_for_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    """Save what `attention_gradients` reads; the gradient of an ExpMap needs no o."""
    q, k, v, key_position, first, second, cos, sin, eps = inputs
    o, state = output
    small = SmallTensors(key_position, first, second, cos, sin)
    saved_o = None
    if small.is_power(o.shape[3]):
        saved_o = o
    ctx.eps = eps
    ctx.save_for_backward(q, k, v, key_position, first, second, cos, sin, saved_o, state)


def attention_gradients(ctx: Any, do: Tensor) -> PassGradients:
    """Compute the gradients of all nine arguments; that of rotary tables and epsilon is None."""
    q, k, v, key_position, first, second, cos, sin, o, state = ctx.saved_tensors
    wanted = Wanted._make(ctx.needs_input_grad[:6])
    if not torch.is_grad_enabled() and not is_observed(do):
        gradients = run_backward(
            do, q, k, v, key_position, first, second, cos, sin, ctx.eps, o, state, wanted
        )
        return (*gradients, None, None, None)
    found = polarity_attention_gradient_operator(
        q, k, v, key_position, first, second, cos, sin, ctx.eps, do, o, state, list(wanted)
    )
    return (*wanted_only(found, wanted), None, None, None)


TENSORS = (
    'Tensor q, Tensor k, Tensor v, Tensor? key_position, Tensor first, Tensor? second, '
    'Tensor? cos, Tensor? sin, float eps'
)

polarity_attention_operator = torch.library.custom_op(
    'mmpola::polarity_attention',
    run_forward,
    mutates_args=(),
    schema=f'({TENSORS}) -> (Tensor, Tensor)',
)


@torch.library.custom_op(
    'mmpola::polarity_attention_gradient',
    mutates_args=(),
    schema=f'({TENSORS}, Tensor do, Tensor? o, Tensor state, bool[] wanted) -> Tensor[]',
)
def polarity_attention_gradient_operator(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    key_position: Tensor | None,
    first: Tensor,
    second: Tensor | None,
    cos: Tensor | None,
    sin: Tensor | None,
    eps: float,
    do: Tensor,
    o: Tensor | None,
    state: Tensor,
    wanted: list[bool],
) -> list[Tensor]:
    """Compute `run_backward`; an empty tensor where a gradient is not wanted."""
    wants = Wanted._make(wanted)
    found = run_backward(do, q, k, v, key_position, first, second, cos, sin, eps, o, state, wants)
    return without_none(found, q)


@polarity_attention_operator.register_fake
def _(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    key_position: Tensor | None,
    first: Tensor,
    second: Tensor | None,
    cos: Tensor | None,
    sin: Tensor | None,
    eps: float,
) -> tuple[Tensor, Tensor]:
    batch, _, heads, dim = q.shape
    size = state_size(dim, SmallTensors(key_position, first, second, cos, sin))
    state = torch.empty(batch * heads, size, device=q.device, dtype=torch.float32)
    return torch.empty(q.shape, device=q.device, dtype=q.dtype), state


@polarity_attention_gradient_operator.register_fake
def _(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    key_position: Tensor | None,
    first: Tensor,
    second: Tensor | None,
    cos: Tensor | None,
    sin: Tensor | None,
    eps: float,
    do: Tensor,
    o: Tensor | None,
    state: Tensor,
    wanted: list[bool],
) -> list[Tensor]:
    return empty_gradients([q, k, v, key_position, first, second], wanted, do)


def _setup_operator(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    _, state = output
    ctx.mark_non_differentiable(state)
    ctx.set_materialize_grads(False)  # else the state's gradient would be a tensor of zeros
    keep_for_backward(ctx, inputs, output)


def _operator_gradients(ctx: Any, do: Tensor, d_state: None) -> PassGradients:
    return attention_gradients(ctx, do)


polarity_attention_operator.register_autograd(_operator_gradients, setup_context=_setup_operator)
polarity_attention_gradient_operator.register_autograd(no_second_gradient)


@register_flop_formula(torch.ops.mmpola.polarity_attention)
def _(q: Any, k: Any, *others: Any, **options: Any) -> int:
    """Count two products with a [2D, D] matrix per token (E2, E3)."""
    return 2 * _product_flops(q, k)


@register_flop_formula(torch.ops.mmpola.polarity_attention_gradient)
def _(q: Any, k: Any, *others: Any, **options: Any) -> int:
    """Count four products with a [2D, D] matrix per token (E16, E17)."""
    return 4 * _product_flops(q, k)


def _product_flops(q: Any, k: Any) -> int:
    """Count the FLOPs of a product [D] x [D, D] for every query and key; q and k are shapes."""
    batch, queries, heads, dim = q
    return 2 * batch * heads * (queries + k[1]) * dim * dim
