"""Both operators under autograd: the passes of passes.py and mix_and_gate.py.

In ordinary eager mode an autograd function calls the passes, which saves half of the host's time
per call in a training step. Where something must see the calls (torch.compile, FLOP counters,
torch.func), operators of torch.library call them: `mmpola::polarity_attention`,
`mmpola::mix_and_gate` and their gradients. Operators take and return tensors only, neither None nor
shared memory: a gradient that is not wanted is an empty tensor inside an operator, None outside.

The ten arguments of attention are q, k, v, key_position, the two parameters of the feature map,
cos, sin, eps and the map's `KIND`. The seven of `mix_and_gate` are `MixAndGateInputs.tensors()` and
the rows and columns of the grid.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.utils.flop_counter import register_flop_formula

from mmpola.ops.inputs import AttentionInputs, MixAndGateInputs
from mmpola.ops.tracing import is_batched, is_observed
from mmpola.ops.triton import mix_and_gate, passes

Gradients = tuple[Tensor | None, ...]


def on_device_of(x: Tensor) -> AbstractContextManager[Any]:
    """Make x's device the current one, on which Triton launches."""
    if x.is_cuda and x.device.index != torch.cuda.current_device():
        return torch.cuda.device(x.device)
    return nullcontext()


# ---- polarity_attention


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
        output, _ = attention_forward(*arguments)
    return output


def attention_forward(*arguments: Any) -> tuple[Tensor, Tensor]:
    """Compute o [B, N, H, D] and the state [B * H, SIZE], which the gradient needs."""
    with on_device_of(arguments[0]):
        return passes.forward(*arguments)


def attention_backward(*arguments: Any) -> Gradients:
    """Compute the gradients of the first six arguments."""
    with on_device_of(arguments[0]):
        return passes.backward(*arguments)


class AttentionFunction(Function):
    """`attend` in eager mode."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        output = attention_forward(*inputs)
        keep_for_attention_gradients(ctx, inputs, output)
        o, _ = output
        return o

    @staticmethod
    def backward(ctx: Any, do: Tensor) -> Gradients:
        return attention_gradients(ctx, do)


def keep_for_attention_gradients(
    ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]
) -> None:
    """Save what `attention_gradients` reads."""
    *tensors, eps, kind = inputs
    _, state = output
    ctx.eps = eps
    ctx.kind = kind
    ctx.save_for_backward(*tensors, state)


def attention_gradients(ctx: Any, do: Tensor) -> Gradients:
    """Compute the gradients of all ten arguments; None for the last four."""
    *tensors, state = ctx.saved_tensors
    wanted = list(ctx.needs_input_grad[:6])
    arguments = (*tensors, ctx.eps, ctx.kind, do, state, wanted)
    run = choose_backward(attention_backward, polarity_attention_gradient_operator, do)
    return (*wanted_only(run(*arguments), wanted), None, None, None, None)


# ---- mix_and_gate


def mix(inputs: MixAndGateInputs) -> Tensor:
    """Compute y [B, N, C], differentiable, with as little time on the host as possible."""
    rows, columns = inputs.grid
    arguments = (*inputs.tensors(), rows, columns)
    if is_observed(inputs.attended):
        return mix_and_gate_operator(*arguments)
    if torch.is_grad_enabled():
        return MixAndGateFunction.apply(*arguments)
    return mixing_forward(*arguments)


def mixing_forward(*arguments: Any) -> Tensor:
    """Compute y [B, N, C]."""
    with on_device_of(arguments[0]):
        y, _ = mix_and_gate.forward(*arguments)
    return y


def mixing_backward(*arguments: Any) -> Gradients:
    """Compute the gradients of the first five arguments."""
    with on_device_of(arguments[0]):
        return mix_and_gate.backward(*arguments)


class MixAndGateFunction(Function):
    """`mix` in eager mode."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        with on_device_of(inputs[0]):
            y, taps = mix_and_gate.forward(*inputs)
        keep_for_mixing_gradients(ctx, inputs, y, taps)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Gradients:
        return mixing_gradients(ctx, dy)


def keep_for_mixing_gradients(
    ctx: Any, inputs: tuple[Any, ...], output: Tensor, taps: Tensor | None = None
) -> None:
    """Save what `mixing_gradients` reads."""
    *tensors, rows, columns = inputs
    ctx.rows = rows
    ctx.columns = columns
    ctx.save_for_backward(*tensors, taps)


def mixing_gradients(ctx: Any, dy: Tensor) -> Gradients:
    """Compute the gradients of all seven arguments; that of the grid is None."""
    *tensors, taps = ctx.saved_tensors
    wanted = list(ctx.needs_input_grad[:5])
    arguments = (*tensors, ctx.rows, ctx.columns, dy, taps, wanted)
    run = choose_backward(mixing_backward, mix_and_gate_gradient_operator, dy)
    return (*wanted_only(run(*arguments), wanted), None, None)


# ---- What the gradients of both share


def choose_backward(
    function: Callable[..., Any], operator: Callable[..., Any], incoming: Tensor
) -> Callable[..., Any]:
    """Return the operator if something must see the call, else the function that it runs.

    Raises:
        RuntimeError: the incoming gradient is batched; the kernels take one at a time.
    """
    if is_batched(incoming):
        raise RuntimeError("backend 'triton' has no batched gradients: choose backend='torch'")
    if torch.is_grad_enabled() or is_observed(incoming):
        return operator
    return function


def wanted_only(found: Sequence[Tensor | None], wanted: Sequence[bool]) -> Gradients:
    """Replace gradients that are not wanted by None."""
    gradients = []
    for gradient, is_wanted in zip(found, wanted, strict=True):
        gradients.append(gradient if is_wanted else None)
    return tuple(gradients)


def refuse_second_derivative(ctx: Any, *grads: Any) -> None:
    """Refuse the derivative of a gradient operator."""
    raise RuntimeError("backend 'triton' has no second derivative: choose backend='torch'")


def make_gradient_operator(
    name: str, schema: str, function: Callable[..., Gradients], tensors: int
) -> Callable[..., list[Tensor]]:
    """Make an operator of a function that computes the gradients of its first `tensors` arguments.

    The last argument says which are wanted; the operator returns an empty tensor for the others.
    """

    def compute(*arguments: Any) -> list[Tensor]:
        gradients = []
        for gradient in wanted_only(function(*arguments), arguments[-1]):
            gradients.append(arguments[0].new_empty(0) if gradient is None else gradient)
        return gradients

    def allocate(*arguments: Any) -> list[Tensor]:
        gradients = []
        for x, is_wanted in zip(arguments[:tensors], arguments[-1], strict=True):
            if is_wanted and x is not None:
                gradients.append(torch.empty(x.shape, device=x.device, dtype=x.dtype))
            else:
                gradients.append(arguments[0].new_empty(0))
        return gradients

    operator = torch.library.custom_op(name, compute, mutates_args=(), schema=schema)
    operator.register_fake(allocate)
    operator.register_autograd(refuse_second_derivative)
    return operator


# ---- Operators of torch.library

ATTENTION_ARGUMENTS = (
    'Tensor q, Tensor k, Tensor v, Tensor? key_position, Tensor exponent_or_same, '
    'Tensor? scale_or_opposite, Tensor? cos, Tensor? sin, float eps, str kind'
)
polarity_attention_operator = torch.library.custom_op(
    'mmpola::polarity_attention',
    attention_forward,
    mutates_args=(),
    schema=f'({ATTENTION_ARGUMENTS}) -> (Tensor, Tensor)',
)
polarity_attention_gradient_operator = make_gradient_operator(
    'mmpola::polarity_attention_gradient',
    f'({ATTENTION_ARGUMENTS}, Tensor do, Tensor state, bool[] wanted) -> Tensor[]',
    attention_backward,
    tensors=6,
)


@polarity_attention_operator.register_fake
def _(q: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    batch, _, heads, dim = q.shape
    size = passes.state_size(others[-1], dim)
    state = torch.empty(batch * heads, size, device=q.device, dtype=torch.float32)
    return torch.empty(q.shape, device=q.device, dtype=q.dtype), state


def _setup_attention(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    _, state = output
    ctx.mark_non_differentiable(state)
    ctx.set_materialize_grads(False)  # else the state's gradient would be a tensor of zeros
    keep_for_attention_gradients(ctx, inputs, output)


def _attention_gradients(ctx: Any, do: Tensor, d_state: None) -> Gradients:
    return attention_gradients(ctx, do)


polarity_attention_operator.register_autograd(_attention_gradients, setup_context=_setup_attention)

MIXING_ARGUMENTS = (
    'Tensor attended, Tensor values, Tensor gate, Tensor weight, Tensor? bias, '
    'SymInt rows, SymInt columns'
)
mix_and_gate_operator = torch.library.custom_op(
    'mmpola::mix_and_gate',
    mixing_forward,
    mutates_args=(),
    schema=f'({MIXING_ARGUMENTS}) -> Tensor',
)
mix_and_gate_gradient_operator = make_gradient_operator(
    'mmpola::mix_and_gate_gradient',
    f'({MIXING_ARGUMENTS}, Tensor dy, Tensor? taps, bool[] wanted) -> Tensor[]',
    mixing_backward,
    tensors=5,
)


@mix_and_gate_operator.register_fake
def _(attended: Tensor, values: Tensor, gate: Tensor, *others: Any) -> Tensor:
    return torch.empty(gate.shape, device=attended.device, dtype=attended.dtype)


mix_and_gate_operator.register_autograd(mixing_gradients, setup_context=keep_for_mixing_gradients)


# ---- FLOPs, for torch.utils.flop_counter, which passes shapes instead of tensors


@register_flop_formula(torch.ops.mmpola.polarity_attention)
def _(q: Any, k: Any, *others: Any, **options: Any) -> int:
    """Count two products with a [2D, D] matrix per token (E2, E3)."""
    return 2 * _product_flops(q, k)


@register_flop_formula(torch.ops.mmpola.polarity_attention_gradient)
def _(q: Any, k: Any, *others: Any, **options: Any) -> int:
    """Count four products with a [2D, D] matrix per token (E16, E17)."""
    return 4 * _product_flops(q, k)


def _product_flops(q: Any, k: Any) -> int:
    """Count the FLOPs of a product [D] x [D, D] for every query and key."""
    batch, queries, heads, dim = q
    return 2 * batch * heads * (queries + k[1]) * dim * dim


@register_flop_formula(torch.ops.mmpola.mix_and_gate)
def _(attended: Any, values: Any, gate: Any, weight: Any, *others: Any, **options: Any) -> int:
    """Count one convolution."""
    return _convolution_flops(gate, weight)


@register_flop_formula(torch.ops.mmpola.mix_and_gate_gradient)
def _(attended: Any, values: Any, gate: Any, weight: Any, *others: Any, **options: Any) -> int:
    """Count one convolution for each of dv, dg (which recomputes the forward one) and dW."""
    _, wants_values, wants_gate, wants_weight, _ = others[-1]
    return (wants_values + wants_gate + wants_weight) * _convolution_flops(gate, weight)


def _convolution_flops(gate: Any, weight: Any) -> int:
    """Count the FLOPs of the convolution of a gate [B, N, C] with a weight [D or C, 1, k, k]."""
    batch, tokens, channels = gate
    return int(2 * batch * tokens * channels * weight[2] * weight[3])
