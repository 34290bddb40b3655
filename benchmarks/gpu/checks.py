"""The checks of `mmpola gpu` on more shapes, with the error budget itself as the limit."""

from __future__ import annotations

from itertools import product
from typing import Any

import torch

from benchmarks.records import Row
from mmpola.kernels.check import DTYPES, check

Arguments = dict[str, Any]

ALLOWED_FOR_LARGE_INPUTS = {
    'float16': 12.0,
    'bfloat16': 4.0,
    'float32': 500.0,
    'float32 in tf32': 12.0,
}
"""Largest error of the case 'exp, large inputs', in units of BACKEND_EXCESS, as the kernels' tests
allow it. The weights of few keys are then nearly 1, and what is left of them is a small difference.
"""

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


def check_rows(dry_run: bool) -> list[Row]:
    """List a row for every case in every dtype."""
    cases = DRY_CASES if dry_run else CASES
    dtypes = ['float16'] if dry_run else list(DTYPES)
    return [{'check': name, 'dtype': dtype} for dtype, name in product(dtypes, cases)]


def check_row(row: Row, dry_run: bool) -> Row:
    """Check the case of a row; 'failure' is '' or says what is wrong."""
    dim, arguments = (DRY_CASES if dry_run else CASES)[row['check']]
    allowed = 1.0
    if row['check'] == LARGE:
        allowed = ALLOWED_FOR_LARGE_INPUTS[row['dtype']]
    device = torch.device('cpu' if dry_run else 'cuda')
    return row | check(device, row['dtype'], dim, arguments, allowed)
