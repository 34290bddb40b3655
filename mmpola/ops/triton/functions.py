"""Both operators under autograd: the passes of passes.py and mix_and_gate.py.

In ordinary eager mode an autograd function calls the passes, which saves half of the host's time
per call in a training step. Where something must see the calls (torch.compile, FLOP counters,
torch.func), operators of torch.library call them: `mmpola::polarity_attention`,
`mmpola::mix_and_gate` and their gradients. Operators take and return tensors only, neither None nor
shared memory: a gradient that is not wanted is an empty tensor inside an operator, None outside.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.utils.flop_counter import register_flop_formula

from mmpola.ops.inputs import AttentionInputs, MixAndGateInputs
from mmpola.ops.tracing import is_batched, is_observed
from mmpola.ops.triton import mix_and_gate, passes

Gradients = tuple[Tensor | None, ...]


class FusedOperator:
    """A forward pass with its gradients, as an autograd function and as operators of torch.library.

    Args:
        name: the operators are `mmpola::NAME` and `mmpola::NAME_gradient`.
        schema: of the forward pass's arguments: tensors first, then constants.
        forward: returns the result, and a tensor without a gradient that the backward pass needs.
        backward: takes the arguments of `forward`, the result's gradient, that tensor, and which of
            the gradients are wanted; it returns all gradients, None for some not wanted.
        allocate: returns uninitialised tensors with the shapes and dtypes that `forward` returns.
        tensors: the number of arguments that are tensors.
        gradients: the number of them, the first ones, that have gradients.
    """

    def __init__(
        self,
        name: str,
        schema: str,
        forward: Callable[..., tuple[Tensor, Tensor]],
        backward: Callable[..., Gradients],
        allocate: Callable[..., tuple[Tensor, Tensor]],
        tensors: int,
        gradients: int,
    ) -> None:
        self.forward = on_its_device(forward)
        self.backward = on_its_device(backward)
        self.tensors = tensors
        self.gradients = gradients
        self.operator = torch.library.custom_op(
            f'mmpola::{name}',
            self.forward,
            mutates_args=(),
            schema=f'({schema}) -> (Tensor, Tensor)',
        )
        self.operator.register_fake(allocate)
        self.operator.register_autograd(self.compute_gradients, setup_context=self.set_up)
        self.gradient_operator = torch.library.custom_op(
            f'mmpola::{name}_gradient',
            self.backward_without_none,
            mutates_args=(),
            schema=f'({schema}, Tensor gradient, Tensor saved, bool[] wanted) -> Tensor[]',
        )
        self.gradient_operator.register_fake(self.allocate_gradients)
        self.gradient_operator.register_autograd(refuse_second_derivative)

    def __call__(self, *arguments: Any) -> Tensor:
        """Compute the result, differentiable, with as little time on the host as possible."""
        if is_observed(arguments[0]):
            result, _ = self.operator(*arguments)
        elif torch.is_grad_enabled():
            result = EagerFunction.apply(*arguments, self)
        else:
            result, _ = self.forward(*arguments)
        return result

    def save(self, ctx: Any, arguments: Sequence[Any], saved: Tensor) -> None:
        """Save what `compute_gradients` reads."""
        ctx.constants = arguments[self.tensors :]
        ctx.save_for_backward(*arguments[: self.tensors], saved)

    def set_up(self, ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        """Do what `EagerFunction.forward` does, after `operator` has run."""
        _, saved = output
        ctx.mark_non_differentiable(saved)
        ctx.set_materialize_grads(False)  # else it would have a gradient, a tensor of zeros
        self.save(ctx, inputs, saved)

    def compute_gradients(self, ctx: Any, gradient: Tensor, _: None = None) -> Gradients:
        """Compute the gradients of all arguments; None for those that have none, or none wanted.

        Raises:
            RuntimeError: the incoming gradient is batched; the kernels take one at a time.
        """
        if is_batched(gradient):
            raise RuntimeError("backend 'triton' has no batched gradients: choose backend='torch'")
        wanted = list(ctx.needs_input_grad[: self.gradients])
        *tensors, saved = ctx.saved_tensors
        arguments = (*tensors, *ctx.constants, gradient, saved, wanted)
        if torch.is_grad_enabled() or is_observed(gradient):
            gradients = self.gradient_operator(*arguments)
        else:
            gradients = self.backward(*arguments)
        without_gradient = self.tensors - self.gradients + len(ctx.constants)
        return (*wanted_only(gradients, wanted), *[None] * without_gradient)

    def backward_without_none(self, *arguments: Any) -> list[Tensor]:
        """Compute the gradients; an empty tensor stands for each that is not wanted."""
        gradients = []
        for gradient in wanted_only(self.backward(*arguments), arguments[-1]):
            gradients.append(arguments[0].new_empty(0) if gradient is None else gradient)
        return gradients

    def allocate_gradients(self, *arguments: Any) -> list[Tensor]:
        """Allocate what `backward_without_none` returns."""
        gradients = []
        for x, is_wanted in zip(arguments[: self.gradients], arguments[-1], strict=True):
            if is_wanted and x is not None:
                gradients.append(torch.empty(x.shape, device=x.device, dtype=x.dtype))
            else:
                gradients.append(arguments[0].new_empty(0))
        return gradients


class EagerFunction(Function):
    """A `FusedOperator`, the last argument, in eager mode."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        *arguments, ctx.operator = inputs
        result, saved = ctx.operator.forward(*arguments)
        ctx.operator.save(ctx, arguments, saved)
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Gradients:
        return (*ctx.operator.compute_gradients(ctx, gradient), None)


def on_its_device(run: Callable[..., Any]) -> Callable[..., Any]:
    """Return `run` with its first argument's device made current, on which Triton launches."""

    def run_there(*arguments: Any) -> Any:
        x = arguments[0]
        if x.is_cuda and x.device.index != torch.cuda.current_device():
            with torch.cuda.device(x.device):
                return run(*arguments)
        return run(*arguments)

    return run_there


def wanted_only(gradients: Sequence[Tensor | None], wanted: Sequence[bool]) -> Gradients:
    """Replace gradients that are not wanted by None."""
    kept = []
    for gradient, is_wanted in zip(gradients, wanted, strict=True):
        kept.append(gradient if is_wanted else None)
    return tuple(kept)


def refuse_second_derivative(ctx: Any, *grads: Any) -> None:
    """Refuse the derivative of a gradient operator."""
    raise RuntimeError("backend 'triton' has no second derivative: choose backend='torch'")


# ---- The two operators


def attend(inputs: AttentionInputs) -> Tensor:
    """Compute o [B, N, H, D]."""
    cos = None
    sin = None
    if inputs.rotary is not None:
        cos, sin = inputs.rotary
    return attention(*inputs.tensors(), cos, sin, inputs.eps, inputs.feature_map.KIND)


def mix(inputs: MixAndGateInputs) -> Tensor:
    """Compute y [B, N, C]."""
    rows, columns = inputs.grid
    return mixing(*inputs.tensors(), rows, columns)


attention = FusedOperator(
    'polarity_attention',
    'Tensor q, Tensor k, Tensor v, Tensor? key_position, Tensor exponent_or_same, '
    'Tensor? scale_or_opposite, Tensor? cos, Tensor? sin, float eps, str kind',
    passes.forward,
    passes.backward,
    passes.allocate,
    tensors=8,
    gradients=6,
)
mixing = FusedOperator(
    'mix_and_gate',
    'Tensor attended, Tensor values, Tensor gate, Tensor weight, Tensor? bias, '
    'SymInt rows, SymInt columns',
    mix_and_gate.forward,
    mix_and_gate.backward,
    mix_and_gate.allocate,
    tensors=5,
    gradients=5,
)


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
