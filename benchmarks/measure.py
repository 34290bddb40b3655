"""Times and peak memory of interleaved variants: the same machine state for all, medians, ratios within one run."""

from __future__ import annotations

import ctypes
import gc
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

Run = Callable[[], object]


def interleaved_seconds(variants: dict[str, Run], device: str, repeats: int) -> dict[str, float]:
    """Median seconds of each variant over `repeats` rounds in which every variant runs once, after two to warm up."""
    times: dict[str, list[float]] = {name: [] for name in variants}
    for repeat in range(repeats + 2):
        for name, run in variants.items():
            _synchronize(device)
            start = time.perf_counter()
            run()
            _synchronize(device)
            if repeat >= 2:
                times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}


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


def relative_error(ours: torch.Tensor, expected: torch.Tensor) -> float:
    return ((ours.double() - expected.double()).norm() / expected.double().norm()).item()


def _resident(field: str) -> int:
    line = next(line for line in Path('/proc/self/status').read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024


def _synchronize(device: str) -> None:
    if device == 'cuda':
        torch.cuda.synchronize()
