"""`mmpola::mix_and_gate` and its gradient: the kernels of (E14, E19) as torch.library operators.

The schema of each comes from its Python signature, whose first five tensors are those of `MixAndGateTensors`, in that
order.
"""

from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from mmpola.ops.inputs import MixAndGateTensors
from mmpola.ops.triton.mix_and_gate_kernels import launch_mix_and_gate, launch_mix_and_gate_gradient
from mmpola.ops.triton.polarity_attention import empty_gradients, no_second_gradient


@torch.library.custom_op('mmpola::mix_and_gate', mutates_args=())
def mix_and_gate_operator(
    attended: Tensor, values: Tensor, gate: Tensor, weight: Tensor, bias: Tensor | None, rows: int, columns: int
) -> Tensor:
    """Compute y [B, N, C] (E14) on a grid of `rows` x `columns` tokens."""
    attended, values, gate = _with_unit_stride(attended), _with_unit_stride(values), _with_unit_stride(gate)
    return launch_mix_and_gate(values, _taps(weight), bias, attended, gate, (rows, columns))


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
    """Compute the gradients of `MixAndGateTensors` (E19); an empty tensor where `wanted` is False."""
    attended, values, gate = _with_unit_stride(attended), _with_unit_stride(values), _with_unit_stride(gate)
    dy, taps, grid = _with_unit_stride(dy), _taps(weight), (rows, columns)
    wants = dict(zip(MixAndGateTensors._fields, wanted, strict=True))
    # dv is computed from do as stored, so do is needed for dv too and is rounded as the operator's output would be.
    needed = wants['attended'] or wants['values'], wants['gate'], wants['weight'] or wants['bias']
    do, dg, d_kernel = launch_mix_and_gate_gradient(dy, attended, values, gate, taps, bias, grid, needed)
    found: dict[str, Tensor | None] = {'attended': do, 'gate': dg}
    if wants['values'] and do is not None:
        found['values'] = launch_mix_and_gate(do, taps, None, None, None, grid, flip=True).view(do.shape)
    if d_kernel is not None:
        d_taps, d_bias = d_kernel[:-1], d_kernel[-1]
        found['weight'] = d_taps.T.contiguous().view(weight.shape).to(weight.dtype, copy=True)
        found['bias'] = None if bias is None else d_bias.to(bias.dtype, copy=True)
    return [dy.new_empty(0) if not want or (d := found[name]) is None else d for name, want in wants.items()]


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
def _(
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
    return empty_gradients(MixAndGateTensors(attended, values, gate, weight, bias), wanted, dy)


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
    wants = dict(zip(MixAndGateTensors._fields, wanted, strict=True))
    return (wants['values'] + wants['gate'] + wants['weight']) * _convolution_flops(gate, weight)


def _convolution_flops(gate: Any, weight: Any) -> int:
    """Count the FLOPs of the depth-wise convolution; gate [B, N, C] and weight [D or C, 1, k, k] are shapes."""
    batch, tokens, channels = gate
    return int(2 * batch * tokens * channels * weight[2] * weight[3])
