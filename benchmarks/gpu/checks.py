"""Part 1: every kernel against float64, in memory full of NaN, and twice, with equal bits."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

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


class CheckedDtype(NamedTuple):
    """A dtype that kernels are checked in.

    Attributes:
        dtype: of the tokens.
        tf32: whether torch's tf32 switch is on.
        allowed_for_large_inputs: largest error of the case 'exp, large inputs', in units of
            BACKEND_EXCESS, as the kernels' tests allow it. The weights of few keys are then nearly
            1, and what is left of them is a small difference.
    """

    dtype: torch.dtype
    tf32: bool
    allowed_for_large_inputs: float


CHECKED_DTYPES = {
    'float16': CheckedDtype(torch.float16, False, 12.0),
    'bfloat16': CheckedDtype(torch.bfloat16, False, 4.0),
    'float32': CheckedDtype(torch.float32, False, 500.0),
    'float32 in tf32': CheckedDtype(torch.float32, True, 12.0),
}

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
"""Name -> D, and arguments of `attention_problem` or, with 'grid', of `mix_and_gate_problem`."""

DRY_CASES: dict[str, tuple[int, Arguments]] = {
    'power': (16, {**POWER, 'batch': 1, 'heads': 1, 'queries': 20, 'keys': 40}),
    'rotary, padded channels': (10, {**ROTARY, 'batch': 1, 'heads': 1, 'queries': 20, 'keys': 20}),
    'mix_and_gate': (16, {**GRID, 'batch': 1, 'heads': 1, 'grid': (5, 9), 'window': (3, 3)}),
}

LONGEST_SHORTENED = {'queries': 64, 'keys': 64, 'batch': 1}
"""Argument -> its largest value in a shortened call."""

LONGEST_SHORTENED_SIDE = 8
"""The largest side of the grid of a shortened call."""


class CheckedOperator(NamedTuple):
    """An operator whose kernels are checked.

    Attributes:
        draw_problem: draws inputs.
        kernels: what is checked.
        reference: what it is compared with.
    """

    draw_problem: Callable[..., Problem]
    kernels: Callable[[Any], Tensor]
    reference: Callable[[Any], Tensor]


CHECKED_OPERATORS = {
    'polarity_attention': CheckedOperator(
        attention_problem, polarity_attention_triton, polarity_attention_chunked
    ),
    'mix_and_gate': CheckedOperator(
        mix_and_gate_problem, mix_and_gate_triton, mix_and_gate_reference
    ),
}


@dataclass(frozen=True)
class CheckedCall:
    """A call of an operator on random inputs, which other processes can repeat.

    Attributes:
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
    def is_mix_and_gate(self) -> bool:
        return 'grid' in self.arguments

    @property
    def operator(self) -> CheckedOperator:
        name = 'mix_and_gate' if self.is_mix_and_gate else 'polarity_attention'
        return CHECKED_OPERATORS[name]

    def shortened(self) -> CheckedCall:
        """Return the call that compiles the same kernels on one short sample."""
        shorter = dict(self.arguments)
        for name, most in LONGEST_SHORTENED.items():
            if name in shorter:
                shorter[name] = min(most, shorter[name])
        if self.is_mix_and_gate:
            shorter['grid'] = tuple(min(LONGEST_SHORTENED_SIDE, side) for side in shorter['grid'])
        return replace(self, arguments=shorter)

    def problem(self, device: torch.device) -> Problem:
        """Draw the call's tensors.

        Token tensors of equal shape are views of one tensor, as a linear layer returns them.
        """
        problem = self.operator.draw_problem(device, self.dtype, self.dim, **self.arguments)
        names = ('attended', 'values') if self.is_mix_and_gate else ('q', 'k', 'v')
        tensors = []
        for name in names:
            tensor = problem.tensors[name]
            assert tensor is not None
            tensors.append(tensor)
        if any(tensor.shape != tensors[0].shape for tensor in tensors):
            return problem
        views = torch.stack(tensors, dim=2).unbind(2)
        return replace(problem, tensors={**problem.tensors, **dict(zip(names, views, strict=True))})

    def run(self, problem: Problem) -> dict[str, Tensor]:
        """Return the kernels' output and gradients; set torch's tf32 switch as the call has it."""
        torch.backends.cuda.matmul.allow_tf32 = self.tf32
        return outputs_and_gradients(self.operator.kernels, problem)


def calls_to_check(dry_run: bool) -> dict[str, CheckedCall]:
    """Return the calls that are checked by name; the most common dtype comes first."""
    cases = CASES
    dtypes = CHECKED_DTYPES
    if dry_run:
        cases = DRY_CASES
        dtypes = {'float16': CHECKED_DTYPES['float16']}
    calls = {}
    for dtype_name, checked in dtypes.items():
        for name, (dim, arguments) in cases.items():
            allowed = 1.0
            if 'large inputs' in name:
                allowed = checked.allowed_for_large_inputs
            calls[f'{name}, {dtype_name}'] = CheckedCall(
                checked.dtype, dim, arguments, checked.tf32, allowed
            )
    return calls


CASE_OF_FEATURE_MAP = {
    'power': 'power',
    'rotary': 'rotary, padded channels',
    'any': 'mix_and_gate',
}
"""Feature map of a tuned kernel -> the case that its launches must compute correctly."""


def call_before_timing(
    feature_map: str, dtype: torch.dtype, dim: int, dry_run: bool
) -> CheckedCall:
    """Return the call that a launch must compute correctly before the tuning times it."""
    cases = DRY_CASES if dry_run else CASES
    _, arguments = cases[CASE_OF_FEATURE_MAP[feature_map]]
    return CheckedCall(dtype, dim, arguments)


def check_call(call: CheckedCall, device: torch.device) -> dict[str, Any]:
    """Run a call twice and compare it with float64; 'failure' is '' or says what is wrong.

    Memory is filled with NaN when the first run allocates it: elements that a kernel does not write
    are noticed.
    """
    try:
        problem = call.problem(device)
        # In this mode torch fills the memory that it allocates.
        torch.use_deterministic_algorithms(True, warn_only=True)
        try:
            found = call.run(problem)
        finally:
            torch.use_deterministic_algorithms(False)
        again = call.run(problem)
        errors = _errors_over_budget(call, problem, found)
    except Exception as error:  # compilers and drivers may raise anything
        return {'failure': first_line(error)}
    differing = [name for name, x in found.items() if not torch.equal(x, again[name])]
    worst = max(errors, key=lambda name: (math.isnan(errors[name]), errors[name]))
    failure = ''
    if not errors[worst] <= call.allowed:  # also true for NaN
        failure = f'the error of the {worst} is {errors[worst]:.1f} times the budget'
    elif differing:
        failure = f'two runs differ in the {differing[0]}'
    return {
        'failure': failure,
        'worst result': worst,
        'error over budget': errors[worst] / call.allowed,
    }


def _errors_over_budget(
    call: CheckedCall, problem: Problem, found: dict[str, Tensor]
) -> dict[str, float]:
    """Return by how much each result's error exceeds the reference's, in units of BACKEND_EXCESS.

    The reference computes in the same dtype; both errors are against float64. NaN if a result has
    NaN.
    """
    exact = outputs_and_gradients(call.operator.reference, problem, torch.float64)
    same_dtype = outputs_and_gradients(call.operator.reference, problem)
    reference_errors = relative_errors(same_dtype, exact)
    budget_dtype = torch.float16 if call.tf32 else call.dtype
    output_budget, gradient_budget = BACKEND_EXCESS[budget_dtype]
    over_budget = {}
    for name, error in relative_errors(found, exact).items():
        budget = output_budget if name == 'output' else gradient_budget
        over_budget[name] = (error - reference_errors[name]) / budget
    return over_budget
