"""`mmpola::mix_and_gate` and its gradient: the kernels of (E14, E19), launched and under autograd.

As in attention.py, an autograd function calls `run_forward` and `run_backward` in ordinary eager
mode, and operators of torch.library do where something must see the calls. The seven arguments of
each are `MixAndGateInputs.tensors()` and the rows and columns of the grid.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.utils.flop_counter import register_flop_formula

from mmpola.ops.inputs import MixAndGateInputs
from mmpola.ops.tracing import is_observed
from mmpola.ops.triton.launch import (
    TAPS_WAVES,
    ceil_div,
    on_device_of,
    plan_tiles,
    processors_of,
    token_strides,
)
from mmpola.ops.triton.mix_and_gate_kernels import mix_and_gate_kernel, mix_and_gate_taps_kernel
from mmpola.ops.triton.operator_gradients import (
    check_gradient,
    empty_gradients,
    no_second_gradient,
    wanted_only,
    without_none,
)
from mmpola.ops.triton.passes import PassGradients


def mix(inputs: MixAndGateInputs) -> Tensor:
    """Compute y [B, N, C], differentiable, with as little time on the host as possible."""
    rows, columns = inputs.grid
    arguments = (*inputs.tensors(), rows, columns)
    if is_observed(inputs.attended):
        return mix_and_gate_operator(*arguments)
    if torch.is_grad_enabled():
        return MixAndGateFunction.apply(*arguments)
    return run_forward(*arguments)


def run_forward(
    attended: Tensor,
    values: Tensor,
    gate: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    rows: int,
    columns: int,
) -> Tensor:
    """Compute y [B, N, C] (E14)."""
    attended = _with_unit_stride(attended)
    values = _with_unit_stride(values)
    gate = _with_unit_stride(gate)
    y, _ = launch_mix_and_gate(values, _taps(weight), bias, attended, gate, (rows, columns))
    return y


def run_backward(
    attended: Tensor,
    values: Tensor,
    gate: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    rows: int,
    columns: int,
    dy: Tensor,
    wanted: Sequence[bool],
) -> PassGradients:
    """Compute the gradients of the five tensors (E19); None where they are not wanted."""
    attended = _with_unit_stride(attended)
    values = _with_unit_stride(values)
    gate = _with_unit_stride(gate)
    dy = _with_unit_stride(dy)
    taps = _taps(weight)
    grid = (rows, columns)
    _, wants_values, wants_gate, wants_weight, wants_bias = wanted
    dg = None
    if wants_gate:
        dg, do = launch_mix_and_gate(values, taps, bias, attended, dy, grid, gate=gate)
        assert do is not None
    else:
        do = torch.mul(dy, gate, out=torch.empty(gate.shape, device=dy.device, dtype=dy.dtype))
    # dv, dW and db are computed from do as stored: rounded, as the gradient of `attended` is.
    d_attended = do.view(values.shape)
    d_values = None
    if wants_values:
        dv, _ = launch_mix_and_gate(d_attended, taps, None, None, None, grid, flip=True)
        d_values = dv.view(values.shape)
    d_weight = None
    d_bias = None
    if wants_weight or wants_bias:
        d_weight, d_bias = launch_taps_gradient(do, values, weight, bias, grid)
    return wanted_only((d_attended, d_values, dg, d_weight, d_bias), wanted)


class MixAndGateFunction(Function):
    """`mix` in eager mode."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        y = run_forward(*inputs)
        keep_for_backward(ctx, inputs, y)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> PassGradients:
        return mixing_gradients(ctx, dy)


def keep_for_backward(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    """Save what `mixing_gradients` reads."""
    *tensors, rows, columns = inputs
    ctx.rows = rows
    ctx.columns = columns
    ctx.save_for_backward(*tensors)


def mixing_gradients(ctx: Any, dy: Tensor) -> PassGradients:
    """Compute the gradients of all seven arguments; that of the grid is None."""
    check_gradient(dy)
    wanted = list(ctx.needs_input_grad[:5])
    arguments = (*ctx.saved_tensors, ctx.rows, ctx.columns, dy, wanted)
    if torch.is_grad_enabled() or is_observed(dy):
        found = mix_and_gate_gradient_operator(*arguments)
        gradients = wanted_only(found, wanted)
    else:
        gradients = run_backward(*arguments)
    return (*gradients, None, None)


SCHEMA = (
    'Tensor attended, Tensor values, Tensor gate, Tensor weight, Tensor? bias, '
    'SymInt rows, SymInt columns'
)

mix_and_gate_operator = torch.library.custom_op(
    'mmpola::mix_and_gate', run_forward, mutates_args=(), schema=f'({SCHEMA}) -> Tensor'
)


@torch.library.custom_op(
    'mmpola::mix_and_gate_gradient',
    mutates_args=(),
    schema=f'({SCHEMA}, Tensor dy, bool[] wanted) -> Tensor[]',
)
def mix_and_gate_gradient_operator(*arguments: Any) -> list[Tensor]:
    """Compute `run_backward`; an empty tensor where a gradient is not wanted."""
    return without_none(run_backward(*arguments), like=arguments[0])


def launch_mix_and_gate(
    values: Tensor,
    taps: Tensor,
    bias: Tensor | None,
    attended: Tensor | None,
    factor: Tensor | None,
    grid: tuple[int, int],
    *,
    gate: Tensor | None = None,
    flip: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Compute (o + DWC(v)) * factor and factor * gate, both [B, N, C], without what is None.

    Args:
        values: v [B, N, H, D], unit stride in D like `attended`.
        taps: the convolution kernel [KR, KW, D or C], contiguous.
        attended: o [B, N, H, D] or None.
        factor: [B, N, C], unit stride in C like `gate`, or None.
        flip: use the transpose of DWC.
    """
    batch, tokens, heads, dim = values.shape
    height, width, channels = taps.shape
    tiles, blocks, options = plan_tiles(
        'mix_and_gate', values.shape, values.dtype, grid, (height, width)
    )
    output = torch.empty(batch, tokens, heads * dim, device=values.device, dtype=values.dtype)
    do = None
    if gate is not None:
        do = torch.empty_like(output)
    attended_strides = (0, 0, 0)
    if attended is not None:
        attended_strides = token_strides(attended)
    factor_strides = (0, 0)
    if factor is not None:
        factor_strides = (factor.stride(0), factor.stride(1))
    gate_strides = (0, 0)
    if gate is not None:
        gate_strides = (gate.stride(0), gate.stride(1))
    taps_head_stride = 0  # the heads share the taps
    if channels > dim:
        taps_head_stride = dim
    rows, columns = grid
    if tiles * blocks > 0:
        with on_device_of(values):
            mix_and_gate_kernel[(tiles * blocks,)](
                values,
                taps,
                bias,
                attended,
                factor,
                output,
                gate,
                do,
                *token_strides(values),
                taps.stride(1),
                taps_head_stride,
                *attended_strides,
                *factor_strides,
                *gate_strides,
                heads,
                rows,
                columns,
                FLIP=flip,
                **options,
            )
    return output, do


def launch_taps_gradient(
    do: Tensor, values: Tensor, weight: Tensor, bias: Tensor | None, grid: tuple[int, int]
) -> tuple[Tensor, Tensor | None]:
    """Compute dW and db (E19) of do [B, N, C], shaped like weight [D or C, 1, KR, KW] and bias."""
    _, _, heads, dim = values.shape
    channels, _, height, width = weight.shape
    rows, columns = grid
    tiles, blocks, options = plan_tiles(
        'mix_and_gate_taps', values.shape, values.dtype, grid, (height, width)
    )
    # A program per channel block, column of the window and run of tiles
    slots = TAPS_WAVES * processors_of(values.device)
    most_runs = max(1, slots // max(1, blocks * width))
    tiles_per_run = max(1, ceil_div(tiles, most_runs))
    runs = ceil_div(tiles, tiles_per_run)
    parts = do.new_empty((runs, height * width + 1, heads, dim), dtype=torch.float32)
    if runs > 0:
        with on_device_of(values):
            mix_and_gate_taps_kernel[blocks, width, runs](
                do,
                values,
                parts,
                do.stride(0),
                do.stride(1),
                *token_strides(values),
                heads,
                rows,
                columns,
                tiles,
                tiles_per_run,
                **options,
            )
    if channels == dim:  # shared by all heads
        total = parts.sum((0, 2))
    else:
        total = parts.sum(0)
    total = total.view(-1, channels)  # [KR * KW + 1, D or C], the bias last
    d_weight = weight.new_empty(channels, height * width).copy_(total[:-1].t()).view(weight.shape)
    d_bias = None
    if bias is not None:
        d_bias = bias.new_empty(channels).copy_(total[-1])
    return d_weight, d_bias


def _with_unit_stride(x: Tensor) -> Tensor:
    """Return x, or a contiguous copy if its last dimension has no unit stride."""
    if x.stride(-1) == 1:
        return x
    return x.contiguous()


def _taps(weight: Tensor) -> Tensor:
    """Return the weight [D or C, 1, k, k] as [k, k, D or C]: channels adjacent, as in tokens."""
    return weight.squeeze(1).permute(1, 2, 0).contiguous()


@mix_and_gate_operator.register_fake
def _(attended: Tensor, values: Tensor, gate: Tensor, *others: Any) -> Tensor:
    return torch.empty(gate.shape, device=attended.device, dtype=attended.dtype)


@mix_and_gate_gradient_operator.register_fake
def _(*arguments: Any) -> list[Tensor]:
    return empty_gradients(arguments[:5], wanted=arguments[-1])


mix_and_gate_operator.register_autograd(mixing_gradients, setup_context=keep_for_backward)
mix_and_gate_gradient_operator.register_autograd(no_second_gradient)


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
    """Count the FLOPs of the convolution; gate [B, N, C], weight [D or C, 1, k, k] are shapes."""
    batch, tokens, channels = gate
    return int(2 * batch * tokens * channels * weight[2] * weight[3])
