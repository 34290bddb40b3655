"""Time and peak memory on the GPU; in a dry run both are made up."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
import triton

from benchmarks.measure import Run, extra_bytes, ratio
from benchmarks.records import Row

ROUNDS = 3
"""Rounds in which all variants take turns; in each, a variant runs for about 0.1 s."""


def compare(runs: Mapping[str, Run], dry_run: bool) -> Row:
    """Return our milliseconds and peak GB, each peer's time over ours, and all that was measured.

    Triton's `do_bench` empties the L2 cache before each run and times it with CUDA events.

    Args:
        runs: 'ours' and its peers by name. One that needs too much memory has no times.
        dry_run: whether times and memory are made up, after every variant has run once.
    """
    milliseconds: dict[str, list[float]] = {}
    gigabytes = {}
    for name, run in runs.items():
        try:
            gigabytes[name] = peak_gigabytes(run, dry_run)
        except torch.OutOfMemoryError:
            continue
        milliseconds[name] = []
    for _ in range(ROUNDS):
        for number, name in enumerate(milliseconds, 1):
            if dry_run:
                milliseconds[name].append(float(number))
            else:
                found = triton.testing.do_bench(runs[name], return_mode='median')
                milliseconds[name].append(found)
    medians = {name: float(np.median(found)) for name, found in milliseconds.items()}
    row: Row = {
        'ours, ms': medians.get('ours', 'out of memory'),
        'ours, GB': gigabytes.get('ours', ''),
    }
    for name in runs:
        if name not in medians:
            row[name] = 'out of memory'
        elif name != 'ours':
            row[name] = ratio(medians, name, 'ours')
    row['milliseconds'] = medians
    row['GB'] = gigabytes
    return row


def peak_gigabytes(run: Run, dry_run: bool) -> float:
    """Run twice, which also compiles, and return what memory the second run needs in addition."""
    run()
    if dry_run:
        return 1.0
    torch.cuda.empty_cache()
    return extra_bytes(run, 'cuda') / 1e9
