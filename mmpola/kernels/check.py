"""Check and time kernels on one GPU: what the child processes of `mmpola gpu` run.

    python -m mmpola.kernels.check --device cuda:0

The tasks are words of TASKS with rows of the record. A kernel that ends the process takes nothing
with it: the parent, `mmpola.kernels`, notes the row as failed and starts another process.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from mmpola.kernels.child_processes import Row, serve
from mmpola.kernels.comparison import (
    Problem,
    attention_problem,
    mix_and_gate_problem,
    outputs_and_gradients,
    relative_errors,
)
from mmpola.kernels.record import MEASURED_TOKENS, PADDED_HEAD_DIM, float32_name
from mmpola.ops.chunked import polarity_attention_chunked
from mmpola.ops.numerics import BACKEND_EXCESS
from mmpola.ops.reference import mix_and_gate_reference
from mmpola.ops.triton import mix_and_gate_triton, polarity_attention_triton

Arguments = dict[str, Any]

MARGIN = 20
"""Allowed multiple of BACKEND_EXCESS, which was measured without a GPU's exp2 and log2."""

DTYPES = {
    'float16': (torch.float16, False),
    'bfloat16': (torch.bfloat16, False),
    float32_name('ieee'): (torch.float32, False),
    float32_name('tf32'): (torch.float32, True),
}
"""Name in the record -> dtype of the tokens, and whether torch's tf32 switch is on."""

HEAD_DIMS = (16, 32, 64, PADDED_HEAD_DIM)
NETWORK_HEAD_DIMS = (32, 64)
"""Those of the published networks that the kernels support."""

# Enough tokens that several programs share a head, and enough heads that each program loops over
# several blocks, the last one partly filled.
POWER: Arguments = {'feature_map': 'PowerMap', 'batch': 8, 'heads': 2}
EXP: Arguments = {'feature_map': 'ExpMap', 'batch': 8, 'heads': 2, 'position_dtype': None}
ODD = {'queries': 1021, 'keys': 577}
SQUARE = {'queries': 1100, 'keys': 1100}
MAP = {'batch': 2, 'heads': 2, 'grid': (25, 42), 'window': (5, 5)}
SEQUENCE = {'batch': 2, 'heads': 2, 'grid': (1, 1021), 'window': (1, 5)}
CHECKED: dict[str, list[Arguments]] = {
    'power': [{**POWER, **ODD}, {**POWER, **SQUARE, 'has_scale': False, 'position_dtype': None}],
    'exp': [{**EXP, **ODD}, {**EXP, **SQUARE, 'position_dtype': torch.float32}],
    'rotary': [{**EXP, **SQUARE, 'has_rotary': True}],
    'mix_and_gate': [{**MAP, 'is_shared': True}, {**SEQUENCE, 'is_shared': False}],
}
"""Operator -> arguments of the problems that are compared with float64: with the optional tensors
and without them."""

GRIDS = {784: (28, 28), 16700: (100, 167)}
TIMED_BATCH = {784: 32, 16700: 2}
TIMED_CHANNELS = 256

TINY = {'batch': 1, 'heads': 1, 'queries': 20, 'keys': 20, 'grid': (1, 9)}
"""Replaces the sizes of all problems in Triton's interpreter."""


@dataclass(frozen=True)
class Case:
    """A row of the record.

    Args:
        operator: of CHECKED.
        head_dim: D, channels of a head.
        dtype: of DTYPES.
    """

    operator: str
    head_dim: int
    dtype: str

    @property
    def is_of_networks(self) -> bool:
        """Whether published networks need it in mixed precision."""
        return self.head_dim in NETWORK_HEAD_DIMS and self.dtype in ('float16', 'bfloat16')


def all_cases() -> list[Case]:
    """List the rows of a record: what networks need first, and what compiles longest."""
    cases = []
    for operator in CHECKED:
        for head_dim in HEAD_DIMS:
            for dtype in DTYPES:
                # mix_and_gate multiplies no matrices: the switch does not concern it
                if operator != 'mix_and_gate' or dtype != float32_name('tf32'):
                    cases.append(Case(operator, head_dim, dtype))
    return sorted(cases, key=lambda case: (not case.is_of_networks, -case.head_dim))


def row_of(case: Case) -> Row:
    """Return the row of a case before it has run."""
    return {**asdict(case), 'failure': '', 'speedup': {}}


def case_of(row: Row) -> Case:
    """Return the case of a row."""
    return Case(row['operator'], row['head_dim'], row['dtype'])


def functions_of(arguments: Arguments) -> tuple[Callable[[Any], Tensor], Callable[[Any], Tensor]]:
    """Return the kernels and the plain operator for the arguments of a problem."""
    if 'window' in arguments:
        return mix_and_gate_triton, mix_and_gate_reference
    return polarity_attention_triton, polarity_attention_chunked


def draw(device: torch.device, dtype: torch.dtype, dim: int, arguments: Arguments) -> Problem:
    """Draw the tensors of a problem."""
    if 'window' in arguments:
        return mix_and_gate_problem(device, dtype, dim, **arguments)
    return attention_problem(device, dtype, dim, **arguments)


def check(
    device: torch.device, dtype_name: str, dim: int, arguments: Arguments, allowed: float
) -> dict[str, Any]:
    """Run the kernels twice and compare output and gradients with float64.

    The budget, BACKEND_EXCESS, is by how much an error may exceed that of PyTorch's own operations
    in the same dtype. Memory is filled with NaN when the first run allocates it, so elements that a
    kernel does not write are noticed.

    Args:
        device: where the kernels run.
        dtype_name: of DTYPES.
        dim: D, channels of a head.
        arguments: of `attention_problem` or, with 'window', of `mix_and_gate_problem`.
        allowed: multiple of the budget that passes.

    Returns:
        'worst result', its 'error over budget', and 'failure': '' or what is wrong.
    """
    dtype, tf32 = DTYPES[dtype_name]
    problem = draw(device, dtype, dim, arguments)
    kernels, reference = functions_of(arguments)
    switch = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = tf32
    torch.use_deterministic_algorithms(True, warn_only=True)  # this also fills new memory
    try:
        found = outputs_and_gradients(kernels, problem)
        torch.use_deterministic_algorithms(False)
        again = outputs_and_gradients(kernels, problem)
        exact = outputs_and_gradients(reference, problem, torch.float64)
        reference_errors = relative_errors(outputs_and_gradients(reference, problem), exact)
    finally:
        torch.use_deterministic_algorithms(False)
        torch.backends.cuda.matmul.allow_tf32 = switch
    budget_dtype = torch.float16 if tf32 else dtype
    output_budget, gradient_budget = BACKEND_EXCESS[budget_dtype]
    over_budget = {}
    for name, error in relative_errors(found, exact).items():
        budget = output_budget if name == 'output' else gradient_budget
        over_budget[name] = (error - reference_errors[name]) / (allowed * budget)

    worst = max(over_budget, key=lambda name: (math.isnan(over_budget[name]), over_budget[name]))
    differing = [name for name, x in found.items() if not torch.equal(x, again[name])]
    failure = ''
    if not over_budget[worst] <= 1:  # also true for NaN
        failure = f'the error of the {worst} is {over_budget[worst]:.1f} times the budget'
    elif differing:
        failure = f'two runs differ in the {differing[0]}'
    return {'worst result': worst, 'error over budget': over_budget[worst], 'failure': failure}


def speedup(device: torch.device, case: Case, tokens: int, sizes: Arguments) -> float:
    """Return the time of a training step of the plain operator over that of the kernels.

    Args:
        device: where both run.
        case: the row.
        tokens: of MEASURED_TOKENS.
        sizes: replaces some of the sizes.
    """
    dtype, tf32 = DTYPES[case.dtype]
    arguments = dict(CHECKED[case.operator][0])
    arguments.update(batch=TIMED_BATCH[tokens], heads=max(1, TIMED_CHANNELS // case.head_dim))
    if case.operator == 'mix_and_gate':
        arguments.update(grid=GRIDS[tokens])
    else:
        arguments.update(queries=tokens, keys=tokens)
    arguments.update(sizes)
    problem = draw(device, dtype, case.head_dim, arguments)
    switch = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = tf32
    milliseconds = []
    try:
        for function in functions_of(arguments):
            milliseconds.append(time_step(function, problem, device))
    finally:
        torch.backends.cuda.matmul.allow_tf32 = switch
    kernels, plain = milliseconds
    return plain / kernels


def time_step(function: Callable[[Any], Tensor], problem: Problem, device: torch.device) -> float:
    """Return the median milliseconds of a forward and backward pass."""

    def step() -> None:
        outputs_and_gradients(function, problem)

    step()
    if device.type == 'cuda':
        from triton.testing import do_bench

        return float(do_bench(step, warmup=10, rep=40, return_mode='median'))
    start = time.perf_counter()
    step()
    return 1000 * (time.perf_counter() - start)


def check_case(device: torch.device, case: Case, is_tiny: bool) -> Row:
    """Check a case on all its problems; return the 'failure' of its row."""
    for arguments in CHECKED[case.operator]:
        sizes = sizes_of(arguments, is_tiny)
        found = check(device, case.dtype, case.head_dim, arguments | sizes, MARGIN)
        if found['failure']:
            return {'failure': found['failure']}
    return {'failure': ''}


def time_case(device: torch.device, case: Case, is_tiny: bool) -> Row:
    """Time a case; return the 'speedup' of its row, by the number of tokens."""
    sizes = sizes_of(CHECKED[case.operator][0], is_tiny)
    times = {}
    for tokens in MEASURED_TOKENS:
        times[str(tokens)] = float(f'{speedup(device, case, tokens, sizes):.3g}')
    return {'speedup': times}


TASKS = {'check kernels': check_case, 'time kernels': time_case}


def run_task(task: str, device: torch.device, row: Row, is_tiny: bool) -> Row:
    """Return a row with the result of a task of TASKS, or with the error that it raised."""
    try:
        return row | TASKS[task](device, case_of(row), is_tiny)
    except Exception as error:  # compilers and drivers may raise anything
        return row | {'failure': f'{type(error).__name__}: {error}'.splitlines()[0]}


def sizes_of(arguments: Arguments, is_tiny: bool) -> Arguments:
    """Return the sizes that replace those of a problem."""
    if not is_tiny:
        return {}
    return {name: size for name, size in TINY.items() if name in arguments}


def is_usable(device: torch.device) -> bool:
    """Whether the device still works: an illegal address ends all work of a process on a GPU."""
    try:
        torch.ones(1, device=device).item()
    except RuntimeError:
        return False
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description='Check and time kernels on one GPU')
    parser.add_argument('--device', required=True, help='such as cuda:0')
    parser.add_argument('--tiny', action='store_true', help="small sizes, for Triton's interpreter")
    args = parser.parse_args()
    device = torch.device(args.device)
    if not is_usable(device):
        sys.exit('the GPU does not answer')
    serve(lambda task, row: run_task(task, device, row, args.tiny))


if __name__ == '__main__':
    main()
