"""The epilogue's kernels as two operators of torch.library: what autograd and torch.compile see of them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from mmpola.ops.epilogue_inputs import EpilogueInputs
from mmpola.ops.triton.epilogue import mix, mix_gradient
from mmpola.ops.triton.operator import no_second_gradient

ARGUMENTS = 'Tensor attended, Tensor values, Tensor gate, Tensor weight, Tensor? bias, SymInt rows, SymInt columns'
DIFFERENTIABLE = ('attended', 'values', 'gate', 'weight', 'bias')
"""The first arguments of both operators, in their order."""


def epilogue(inputs: EpilogueInputs) -> Tensor:
    """y [B, N, C] in the dtype of `attended`."""
    rows, columns = inputs.grid
    return mix_and_gate(inputs.attended, inputs.values, inputs.gate, inputs.weight, inputs.bias, rows, columns)


@torch.library.custom_op('mmpola::mix_and_gate', mutates_args=(), schema=f'({ARGUMENTS}) -> Tensor')
def mix_and_gate(
    attended: Tensor, values: Tensor, gate: Tensor, weight: Tensor, bias: Tensor | None, rows: int, columns: int
) -> Tensor:
    """y [B, N, C] (E14)."""
    attended, values, gate = (_with_unit_stride(x) for x in (attended, values, gate))
    return mix(values, _taps(weight), bias, attended, gate, (rows, columns))


@torch.library.custom_op(
    'mmpola::mix_and_gate_gradient',
    mutates_args=(),
    schema=f'({ARGUMENTS}, Tensor dy, bool[] wanted) -> (Tensor, Tensor, Tensor, Tensor, Tensor)',
)
def mix_and_gate_gradient(
    attended: Tensor,
    values: Tensor,
    gate: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    rows: int,
    columns: int,
    dy: Tensor,
    wanted: list[bool],
) -> tuple[Tensor, ...]:
    """Gradients of DIFFERENTIABLE (E19); an empty tensor where not wanted."""
    attended, values, gate, dy = (_with_unit_stride(x) for x in (attended, values, gate, dy))
    taps, grid = _taps(weight), (rows, columns)
    wants = dict(zip(DIFFERENTIABLE, wanted, strict=True))
    # do is what dv is made of, so it is made for dv too, and rounded as an output of its own would be.
    asked = wants['attended'] or wants['values'], wants['gate'], wants['weight'] or wants['bias']
    do, dg, kernel = mix_gradient(dy, attended, values, gate, taps, bias, grid, asked)
    found: dict[str, Tensor | None] = {'attended': do, 'gate': dg}
    if wants['values'] and do is not None:
        found['values'] = mix(do, taps, None, None, None, grid, flip=True).view(do.shape)
    if kernel is not None:
        found['weight'] = kernel[:-1].T.contiguous().view(weight.shape).to(weight.dtype, copy=True)
        found['bias'] = None if bias is None else kernel[-1].to(bias.dtype, copy=True)
    gradients = (found[name] if want else None for name, want in wants.items())
    return tuple(dy.new_empty(0) if x is None else x for x in gradients)


def _with_unit_stride(x: Tensor) -> Tensor:
    """x itself, or a contiguous copy where its last dimension has no unit stride."""
    return x if x.stride(-1) == 1 else x.contiguous()


def _taps(weight: Tensor) -> Tensor:
    """[D or C, 1, k, k] -> [k², D or C] contiguous: the channels of a tap next to each other, as those of a token."""
    return weight.flatten(1).T.contiguous()


@mix_and_gate.register_fake
def _(attended: Tensor, values: Tensor, gate: Tensor, *_: Any) -> Tensor:
    return torch.empty(gate.shape, device=attended.device, dtype=attended.dtype)


@mix_and_gate_gradient.register_fake
def _(*arguments: Any) -> tuple[Tensor, ...]:
    *tensors, _, _, dy, wanted = arguments
    return tuple(
        torch.empty(x.shape, device=x.device, dtype=x.dtype) if want else dy.new_empty(0)
        for x, want in zip(tensors, wanted, strict=True)
    )


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, rows, columns = inputs
    ctx.grid = rows, columns
    ctx.save_for_backward(*tensors)


def _gradient(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    wanted = list(ctx.needs_input_grad[: len(DIFFERENTIABLE)])
    found = mix_and_gate_gradient(*ctx.saved_tensors, *ctx.grid, dy, wanted)
    return *(d if want else None for d, want in zip(found, wanted, strict=True)), None, None


mix_and_gate.register_autograd(_gradient, setup_context=_save)
mix_and_gate_gradient.register_autograd(no_second_gradient)


@register_flop_formula([torch.ops.mmpola.mix_and_gate, torch.ops.mmpola.mix_and_gate_gradient])
def _flops(attended: Any, values: Any, gate: Any, weight: Any, *rest: Any, **_: Any) -> int:
    """A convolution forward; backward one each for dg (made again), dv and dW. Shapes come in place of tensors."""
    batch, tokens, channels = gate
    convolutions = 1
    if isinstance(rest[-1], list):
        _, values_wanted, gate_wanted, weight_wanted, _ = rest[-1]
        convolutions = values_wanted + gate_wanted + weight_wanted
    return int(convolutions * 2 * batch * tokens * channels * weight[2] * weight[3])
