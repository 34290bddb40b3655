"""`mmpola::mix_and_gate` and its gradient: the kernels of (E14, E19) under autograd.

As in attention.py, an autograd function launches the kernels in ordinary eager mode, and operators of
torch.library do where something must see the calls. The schema of each comes from its Python signature, whose first
five tensors are those of `MixAndGateInputs.tensors()`, in that order.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.utils.flop_counter import register_flop_formula

from mmpola.ops.inputs import MixAndGateInputs
from mmpola.ops.tracing import is_observed
from mmpola.ops.triton.attention import empty_gradients, no_second_gradient
from mmpola.ops.triton.mix_and_gate_kernels import (
    launch_mix_and_gate,
    launch_mix_and_gate_gradient,
    launch_taps_gradient,
)


def mix(inputs: MixAndGateInputs) -> Tensor:
    """Compute y [B, N, C], differentiable, with as little time on the host as the surroundings allow."""
    rows, columns = inputs.grid
    arguments = *inputs.tensors(), rows, columns
    if is_observed(inputs.attended):
        return mix_and_gate_operator(*arguments)
    if torch.is_grad_enabled():
        return _MixAndGate.apply(*arguments)
    return _forward(*arguments)


class _MixAndGate(Function):
    """`mix` in eager mode."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:
        ctx.save_for_backward(*arguments[:5])
        ctx.grid = arguments[5:]
        return _forward(*arguments)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        wanted = ctx.needs_input_grad[:5]
        if torch.is_grad_enabled() or is_observed(dy):
            operator = mix_and_gate_gradient_operator(*ctx.saved_tensors, *ctx.grid, dy, wanted)
            return *(d if want else None for d, want in zip(operator, wanted, strict=True)), None, None
        attended, values, gate, weight, bias = ctx.saved_tensors
        return *_gradients(attended, values, gate, weight, bias, ctx.grid, dy, wanted), None, None


def _forward(
    attended: Tensor, values: Tensor, gate: Tensor, weight: Tensor, bias: Tensor | None, rows: int, columns: int
) -> Tensor:
    attended, values, gate = _with_unit_stride(attended), _with_unit_stride(values), _with_unit_stride(gate)
    return launch_mix_and_gate(values, _taps(weight), bias, attended, gate, (rows, columns))


def _gradients(
    attended: Tensor,
    values: Tensor,
    gate: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    grid: tuple[int, int],
    dy: Tensor,
    wanted: Sequence[bool],
) -> tuple[Tensor | None, ...]:
    """Return the gradients of the tensors (E19); None where `wanted` is False."""
    attended, values, gate = _with_unit_stride(attended), _with_unit_stride(values), _with_unit_stride(gate)
    dy, taps = _with_unit_stride(dy), _taps(weight)
    want_do, want_values, want_gate, want_weight, want_bias = wanted
    # dv is computed from do as stored, so do is needed for dv too and is rounded as the operator's output would be.
    needed = want_do or want_values, want_gate
    do, dg = launch_mix_and_gate_gradient(dy, attended, values, gate, taps, bias, grid, needed)
    dv = d_weight = d_bias = None
    if want_values and do is not None:
        dv = launch_mix_and_gate(do, taps, None, None, None, grid, flip=True).view(do.shape)
    if want_weight or want_bias:
        d_weight, d_bias = launch_taps_gradient(dy, values, gate, weight, bias, grid)
    found = do, dv, dg, d_weight, d_bias
    return tuple(d if want else None for d, want in zip(found, wanted, strict=True))


@torch.library.custom_op('mmpola::mix_and_gate', mutates_args=())
def mix_and_gate_operator(
    attended: Tensor, values: Tensor, gate: Tensor, weight: Tensor, bias: Tensor | None, rows: int, columns: int
) -> Tensor:
    """Compute y [B, N, C] (E14) on a grid of `rows` x `columns` tokens."""
    return _forward(attended, values, gate, weight, bias, rows, columns)


@torch.library.custom_op('mmpola::mix_and_gate_gradient', mutates_args=())
def mix_and_gate_gradient_operator(
    attended: Tensor,
    values: Tensor,
    gate: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    rows: int,
    columns: int,
    dy: Tensor,
    wanted: list[bool],
) -> list[Tensor]:
    """Compute the gradients of the tensors (E19); an empty tensor where `wanted` is False."""
    found = _gradients(attended, values, gate, weight, bias, (rows, columns), dy, wanted)
    return [dy.new_empty(0) if d is None else d for d in found]


def _with_unit_stride(x: Tensor) -> Tensor:
    """Return x, or a contiguous copy if its last dimension has no unit stride."""
    return x if x.stride(-1) == 1 else x.contiguous()


def _taps(weight: Tensor) -> Tensor:
    """Return the weight [D or C, 1, k, k] as [k, k, D or C] contiguous: channels adjacent, as in the tokens."""
    return weight.squeeze(1).permute(1, 2, 0).contiguous()


@mix_and_gate_operator.register_fake
def _(attended: Tensor, values: Tensor, gate: Tensor, *_: Any) -> Tensor:
    return torch.empty(gate.shape, device=attended.device, dtype=attended.dtype)


@mix_and_gate_gradient_operator.register_fake
def _(*arguments: Any) -> list[Tensor]:
    *tensors, _rows, _columns, dy, wanted = arguments
    return empty_gradients(tensors, wanted, dy)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, ctx.rows, ctx.columns = inputs
    ctx.save_for_backward(*tensors)


def _backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    *wanted, _rows, _columns = ctx.needs_input_grad
    found = mix_and_gate_gradient_operator(*ctx.saved_tensors, ctx.rows, ctx.columns, dy, wanted)
    return *(d if want else None for d, want in zip(found, wanted, strict=True)), None, None


mix_and_gate_operator.register_autograd(_backward, setup_context=_setup_context)
mix_and_gate_gradient_operator.register_autograd(no_second_gradient)


@register_flop_formula(torch.ops.mmpola.mix_and_gate)
def _(attended: Any, values: Any, gate: Any, weight: Any, *_: Any, **__: Any) -> int:
    """Count one convolution."""
    return _convolution_flops(gate, weight)


@register_flop_formula(torch.ops.mmpola.mix_and_gate_gradient)
def _(
    attended: Any,
    values: Any,
    gate: Any,
    weight: Any,
    bias: Any,
    rows: int,
    columns: int,
    dy: Any,
    wanted: list[bool],
    **_: Any,
) -> int:
    """Count one convolution for each of dv, dg (which recomputes the forward one) and dW."""
    _attended, want_values, want_gate, want_weight, _bias = wanted
    return (want_values + want_gate + want_weight) * _convolution_flops(gate, weight)


def _convolution_flops(gate: Any, weight: Any) -> int:
    """Count the FLOPs of the depth-wise convolution; gate [B, N, C] and weight [D or C, 1, k, k] are shapes."""
    batch, tokens, channels = gate
    return int(2 * batch * tokens * channels * weight[2] * weight[3])
