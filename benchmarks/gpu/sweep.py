"""Time other launches of the attention kernels, and print them: the fastest go into their tables.

The tables are `LAUNCHES` and `ROTARY_LAUNCHES` of mmpola/ops/triton/power.py and exp.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import product
from unittest import mock

import torch
import triton
from tqdm import tqdm

from benchmarks.cases import Case
from benchmarks.operators import attention_call
from benchmarks.records import Row, table
from mmpola.messages import first_line
from mmpola.ops import polarity_attention
from mmpola.ops.triton import block_of, exp, power
from mmpola.ops.triton.blocks import LaunchTable
from mmpola.ops.triton.passes import plan_pass

Candidate = tuple[int, int, int]
"""Tokens per block, warps, stages."""

PASSES = ('state', 'output', 'query_gradient', 'key_gradient')
TOKENS = (16, 32, 64, 128)
WARPS = (1, 2, 4, 8)
STAGES = (2, 3)

PRINTED = 5
"""Launches of each kernel that are printed, besides today's."""


def sweep(feature_map: str, dim: int, dry_run: bool) -> None:
    """Print the fastest launches of each kernel of a feature map in float16.

    A launch is judged by the step of the whole operator, in which only one kernel's launch differs
    from today's. Check new ones with `--only checks` once they are in the table.

    Args:
        feature_map: 'power', or 'rotary' (an ExpMap with rotary tables).
        dim: D, channels of a head.
        dry_run: whether two launches run on tiny shapes, with times that are made up.
    """
    kind = {'power': 'power', 'rotary': 'exp'}[feature_map]
    launches = {'power': power.LAUNCHES, 'rotary': exp.ROTARY_LAUNCHES}[feature_map]
    case = Case('', kind, 2, 200, 334, 1, dim)
    candidates = list(product(TOKENS, WARPS, STAGES))
    if dry_run:
        case = replace(case, batch=1, rows=3, columns=6)
        candidates = candidates[:1]
        print('Dry run on a CPU: the times below are MADE UP.')
    call = attention_call(case, 'cpu' if dry_run else 'cuda', torch.float16)
    step = call.passes(partial(polarity_attention, backend='triton'))['step']
    for kernel in PASSES:
        rows: list[Row] = []
        for candidate in tqdm([None, *candidates], kernel):
            text = 'today' if candidate is None else str(candidate)
            with launched_with((kernel, block_of(dim)), launches, candidate):
                try:
                    step()
                except Exception as error:  # blocks that do not fit on the GPU
                    tqdm.write(f'{kernel} {text}: {first_line(error)}')
                    continue
                milliseconds = 1.0
                if not dry_run:
                    milliseconds = triton.testing.do_bench(step, return_mode='median')
            rows.append({'kernel': kernel, 'tokens, warps, stages': text, 'step, ms': milliseconds})
        rows[1:] = sorted(rows[1:], key=lambda row: float(row['step, ms']))[:PRINTED]
        print(table(rows), flush=True)


@contextmanager
def launched_with(
    row: tuple[str, int], table: LaunchTable, candidate: Candidate | None
) -> Iterator[None]:
    """Replace the launch of one kernel in its table; None leaves today's."""
    changed = table[row]
    if candidate is not None:
        tokens, warps, stages = candidate
        changed = changed._replace(tokens=tokens, warps=warps, stages=stages)
    with mock.patch.dict(table, {row: changed}):
        plan_pass.cache_clear()
        yield
    plan_pass.cache_clear()
