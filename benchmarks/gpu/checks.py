"""Part 1: every kernel against float64 on the device, with poisoned memory, twice with equal
bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from mmpola.messages import first_line
from mmpola.ops.chunked import polarity_attention_chunked
from mmpola.ops.comparison import (
    Problem,
    attention_problem,
    mix_and_gate_problem,
    outputs_and_gradients,
    relative_errors,
)
from mmpola.ops.numerics import BACKEND_EXCESS
from mmpola.ops.reference import mix_and_gate_reference
from mmpola.ops.triton.backend import mix_and_gate_triton, polarity_attention_triton

Arguments = dict[str, Any]

DTYPES = {
    'float16': (torch.float16, False, 12.0),
    'bfloat16': (torch.bfloat16, False, 4.0),
    'float32': (torch.float32, False, 500.0),
    'float32 in tf32': (torch.float32, True, 12.0),
}
"""Name -> dtype of the tokens, whether torch's tf32 switch is on, and the largest error of the case
'exp, large inputs'
in units of BACKEND_EXCESS, as the kernels' tests allow it: the weights of few keys are then nearly
1, and what is left of them is a small difference."""

POWER: Arguments = {'feature_map': 'PowerMap', 'batch': 2, 'heads': 2}
EXP: Arguments = {'feature_map': 'ExpMap', 'batch': 2, 'heads': 2, 'position_dtype': None}
ROTARY: Arguments = {**EXP, 'has_rotary': True}
SHORT = {'queries': 784, 'keys': 784}
GRID: Arguments = {'batch': 2, 'heads': 2, 'window': (5, 5), 'is_shared': True}

CASES: dict[str, tuple[int, Arguments]] = {
    'power': (32, {**POWER, **SHORT, 'heads': 3}),
    'power, D=64': (64, {**POWER, 'queries': 3136, 'keys': 3136, 'heads': 1}),
    'power, odd lengths': (32, {**POWER, 'queries': 1021, 'keys': 577, 'position_dtype': None}),
    'power, one query': (64, {**POWER, 'queries': 1, 'keys': 577, 'position_dtype': None}),
    'power, padded channels': (40, {**POWER, 'queries': 333, 'keys': 190, 'has_scale': False}),
    'power, 66,800 tokens': (64, {**POWER, 'queries': 66800, 'keys': 66800, 'heads': 1}),
    'power, 262,144 tokens': (32, {**POWER, 'queries': 2**18, 'keys': 2**18, 'batch': 1}),
    'power, 70,000 programs': (16, {**POWER, 'queries': 20, 'keys': 30, 'batch': 8750, 'heads': 8}),
    'exp': (32, {**EXP, **SHORT, 'position_dtype': torch.float32}),
    'exp, large inputs': (32, {**EXP, **SHORT, 'std': 30.0}),
    'exp, odd lengths': (64, {**EXP, 'queries': 1021, 'keys': 577}),
    'exp, 70,000 programs': (16, {**EXP, 'queries': 20, 'keys': 30, 'batch': 8750, 'heads': 8}),
    'rotary': (64, {**ROTARY, 'queries': 3136, 'keys': 3136, 'heads': 1}),
    'rotary, padded channels': (40, {**ROTARY, 'queries': 577, 'keys': 577}),
    'rotary, 66,800 tokens': (64, {**ROTARY, 'queries': 66800, 'keys': 66800, 'heads': 1}),
    'mix_and_gate': (32, {**GRID, 'grid': (56, 56)}),
    'mix_and_gate, odd grid': (64, {**GRID, 'grid': (25, 42)}),
    'mix_and_gate, a kernel per head': (
        40,
        {**GRID, 'grid': (19, 37), 'is_shared': False, 'has_bias': False},
    ),
    'mix_and_gate, one column': (32, {**GRID, 'grid': (577, 1), 'window': (3, 3)}),
    'mix_and_gate, kernel wider than the grid': (16, {**GRID, 'grid': (2, 3), 'window': (7, 7)}),
    'mix_and_gate, a sequence': (32, {**GRID, 'grid': (1, 4096), 'window': (1, 5)}),
    'mix_and_gate, 66,800 tokens': (64, {**GRID, 'grid': (200, 334), 'heads': 1}),
}
"""Name -> D and the arguments of `attention_problem`, or of `mix_and_gate_problem` if there is a
'grid'.
"""

DRY_CASES: dict[str, tuple[int, Arguments]] = {
    'power': (16, {**POWER, 'batch': 1, 'heads': 1, 'queries': 20, 'keys': 40}),
    'rotary, padded channels': (10, {**ROTARY, 'batch': 1, 'heads': 1, 'queries': 20, 'keys': 20}),
    'mix_and_gate': (16, {**GRID, 'batch': 1, 'heads': 1, 'grid': (5, 9), 'window': (3, 3)}),
}

SHORTENED = {'queries': 64, 'keys': 64, 'batch': 1}
"""The most of each that a shortened call has."""

OPERATORS: dict[
    str, tuple[Callable[..., Problem], Callable[[Any], Tensor], Callable[[Any], Tensor]]
] = {
    'polarity_attention': (
        attention_problem,
        polarity_attention_triton,
        polarity_attention_chunked,
    ),
    'mix_and_gate': (mix_and_gate_problem, mix_and_gate_triton, mix_and_gate_reference),
}
"""How the problems of an operator are drawn, its kernels, and the reference."""


@dataclass(frozen=True)
class Call:
    """A call of an operator on random inputs, which other processes can repeat.

    Args:
        dtype: of the tokens.
        dim: D.
        arguments: as in `CASES`.
        tf32: whether torch's switch for tf32 products of float32 is on.
        allowed: largest error, in units of BACKEND_EXCESS.
    """

    dtype: torch.dtype
    dim: int
    arguments: Mapping[str, Any]
    tf32: bool = False
    allowed: float = 1.0

    @property
    def operator(self) -> str:
        return 'mix_and_gate' if 'grid' in self.arguments else 'polarity_attention'

    def shortened(self) -> Call:
        """Return the call that compiles the same kernels on one short sample."""
        shorter = {
            name: min(most, self.arguments[name])
            for name, most in SHORTENED.items()
            if name in self.arguments
        }
        grid = (
            {'grid': tuple(min(8, n) for n in self.arguments['grid'])}
            if 'grid' in self.arguments
            else {}
        )
        return replace(self, arguments={**self.arguments, **shorter, **grid})

    def problem(self, device: torch.device) -> Problem:
        """Draw the call's tensors; those of equal shape are views of one tensor, as a linear layer
        returns them.
        """
        problem = OPERATORS[self.operator][0](device, self.dtype, self.dim, **self.arguments)
        names = ('q', 'k', 'v') if self.operator == 'polarity_attention' else ('attended', 'values')
        tensors = [x for name in names if (x := problem.tensors[name]) is not None]
        if len({x.shape for x in tensors}) > 1:
            return problem
        views = dict(zip(names, torch.stack(tensors, dim=2).unbind(2), strict=True))
        return replace(problem, tensors={**problem.tensors, **views})

    def run(self, problem: Problem) -> dict[str, Tensor]:
        """Return the kernels' output and gradients; torch's tf32 switch stays as the call has
        it.
        """
        torch.backends.cuda.matmul.allow_tf32 = self.tf32
        return outputs_and_gradients(OPERATORS[self.operator][1], problem)


def calls(dry_run: bool) -> dict[str, Call]:
    """Return the calls that are checked, by name, those of the most common dtype first."""
    cases = DRY_CASES if dry_run else CASES
    found = {}
    for dtype, (torch_dtype, tf32, large) in DTYPES.items():
        if dry_run and dtype != 'float16':
            continue
        for name, (dim, arguments) in cases.items():
            scale = large if 'large inputs' in name else 1.0
            found[f'{name}, {dtype}'] = Call(torch_dtype, dim, arguments, tf32, scale)
    return found


def gate(feature_map: str, dtype: torch.dtype, dim: int, dry_run: bool) -> Call:
    """Return the call that a launch must compute correctly before the tuning times it."""
    name = {'power': 'power', 'rotary': 'rotary, padded channels', 'any': 'mix_and_gate'}[
        feature_map
    ]
    return Call(dtype, dim, (DRY_CASES if dry_run else CASES)[name][1])


def check(call: Call, device: torch.device) -> dict[str, Any]:
    """Run a call twice and compare it with float64; 'failure' is '' or says what is wrong.

    Memory is filled with NaN when the first run allocates it: elements that a kernel does not write
    are noticed.
    """
    try:
        problem = call.problem(device)
        torch.use_deterministic_algorithms(
            True, warn_only=True
        )  # with it, torch fills what it allocates
        try:
            found = call.run(problem)
        finally:
            torch.use_deterministic_algorithms(False)
        again = call.run(problem)
        budgets = _budgets(call, problem, found)
    except Exception as error:  # compilers and drivers may raise anything
        return {'failure': first_line(error)}
    differing = [name for name, x in found.items() if not torch.equal(x, again[name])]
    worst = max(budgets, key=lambda name: math.inf if math.isnan(budgets[name]) else budgets[name])
    failure = ''
    if not budgets[worst] <= call.allowed:  # also true for NaN
        failure = f'the error of the {worst} is {budgets[worst]:.1f} times the budget'
    elif differing:
        failure = f'two runs differ in the {differing[0]}'
    return {
        'failure': failure,
        'worst result': worst,
        'error over budget': budgets[worst] / call.allowed,
    }


def _budgets(call: Call, problem: Problem, found: dict[str, Tensor]) -> dict[str, float]:
    """Return by how much the error of each result exceeds the reference's, in units of
    BACKEND_EXCESS, or NaN.
    """
    reference = OPERATORS[call.operator][2]
    exact = outputs_and_gradients(reference, problem, torch.float64)
    same_dtype = relative_errors(outputs_and_gradients(reference, problem), exact)
    output, gradient = BACKEND_EXCESS[torch.float16 if call.tf32 else call.dtype]
    return {
        name: (error - same_dtype[name]) / (output if name == 'output' else gradient)
        for name, error in relative_errors(found, exact).items()
    }
