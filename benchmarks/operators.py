"""Compare the operator with the literal equations at the shapes of real stages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from tqdm import tqdm

from benchmarks.cases import ATTENTION, Case
from benchmarks.measure import Run, check_parity, measured, ratio, time_ratios
from benchmarks.peers import literal_attention
from benchmarks.records import Row
from mmpola.layers import rotary_tables
from mmpola.ops import ExpMap, PowerMap, polarity_attention

Function = Callable[..., Tensor]

TIMED_DTYPE = {'cuda': torch.float16, 'cpu': torch.float32}
"""dtype of the token tensors while timing; parity is checked in float32."""


class Call(NamedTuple):
    """The arguments of a measured call.

    Attributes:
        leaves: tensors that get a gradient.
        positional, named: arguments of the operator, made from the leaves.
        grad: gradient of the output.
    """

    leaves: list[Tensor]
    positional: tuple[Any, ...]
    named: dict[str, Any]
    grad: Tensor

    def passes(self, function: Function) -> dict[str, Run]:
        """Return 'forward', which runs without gradients, and 'step', forward and backward."""
        return {'forward': partial(self._forward, function), 'step': partial(self._step, function)}

    def _forward(self, function: Function) -> Tensor:
        with torch.no_grad():
            return function(*self.positional, **self.named)

    def _step(self, function: Function) -> tuple[Tensor | None, ...]:
        output = function(*self.positional, **self.named)
        grad = self.grad.to(output.dtype)
        return torch.autograd.grad(output, self.leaves, grad, allow_unused=True)


def all_tensors(passes: dict[str, Run]) -> list[Tensor]:
    """Return the output and the gradients of a call."""
    return [passes['forward'](), *passes['step']()]


def attention_call(case: Case, device: str, dtype: torch.dtype) -> Call:
    """Draw q, k, v as views of one tensor, like a linear layer's output, and float32 parameters."""
    shape = (case.batch, case.tokens, case.heads, case.dim)
    packed_shape = (case.batch, case.tokens, 3, case.heads, case.dim)
    packed = torch.randn(packed_shape, device=device, dtype=dtype, requires_grad=True)
    q, k, v = packed.unbind(2)
    grad = torch.randn(shape, device=device, dtype=dtype)
    if case.feature_map == 'exp':
        temperatures = (case.heads, 2 * case.dim)
        same = torch.rand(temperatures, device=device).requires_grad_()
        opposite = torch.rand(temperatures, device=device).requires_grad_()
        grid = (case.rows, case.columns)
        tables = rotary_tables(grid, 2 * case.dim, packed.device, torch.float32)
        leaves = [packed, same, opposite]
        return Call(leaves, (q, k, v, ExpMap(same, opposite)), {'rotary': tables}, grad)
    position = torch.randn(shape[1:], device=device, requires_grad=True)
    exponent = (1 + 4 * torch.rand(case.heads, case.dim, device=device)).requires_grad_()
    scale = (0.5 + torch.rand(case.heads, case.dim, device=device)).requires_grad_()
    leaves = [packed, position, exponent, scale]
    return Call(leaves, (q, k, v, PowerMap(exponent, scale)), {'key_position': position}, grad)


def check_case(case: Case, device: str, functions: dict[str, Function]) -> None:
    """Raise ParityError unless all functions agree in float32."""
    call = attention_call(case, device, torch.float32)
    compared = {}
    for name, function in functions.items():
        compared[name] = partial(all_tensors, call.passes(function))
    check_parity(case.name, compared)


def attention(device: str, repeats: int) -> Iterator[Row]:
    """Compare the operator with the literal equations at the shapes of real stages."""
    functions = {'ours': polarity_attention, 'literal': literal_attention}
    for case in tqdm(ATTENTION[device], 'attention'):
        check_case(case, device, functions)
        call = attention_call(case, device, TIMED_DTYPE[device])
        runs = {name: call.passes(function) for name, function in functions.items()}
        seconds, memory = measured(runs, device, repeats)
        row: Row = {'case': case.name, 'tokens': case.tokens, **time_ratios(seconds, ['literal'])}
        row['peak memory'] = ratio(memory, 'ours', 'literal')
        row['seconds'] = seconds
        row['bytes'] = memory
        yield row
