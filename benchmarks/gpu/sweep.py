"""Time other launches of the attention kernels: the fastest go into their tables.

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

from benchmarks.cases import Case
from benchmarks.measure import Run
from benchmarks.operators import attention_call
from benchmarks.records import Row
from mmpola.ops import polarity_attention
from mmpola.ops.triton import block_of, exp, power
from mmpola.ops.triton.blocks import Launch, LaunchTable
from mmpola.ops.triton.passes import plan_pass

PASSES = ('state', 'output', 'query_gradient', 'key_gradient')
TOKENS = (16, 32, 64, 128)
WARPS = (1, 2, 4, 8)
STAGES = (2, 3)

PRINTED = 5
"""Launches of each kernel that a report shows, besides today's."""

LAUNCHES = {'power': power.LAUNCHES, 'rotary': exp.ROTARY_LAUNCHES}


def launch_rows(feature_map: str, dim: int, dry_run: bool) -> list[Row]:
    """List the launches of each kernel of a feature map, today's first.

    Args:
        feature_map: 'power', or 'rotary' (an ExpMap with rotary tables).
        dim: D, channels of a head.
        dry_run: list today's and one more.
    """
    rows: list[Row] = []
    for kernel in PASSES:
        today = LAUNCHES[feature_map][kernel, block_of(dim)]
        launches = [(today.tokens, today.warps, today.stages)]
        for launch in product(TOKENS, WARPS, STAGES):
            if launch != launches[0]:
                launches.append(launch)
        for launch in launches[:2] if dry_run else launches:
            row: Row = {'map': feature_map, 'D': dim, 'kernel': kernel}
            row['tokens, warps, stages'] = ', '.join(map(str, launch))
            row['today'] = 'yes' if launch == launches[0] else ''
            rows.append(row)
    return rows


def compiled_variants(row: Row, dry_run: bool) -> list[str]:
    """Return what is compiled before a row is timed: its launch."""
    return ['ours']


def compile_launch(row: Row, variant: str, dry_run: bool) -> None:
    """Run a launch once, so that Triton fills its cache on the disk."""
    with step_of(row, dry_run) as step:
        step()


def time_launch(row: Row, failures: dict[str, str], dry_run: bool) -> Row:
    """Time the step of the whole operator in float16, in which one kernel's launch is the row's.

    New launches are checked with `--only checks` once they are in the table.
    """
    milliseconds = 1.0
    with step_of(row, dry_run) as step:
        step()
        if not dry_run:
            milliseconds = triton.testing.do_bench(step, return_mode='median')
    return row | {'step, ms': milliseconds, 'failure': ''}


def fastest(rows: list[Row]) -> list[Row]:
    """Return today's launch of each kernel and the PRINTED fastest others."""
    found = []
    for kernel in PASSES:
        timed = [row for row in rows if row['kernel'] == kernel and not row['failure']]
        timed.sort(key=lambda row: row['step, ms'])
        found += [row for row in timed if row['today']]
        found += [row for row in timed if not row['today']][:PRINTED]
    return found


@contextmanager
def step_of(row: Row, dry_run: bool) -> Iterator[Run]:
    """Yield the step of the operator with the launch of a row."""
    kind = {'power': 'power', 'rotary': 'exp'}[row['map']]
    case = Case('', kind, 2, 200, 334, 1, row['D'])
    if dry_run:
        case = replace(case, batch=1, rows=3, columns=6)
    call = attention_call(case, 'cpu' if dry_run else 'cuda', torch.float16)
    tokens, warps, stages = map(int, row['tokens, warps, stages'].split(', '))
    table = LAUNCHES[row['map']]
    place = (row['kernel'], block_of(row['D']))
    launch = table[place]._replace(tokens=tokens, warps=warps, stages=stages)
    with launched_with(place, table, launch):
        yield call.passes(partial(polarity_attention, backend='triton'))['step']


@contextmanager
def launched_with(place: tuple[str, int], table: LaunchTable, launch: Launch) -> Iterator[None]:
    """Replace the launch of one kernel in its table."""
    with mock.patch.dict(table, {place: launch}):
        plan_pass.cache_clear()
        yield
    plan_pass.cache_clear()
