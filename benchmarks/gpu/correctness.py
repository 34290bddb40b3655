"""Part 1: every kernel against float64 on the device, with poisoned memory, twice with equal bits."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from benchmarks.gpu.problems import Call
from benchmarks.gpu.processes import Compiler
from benchmarks.gpu.session import Item, Session
from mmpola.messages import first_line

DTYPES = {
    'float16': (torch.float16, False),
    'bfloat16': (torch.bfloat16, False),
    'float32': (torch.float32, False),
    'float32 in tf32': (torch.float32, True),
}
"""Name -> dtype of the tokens, and whether torch's tf32 switch is on."""

Case = dict[str, Any]

POWER: Case = {'feature_map': 'PowerMap', 'batch': 2, 'heads': 2}
EXP: Case = {'feature_map': 'ExpMap', 'batch': 2, 'heads': 2, 'position_dtype': None}
ROTARY: Case = {**EXP, 'has_rotary': True}
SHORT = {'queries': 784, 'keys': 784}

ATTENTION: dict[str, tuple[int, Case]] = {
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
}
"""Name -> D and the arguments of `attention_problem`."""

GRID: Case = {'batch': 2, 'heads': 2, 'window': (5, 5), 'is_shared': True}

MIX_AND_GATE: dict[str, tuple[int, Case]] = {
    'mix_and_gate': (32, {**GRID, 'grid': (56, 56)}),
    'mix_and_gate, odd grid': (64, {**GRID, 'grid': (25, 42)}),
    'mix_and_gate, a kernel per head': (40, {**GRID, 'grid': (19, 37), 'is_shared': False, 'has_bias': False}),
    'mix_and_gate, one column': (32, {**GRID, 'grid': (577, 1), 'window': (3, 3)}),
    'mix_and_gate, kernel wider than the grid': (16, {**GRID, 'grid': (2, 3), 'window': (7, 7)}),
    'mix_and_gate, a sequence': (32, {**GRID, 'grid': (1, 4096), 'window': (1, 5)}),
    'mix_and_gate, 66,800 tokens': (64, {**GRID, 'grid': (200, 334), 'heads': 1}),
}
"""Name -> D and the arguments of `mix_and_gate_problem`."""

DRY: dict[str, tuple[int, Case]] = {
    'power': (16, {**POWER, 'batch': 1, 'heads': 1, 'queries': 20, 'keys': 40}),
    'rotary, padded channels': (10, {**ROTARY, 'batch': 1, 'heads': 1, 'queries': 20, 'keys': 20}),
    'mix_and_gate': (16, {**GRID, 'batch': 1, 'heads': 1, 'grid': (5, 9), 'window': (3, 3)}),
}

LARGE_INPUTS = {'float16': 12.0, 'bfloat16': 4.0, 'float32': 500.0, 'float32 in tf32': 12.0}
"""Largest error of the case 'exp, large inputs' by dtype, in units of BACKEND_EXCESS, as the kernels' tests allow it:
the weights of few keys are then nearly 1, and what is left of them is a small difference."""


def calls(dry_run: bool) -> dict[str, Call]:
    """Return the calls that are checked, by name, those of the most common dtype first."""
    cases = DRY if dry_run else ATTENTION | MIX_AND_GATE
    return {f'{name}, {dtype}': _call(name, *cases[name], dtype) for dtype in DTYPES for name in cases
            if not dry_run or dtype == 'float16'}  # fmt: skip


def _call(name: str, dim: int, arguments: Case, dtype: str) -> Call:
    operator = 'mix_and_gate' if 'grid' in arguments else 'polarity_attention'
    return Call(operator, DTYPES[dtype][0], dim, arguments, DTYPES[dtype][1])


def correctness(session: Session, compiler: Compiler) -> Iterator[Item]:
    """Yield a check per call, after all that are not known yet have been given to the compiler."""
    every = calls(session.dry_run)
    missing = [name for name in every if not (session.dry_run or session.is_known('correctness', name))]
    pending = {name: compiler.submit(every[name], {}) for name in missing}
    for name, call in every.items():
        allowed = LARGE_INPUTS[name.rpartition(', ')[2]] if 'large inputs' in name else 1.0
        yield Item(name, partial(session.checker.check, call, {}, allowed), pending.get(name))


def check(call: Call, device: torch.device, allowed: float = 1.0) -> dict[str, Any]:
    """Run a call twice and compare it with float64; 'failure' is '' or says what is wrong.

    Args:
        allowed: largest error, see `Call.budgets`.
    """
    try:
        problem = call.problem(device)
        with poisoned_memory():
            found = call.run(problem)
        again = call.run(problem)
        budgets = call.budgets(problem, found)
    except Exception as error:  # compilers and drivers may raise anything
        return {'failure': first_line(error)}
    differing = [name for name, x in found.items() if not torch.equal(x, again[name])]
    worst = max(budgets, key=lambda name: math.inf if math.isnan(budgets[name]) else budgets[name])
    failure = ''
    if not budgets[worst] <= allowed:  # also true for NaN
        failure = f'the error of the {worst} is {budgets[worst]:.1f} times the budget'
    elif differing:
        failure = f'two runs differ in the {differing[0]}'
    return {'failure': failure, 'worst result': worst, 'error over budget': budgets[worst] / allowed}


@contextmanager
def poisoned_memory() -> Iterator[None]:
    """Fill memory with NaN when it is allocated, so that elements that a kernel does not write are noticed."""
    torch.use_deterministic_algorithms(True, warn_only=True)  # with it, torch fills what it allocates
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def gate(feature_map: str, dtype: torch.dtype, dim: int, dry_run: bool) -> Call:
    """Return the call that a launch must compute correctly before the tuning times it."""
    if feature_map == 'any':
        arguments: Case = {**GRID, **(DRY['mix_and_gate'][1] if dry_run else {'grid': (19, 37)})}
        return Call('mix_and_gate', dtype, dim, arguments)
    tokens = {'queries': 20, 'keys': 20, 'batch': 1, 'heads': 1} if dry_run else {'queries': 577, 'keys': 577}
    arguments = {**(POWER if feature_map == 'power' else ROTARY), **tokens}
    return Call('polarity_attention', dtype, dim, arguments)
