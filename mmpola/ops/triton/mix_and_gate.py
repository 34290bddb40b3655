"""`mmpola::mix_and_gate` and its gradient: the kernels of (E14, E19) under autograd.

As in attention.py, an autograd function launches the kernels in ordinary eager mode, and operators
of torch.library do where something must see the calls. Their first five tensors are
`MixAndGateInputs.tensors()`.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.utils.flop_counter import register_flop_formula

from mmpola.ops.inputs import MixAndGateInputs
from mmpola.ops.tracing import is_observed
from mmpola.ops.triton.attention import empty_gradients, no_second_gradient, present
from mmpola.ops.triton.mix_and_gate_kernels import launch_mix_and_gate, launch_taps_gradient
from mmpola.ops.triton.passes import Gradients, wanted_only


def mix(inputs: MixAndGateInputs) -> Tensor:
    """Compute y [B, N, C], differentiable, with as little time on the host as the surroundings allow."""
    rows, columns = inputs.grid
    arguments = *inputs.tensors(), rows, columns
    if is_observed(inputs.attended):
        return mix_and_gate_operator(*arguments)
    if torch.is_grad_enabled():
        return _MixAndGate.apply(*arguments)
    return _forward(*arguments)


def _forward(
    attended: Tensor,
    values: Tensor,
    gate: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    rows: int,
    columns: int,
) -> Tensor:
    attended, values, gate = (
        _with_unit_stride(attended),
        _with_unit_stride(values),
        _with_unit_stride(gate),
    )
    return launch_mix_and_gate(values, _taps(weight), bias, attended, gate, (rows, columns))[0]


def _gradients(*arguments: Any) -> Gradients:
    """Return the gradients of the tensors (E19); None where `wanted` is False."""
    attended, values, gate, weight, bias, rows, columns, dy, wanted = arguments
    attended, values, gate = (
        _with_unit_stride(attended),
        _with_unit_stride(values),
        _with_unit_stride(gate),
    )
    dy, taps, grid = _with_unit_stride(dy), _taps(weight), (rows, columns)
    _attended, want_values, want_gate, want_weight, want_bias = wanted
    dg = dv = d_weight = d_bias = None
    if want_gate:
        dg, do = launch_mix_and_gate(values, taps, bias, attended, dy, grid, gate=gate)
        assert do is not None
    else:
        do = torch.mul(dy, gate, out=torch.empty(gate.shape, device=dy.device, dtype=dy.dtype))
    # dv, dW and db are computed from do as stored: rounded, as the gradient of the operator's first
    # argument is.
    do_of_heads = do.view(values.shape)
    if want_values:
        dv = launch_mix_and_gate(do_of_heads, taps, None, None, None, grid, flip=True)[0].view(
            values.shape
        )
    if want_weight or want_bias:
        d_weight, d_bias = launch_taps_gradient(do, values, weight, bias, grid)
    return wanted_only((do_of_heads, dv, dg, d_weight, d_bias), wanted)


TENSORS = 'Tensor attended, Tensor values, Tensor gate, Tensor weight, Tensor? bias, SymInt rows, SymInt columns'

mix_and_gate_operator = torch.library.custom_op(
    'mmpola::mix_and_gate', _forward, mutates_args=(), schema=f'({TENSORS}) -> Tensor'
)


@torch.library.custom_op(
    'mmpola::mix_and_gate_gradient',
    mutates_args=(),
    schema=f'({TENSORS}, Tensor dy, bool[] wanted) -> Tensor[]',
)
def mix_and_gate_gradient_operator(*arguments: Any) -> list[Tensor]:
    """Compute `_gradients`; an empty tensor where they are not wanted."""
    return present(_gradients(*arguments), arguments[0])


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


def _backward(ctx: Any, dy: Tensor) -> Gradients:
    *wanted, _rows, _columns = ctx.needs_input_grad
    arguments = *ctx.saved_tensors, ctx.rows, ctx.columns, dy, wanted
    if torch.is_grad_enabled() or is_observed(dy):
        return *wanted_only(mix_and_gate_gradient_operator(*arguments), wanted), None, None
    return *_gradients(*arguments), None, None


class _MixAndGate(Function):
    """`mix` in eager mode."""

    forward = staticmethod(_forward)
    setup_context = staticmethod(_setup_context)
    backward = staticmethod(_backward)


mix_and_gate_operator.register_autograd(_backward, setup_context=_setup_context)
mix_and_gate_gradient_operator.register_autograd(no_second_gradient)


@register_flop_formula(torch.ops.mmpola.mix_and_gate)
def _(attended: Any, values: Any, gate: Any, weight: Any, *_: Any, **__: Any) -> int:
    """Count one convolution."""
    return _convolution_flops(gate, weight)


@register_flop_formula(torch.ops.mmpola.mix_and_gate_gradient)
def _(attended: Any, values: Any, gate: Any, weight: Any, *others: Any, **_: Any) -> int:
    """Count one convolution for each of dv, dg (which recomputes the forward one) and dW."""
    _attended, want_values, want_gate, want_weight, _bias = others[-1]
    return (want_values + want_gate + want_weight) * _convolution_flops(gate, weight)


def _convolution_flops(gate: Any, weight: Any) -> int:
    """Count the FLOPs of the depth-wise convolution; gate [B, N, C] and weight [D or C, 1, k, k] are shapes."""
    batch, tokens, channels = gate
    return int(2 * batch * tokens * channels * weight[2] * weight[3])
