"""Measure the rows of a part in child processes: compilers side by side, times one by one."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence

from benchmarks.gpu import networks, operator, sweep
from benchmarks.records import Row
from mmpola.kernels.children import run_jobs

COMPILED_VARIANTS: dict[str, Callable[[Row, bool], list[str]]] = {
    'networks': networks.compiled_variants,
    'operator': operator.compiled_variants,
    'launches': sweep.compiled_variants,
}
"""What is compiled before a row is timed. A row is not timed if 'ours' cannot be compiled."""


def measure(
    part: str, rows: list[Row], command: Sequence[str], count: int, dry_run: bool
) -> Generator[Row, None, None]:
    """Check or time rows, first those that compile nothing; yield each as soon as it is known.

    Args:
        part: 'checks', or a key of COMPILED_VARIANTS.
        rows: what tells them from others.
        command: starts a child process; task, 'dry' or '' and jobs are appended.
        count: number of processes that check or compile side by side.
        dry_run: as for the rows.
    """
    mode = 'dry' if dry_run else ''
    if part == 'checks':
        for row, found in run_jobs([*command, 'check kernels', mode], rows, count):
            yield row | found
        return
    quick = [row for row in rows if not COMPILED_VARIANTS[part](row, dry_run)]
    slow = [row for row in rows if COMPILED_VARIANTS[part](row, dry_run)]
    for group in (quick, slow):
        jobs = []
        for number, row in enumerate(group):
            for variant in COMPILED_VARIANTS[part](row, dry_run):
                jobs.append({'row': row, 'number': number, 'variant': variant})
        failures: list[dict[str, str]] = [{} for _ in group]
        for job, found in run_jobs([*command, f'compile {part}', mode], jobs, count):
            if 'failure' in found:
                failures[job['number']][job['variant']] = found['failure']
        jobs = []
        for row, failed in zip(group, failures, strict=True):
            if 'ours' in failed:
                yield row | {'failure': failed['ours']}
            else:
                jobs.append({'row': row, 'failures': failed})
        for job, found in run_jobs([*command, f'time {part}', mode], jobs):
            yield job['row'] | found
