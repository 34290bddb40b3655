"""Measure the rows of a part in child processes: compilers side by side, times one by one."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from itertools import groupby

from benchmarks.gpu import networks, operator, sweep
from benchmarks.records import Row
from mmpola.kernels.child_processes import Child, share

COMPILED_VARIANTS: dict[str, Callable[[Row, bool], list[str]]] = {
    'networks': networks.compiled_variants,
    'operator': operator.compiled_variants,
    'launches': sweep.compiled_variants,
}
"""What is compiled before a row is timed. A row is not timed if 'ours' cannot be compiled."""


def measure(
    part: str, rows: list[Row], children: list[Child], dry_run: bool
) -> Generator[Row, None, None]:
    """Check or time rows, and yield each as soon as it is known.

    Args:
        part: 'checks', or a key of COMPILED_VARIANTS.
        rows: those of a group are neighbours. What a group needs is compiled before it is timed.
        children: idle ones may be stopped; they start again when they are needed.
        dry_run: as for the rows.
    """
    if part == 'checks':
        yield from results(share('check kernels', [job(row) for row in rows], children))
        return
    for _, group in groupby(rows, group_of):
        yield from time_group(part, list(group), children, dry_run)


def group_of(row: Row) -> list[str]:
    """Return what the rows of a group have in common."""
    return [row.get(name, '') for name in ('kernel', 'pass', 'mode', 'dtype')]


def time_group(part: str, rows: list[Row], children: list[Child], dry_run: bool) -> Iterator[Row]:
    """Compile side by side what rows need, then let one process time each row alone on the GPU."""
    jobs = [job(row) for row in rows]
    compiled = []
    for number, row in enumerate(rows):
        for variant in COMPILED_VARIANTS[part](row, dry_run):
            compiled.append(job(row) | {'number': number, 'variant': variant})
    for found in share(f'compile {part}', compiled, children):
        if found['failure']:
            jobs[found['number']]['failures'][found['variant']] = found['failure']
    right = []
    for found in jobs:
        if 'ours' in found['failures']:
            yield found['row'] | {'failure': found['failures']['ours']}
        else:
            right.append(found)
    for child in children[1:]:
        child.stop()  # so that the GPU's memory is free
    yield from results(share(f'time {part}', right, children[:1]))


def job(row: Row) -> Row:
    """Return what a child gets for a row.

    Its keys are the row and its number, the variant that is compiled, or why variants could not be
    compiled, and 'failure'.
    """
    return {'row': row, 'number': 0, 'variant': '', 'failures': {}, 'failure': ''}


def results(jobs: Iterator[Row]) -> Iterator[Row]:
    """Yield the rows of jobs that are done."""
    for found in jobs:
        yield found['row'] | {'failure': found['failure']}
