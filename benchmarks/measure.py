"""Parity, times, peak memory, the copy bandwidth: the same machine state for all variants, medians within one run."""

from __future__ import annotations

import ctypes
import gc
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

Run = Callable[[], object]

PARITY = 1e-4
"""Largest relative error between variants in float32."""

COPIED_BYTES = {'cuda': 2**30, 'cpu': 2**27}
"""Of the tensor that the copy bandwidth is measured with: far more than any cache holds."""


class ParityError(Exception):
    """Variants do not compute the same function; their times would mean nothing."""


def interleaved_seconds(
    variants: Mapping[str, Run], device: str, repeats: int, *, warm_up: int = 2
) -> dict[str, float]:
    """Median seconds of each variant over `repeats` rounds in which every variant runs once, after `warm_up` rounds."""
    times: dict[str, list[float]] = {name: [] for name in variants}
    for repeat in range(warm_up + repeats):
        for name, run in variants.items():
            _synchronize(device)
            start = time.perf_counter()
            run()
            _synchronize(device)
            if repeat >= warm_up:
                times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def time_ratios(seconds: dict[str, dict[str, float]], peers: list[str]) -> dict[str, float | str]:
    """Columns 'PEER, WHAT': the peer's time over ours, or 'absent'; seconds by what was timed, then by variant."""
    return {
        f'{peer}, {what}': times[peer] / times['ours'] if peer in times else 'absent'
        for peer in peers
        for what, times in seconds.items()
    }


def peak_bytes(run: Run, device: str) -> int:
    """Memory that one run needs on top of what is held before it: CUDA's allocator, or the process's resident set."""
    run()
    gc.collect()
    if device == 'cuda':
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run()
        return torch.cuda.max_memory_allocated() - before
    ctypes.CDLL(None).malloc_trim(0)  # what earlier runs freed would hide this one's need (glibc)
    before = _resident('VmRSS')
    Path('/proc/self/clear_refs').write_text('5')  # resets the high-water mark (Linux)
    run()
    return _resident('VmHWM') - before


def copy_bandwidth(device: str, repeats: int) -> float:
    """Bytes read and written per second by a plain copy: the roof of a memory-bound kernel."""
    source = torch.ones(COPIED_BYTES[device] // 4, device=device)
    target = torch.empty_like(source)
    seconds = interleaved_seconds({'copy': lambda: target.copy_(source)}, device, repeats)
    return 2 * COPIED_BYTES[device] / seconds['copy']


def check_parity(case: str, results: dict[str, Sequence[Tensor]]) -> None:
    """Raise ParityError unless every variant's tensors are the first one's, within PARITY."""
    (first, expected), *others = results.items()
    for name, found in others:
        for index, (a, b) in enumerate(zip(found, expected, strict=True)):
            error = ((a.double() - b.double()).norm() / b.double().norm()).item()
            if not error < PARITY:
                raise ParityError(f'{case}: tensor {index} of {name!r} differs from that of {first!r} by {error:.1e}')


def _resident(field: str) -> int:
    line = next(line for line in Path('/proc/self/status').read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024


def _synchronize(device: str) -> None:
    if device == 'cuda':
        torch.cuda.synchronize()
