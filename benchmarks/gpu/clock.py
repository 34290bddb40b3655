"""Time, GPU's work and peak memory on the GPU; in a dry run all are made up."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
import triton
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from benchmarks.measure import Run, extra_bytes, ratio
from benchmarks.records import Row
from mmpola.messages import first_line

ROUNDS = 3
"""Rounds in which all variants take turns; in each, a variant runs for about 0.1 s."""


def compare(runs: Mapping[str, Run], failures: Mapping[str, str], dry_run: bool) -> Row:
    """Return our milliseconds and peak GB, each peer's time over ours, and all that was measured.

    Triton's `do_bench` empties the L2 cache before each run and times it with CUDA events.

    Args:
        runs: 'ours' and its peers by name. One that needs too much memory has no times.
        failures: why others cannot run, by name.
        dry_run: whether times and memory are made up, after every variant has run once.

    Returns:
        Columns, dicts of raw measurements, and 'failure': '' or why the first variant that failed
        cannot run.
    """
    failures = dict(failures)
    gigabytes = {}
    for name, run in runs.items():
        try:
            gigabytes[name] = peak_gigabytes(run, dry_run)
        except torch.OutOfMemoryError:
            continue
        except Exception as error:  # compilers and drivers may raise anything
            failures[name] = first_line(error)
    times: dict[str, list[float]] = {name: [] for name in gigabytes}
    for _ in range(ROUNDS):
        for number, name in enumerate(times, 1):
            if dry_run:
                times[name].append(float(number))
            else:
                times[name].append(triton.testing.do_bench(runs[name], return_mode='median'))
    milliseconds = {name: float(np.median(found)) for name, found in times.items()}
    busy = {}
    for number, name in enumerate(times, 1):
        busy[name] = number / 2 if dry_run else busy_milliseconds(runs[name])

    row: Row = {
        'ours, ms': milliseconds.get('ours', missing('ours', failures)),
        'GPU busy, ms': busy.get('ours', ''),
        'ours, GB': gigabytes.get('ours', ''),
    }
    for name in {**runs, **failures}:
        if name not in milliseconds:
            row[name] = missing(name, failures)
        elif name != 'ours':
            row[name] = ratio(milliseconds, name, 'ours')
    row['milliseconds'] = milliseconds
    row['busy milliseconds'] = busy
    row['GB'] = gigabytes
    row['failure'] = ''
    for name, reason in failures.items():
        row['failure'] = row['failure'] or f'{name}: {reason}'
    return row


def missing(name: str, failures: Mapping[str, str]) -> str:
    """Return what a row says of a variant without times."""
    return 'failed' if name in failures else 'out of memory'


def peak_gigabytes(run: Run, dry_run: bool) -> float:
    """Run twice, which also compiles, and return what memory the second run needs in addition."""
    run()
    if dry_run:
        return 1.0
    torch.cuda.empty_cache()
    return extra_bytes(run, 'cuda') / 1e9


def busy_milliseconds(run: Run) -> float | str:
    """Return the time of all kernels and copies of a run; the rest of it waits for the host.

    Where the driver does not let users count, it is 'not measured'.
    """
    try:
        with profile(activities=[ProfilerActivity.CUDA]) as profiler:
            run()
            torch.cuda.synchronize()
        events = profiler.events() or []
    except RuntimeError:
        return 'not measured'
    microseconds = 0.0
    for event in events:
        if event.device_type == DeviceType.CUDA and not event.is_user_annotation:
            microseconds += event.time_range.elapsed_us()
    return microseconds / 1000 or 'not measured'
