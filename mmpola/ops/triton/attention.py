"""`mmpola::polarity_attention` and its gradient: the attention kernels under autograd.

`run_forward` and `run_backward` launch the kernels. In ordinary eager mode an autograd function
calls them, which saves half of the host's time per call in a training step. Where something must
see the calls (torch.compile, FLOP counters, torch.func), operators of torch.library call them.

The ten arguments of each are q, k, v, key_position, `first` and `second` (the tensors of the
feature map, see `SmallTensors`), cos, sin, eps and the map's `KIND`.
"""

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.utils.flop_counter import register_flop_formula

from mmpola.ops.inputs import AttentionInputs
from mmpola.ops.tracing import is_observed
from mmpola.ops.triton import exp_passes, power_passes
from mmpola.ops.triton.launch import as_tokens, contiguous, on_device_of
from mmpola.ops.triton.operator_gradients import (
    check_gradient,
    empty_gradients,
    no_second_gradient,
    wanted_only,
    without_none,
)
from mmpola.ops.triton.passes import PassGradients, Wanted

PASSES: dict[str, ModuleType] = {'power': power_passes, 'exp': exp_passes}
"""By the `KIND` of a feature map."""


def attend(inputs: AttentionInputs) -> Tensor:
    """Compute o [B, N, H, D], differentiable, with as little time on the host as possible."""
    cos = None
    sin = None
    if inputs.rotary is not None:
        cos, sin = inputs.rotary
    arguments = (*inputs.tensors(), cos, sin, inputs.eps, inputs.feature_map.KIND)
    if is_observed(inputs.q):
        output, _ = polarity_attention_operator(*arguments)
    elif torch.is_grad_enabled():
        output = AttentionFunction.apply(*arguments)
    else:
        output, _ = run_forward(*arguments)
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
    kind: str,
) -> tuple[Tensor, Tensor]:
    """Compute o [B, N, H, D] and the state [B * H, SIZE], which the gradient needs."""
    small = contiguous(key_position, first, second, cos, sin)
    with on_device_of(q):
        return PASSES[kind].forward(as_tokens(q), as_tokens(k), as_tokens(v), small, eps)


def run_backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    key_position: Tensor | None,
    first: Tensor,
    second: Tensor | None,
    cos: Tensor | None,
    sin: Tensor | None,
    eps: float,
    kind: str,
    do: Tensor,
    o: Tensor | None,
    state: Tensor,
    wanted: Sequence[bool],
) -> PassGradients:
    """Compute the gradients of the first six tensors (E15-E18); None where they are not wanted.

    The gradient of the key position is the sum over the batch of dk as it is stored, that is,
    rounded to q's dtype.
    """
    small = contiguous(key_position, first, second, cos, sin)
    wants = Wanted._make(wanted)
    with on_device_of(q):
        dq, dk, dv, d_first, d_second = PASSES[kind].backward(
            as_tokens(do),
            as_tokens(q),
            as_tokens(k),
            as_tokens(v),
            small,
            eps,
            o,
            state,
            wants,
        )
        d_position = None
        if wants.key_position and key_position is not None:
            d_position = dk.sum(0, dtype=key_position.dtype)
    return wanted_only((dq, dk, dv, d_position, d_first, d_second), wants)


class AttentionFunction(Function):
    """`attend` in eager mode."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        output = run_forward(*inputs)
        keep_for_backward(ctx, inputs, output)
        o, _ = output
        return o

    @staticmethod
    def backward(ctx: Any, do: Tensor) -> PassGradients:
        return attention_gradients(ctx, do)


def keep_for_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    """Save what `attention_gradients` reads."""
    *tensors, eps, kind = inputs
    o, state = output
    saved_o = o if PASSES[kind].READS_OUTPUT else None
    ctx.eps = eps
    ctx.kind = kind
    ctx.save_for_backward(*tensors, saved_o, state)


def attention_gradients(ctx: Any, do: Tensor) -> PassGradients:
    """Compute the gradients of all ten arguments; None for the last four."""
    check_gradient(do)
    *tensors, o, state = ctx.saved_tensors
    wanted = list(ctx.needs_input_grad[:6])
    arguments = (*tensors, ctx.eps, ctx.kind, do, o, state, wanted)
    if torch.is_grad_enabled() or is_observed(do):
        found = polarity_attention_gradient_operator(*arguments)
        gradients = wanted_only(found, wanted)
    else:
        gradients = run_backward(*arguments)
    return (*gradients, None, None, None, None)


SCHEMA = (
    'Tensor q, Tensor k, Tensor v, Tensor? key_position, Tensor first, Tensor? second, '
    'Tensor? cos, Tensor? sin, float eps, str kind'
)

polarity_attention_operator = torch.library.custom_op(
    'mmpola::polarity_attention',
    run_forward,
    mutates_args=(),
    schema=f'({SCHEMA}) -> (Tensor, Tensor)',
)


@torch.library.custom_op(
    'mmpola::polarity_attention_gradient',
    mutates_args=(),
    schema=f'({SCHEMA}, Tensor do, Tensor? o, Tensor state, bool[] wanted) -> Tensor[]',
)
def polarity_attention_gradient_operator(*arguments: Any) -> list[Tensor]:
    """Compute `run_backward`; an empty tensor where a gradient is not wanted."""
    return without_none(run_backward(*arguments), like=arguments[0])


@polarity_attention_operator.register_fake
def _(q: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    batch, _, heads, dim = q.shape
    size = PASSES[others[-1]].state_size(dim)
    state = torch.empty(batch * heads, size, device=q.device, dtype=torch.float32)
    return torch.empty(q.shape, device=q.device, dtype=q.dtype), state


@polarity_attention_gradient_operator.register_fake
def _(*arguments: Any) -> list[Tensor]:
    return empty_gradients(arguments[:6], wanted=arguments[-1])


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
