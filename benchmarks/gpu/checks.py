"""Part 1: every kernel against float64, in memory full of NaN, and twice, with equal bits."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from benchmarks.records import Row, first_line
from mmpola.ops.chunked import polarity_attention_chunked
from mmpola.ops.comparison import (
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


DTYPES = {
    'float16': CheckedDtype(torch.float16, False, 12.0),
    'bfloat16': CheckedDtype(torch.bfloat16, False, 4.0),
    'float32': CheckedDtype(torch.float32, False, 500.0),
    'float32 in tf32': CheckedDtype(torch.float32, True, 12.0),
}

LARGE = 'exp, large inputs'
POWER: Arguments = {'feature_map': 'PowerMap', 'batch': 2, 'heads': 2}
EXP: Arguments = {'feature_map': 'ExpMap', 'batch': 2, 'heads': 2, 'position_dtype': None}
ROTARY: Arguments = {**EXP, 'has_rotary': True}
SHORT = {'queries': 784, 'keys': 784}
ODD = {'queries': 1021, 'keys': 577}
LONG = {'queries': 66800, 'keys': 66800, 'heads': 1}
MANY = {'queries': 20, 'keys': 30, 'batch': 8750, 'heads': 8}
GRID: Arguments = {'batch': 2, 'heads': 2, 'window': (5, 5), 'is_shared': True}

CASES: dict[str, tuple[int, Arguments]] = {
    'power': (32, {**POWER, **SHORT}),
    'power, odd lengths': (64, {**POWER, **ODD, 'position_dtype': None}),
    'power, one query': (64, {**POWER, 'queries': 1, 'keys': 577}),
    'power, padded channels': (40, {**POWER, 'queries': 333, 'keys': 190, 'has_scale': False}),
    'power, 66,800 tokens': (64, {**POWER, **LONG}),
    'power, 262,144 tokens': (32, {**POWER, 'queries': 2**18, 'keys': 2**18, 'batch': 1}),
    'power, 70,000 programs': (16, {**POWER, **MANY}),
    'exp': (32, {**EXP, **SHORT, 'position_dtype': torch.float32}),
    LARGE: (32, {**EXP, **SHORT, 'std': 30.0}),
    'exp, odd lengths': (64, {**EXP, **ODD}),
    'rotary': (64, {**ROTARY, **SHORT}),
    'rotary, padded channels': (40, {**ROTARY, 'queries': 577, 'keys': 577}),
    'rotary, 66,800 tokens': (64, {**ROTARY, **LONG}),
    'mix_and_gate': (32, {**GRID, 'grid': (56, 56)}),
    'mix_and_gate, odd grid': (64, {**GRID, 'grid': (25, 42)}),
    'mix_and_gate, a kernel per head': (40, {**GRID, 'grid': (19, 37), 'is_shared': False}),
    'mix_and_gate, a sequence': (32, {**GRID, 'grid': (1, 4096), 'window': (1, 5)}),
    'mix_and_gate, 66,800 tokens': (64, {**GRID, 'grid': (200, 334), 'heads': 1}),
}
"""Name -> D, and arguments of `attention_problem` or, with 'grid', of `mix_and_gate_problem`."""

DRY_CASES: dict[str, tuple[int, Arguments]] = {
    'power': (16, {**POWER, 'batch': 1, 'heads': 1, 'queries': 20, 'keys': 40}),
    'mix_and_gate': (16, {**GRID, 'batch': 1, 'heads': 1, 'grid': (5, 9), 'window': (3, 3)}),
}


def check_rows(dry_run: bool) -> Iterator[Row]:
    """Check every case in every dtype; a row's 'failure' is '' or says what is wrong."""
    cases = DRY_CASES if dry_run else CASES
    dtypes = {'float16': DTYPES['float16']} if dry_run else DTYPES
    device = torch.device('cpu' if dry_run else 'cuda')
    for dtype_name, checked in dtypes.items():
        for name, (dim, arguments) in cases.items():
            allowed = checked.allowed_for_large_inputs if name == LARGE else 1.0
            row: Row = {'check': name, 'dtype': dtype_name}
            try:
                row |= check(device, checked, dim, arguments, allowed)
            except Exception as error:  # compilers and drivers may raise anything
                row |= {'worst result': '', 'error over budget': '', 'failure': first_line(error)}
            yield row
    torch.backends.cuda.matmul.allow_tf32 = False  # `check` has set it for the last dtype


def check(
    device: torch.device, checked: CheckedDtype, dim: int, arguments: Arguments, allowed: float
) -> Row:
    """Run a case's kernels twice and compare output and gradients with float64.

    The budget is by how much an error may exceed that of PyTorch's own operations in the same
    dtype. Memory is filled with NaN when the first run allocates it, so elements that a kernel does
    not write are noticed.
    """
    kernels: Callable[[Any], Tensor]
    reference: Callable[[Any], Tensor]
    if 'grid' in arguments:
        problem = mix_and_gate_problem(device, checked.dtype, dim, **arguments)
        kernels, reference = mix_and_gate_triton, mix_and_gate_reference
    else:
        problem = attention_problem(device, checked.dtype, dim, **arguments)
        kernels, reference = polarity_attention_triton, polarity_attention_chunked
    torch.backends.cuda.matmul.allow_tf32 = checked.tf32
    torch.use_deterministic_algorithms(True, warn_only=True)  # this also fills new memory
    try:
        found = outputs_and_gradients(kernels, problem)
    finally:
        torch.use_deterministic_algorithms(False)
    again = outputs_and_gradients(kernels, problem)

    exact = outputs_and_gradients(reference, problem, torch.float64)
    reference_errors = relative_errors(outputs_and_gradients(reference, problem), exact)
    budget_dtype = torch.float16 if checked.tf32 else checked.dtype
    output_budget, gradient_budget = BACKEND_EXCESS[budget_dtype]
    over_budget = {}
    for name, error in relative_errors(found, exact).items():
        budget = allowed * (output_budget if name == 'output' else gradient_budget)
        over_budget[name] = (error - reference_errors[name]) / budget

    worst = max(over_budget, key=lambda name: (math.isnan(over_budget[name]), over_budget[name]))
    differing = [name for name, x in found.items() if not torch.equal(x, again[name])]
    failure = ''
    if not over_budget[worst] <= 1:  # also true for NaN
        failure = f'the error of the {worst} is {over_budget[worst]:.1f} times the budget'
    elif differing:
        failure = f'two runs differ in the {differing[0]}'
    return {'worst result': worst, 'error over budget': over_budget[worst], 'failure': failure}
