"""Measure parity, times and peak memory; all variants take turns in one run."""

from __future__ import annotations

import ctypes
import gc
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

Run = Callable[[], Any]

PARITY = 1e-4
"""Largest relative error between variants in float32."""


class ParityError(Exception):
    """Variants do not compute the same function; their times would mean nothing."""


def interleaved_seconds(variants: Mapping[str, Run], device: str, repeats: int) -> dict[str, float]:
    """Return each variant's median seconds; in each of `repeats` rounds all variants take turns.

    A tenth of the rounds comes before, to warm up.
    """
    warmup = repeats // 10
    rounds: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(warmup + repeats):
        for name, run in variants.items():
            rounds[name].append(seconds_of(run, device))
    return {name: float(np.median(seconds[warmup:])) for name, seconds in rounds.items()}


def seconds_of(run: Run, device: str) -> float:
    """Time a run on the host, until the device has finished."""
    if device == 'cuda':
        torch.cuda.synchronize()
    start = time.perf_counter()
    run()
    if device == 'cuda':
        torch.cuda.synchronize()
    return time.perf_counter() - start


def measured(
    variants: Mapping[str, Mapping[str, Run]], device: str, repeats: int
) -> tuple[dict[str, dict[str, float]], dict[str, int]]:
    """Return the seconds of each pass of each variant, and the peak bytes of its last pass.

    On a GPU, the passes run with autocast to float16.

    Args:
        variants: runs by variant and then by pass, such as 'forward'.
        device: 'cuda' or 'cpu'.
        repeats: number of rounds.

    Returns:
        Seconds by pass and then by variant, bytes by variant.
    """
    passes = list(next(iter(variants.values())))
    memory = {}
    seconds = {}
    with torch.autocast(device, torch.float16, enabled=device == 'cuda'):
        for name, runs in variants.items():
            memory[name] = peak_bytes(runs[passes[-1]], device)
        for what in passes:
            runs_of_pass = {name: runs[what] for name, runs in variants.items()}
            seconds[what] = interleaved_seconds(runs_of_pass, device, repeats)
    return seconds, memory


def ratio(values: Mapping[str, float], above: str, below: str) -> float | str:
    """Return one variant's value over another's, or 'absent' if one was not measured.

    On a CPU, a small need of memory may be met by what was freed before. Then the ratio is
    'too small'.
    """
    if above not in values or below not in values:
        return 'absent'
    if values[below] == 0:
        return 'too small'
    return values[above] / values[below]


def time_ratios(seconds: dict[str, dict[str, float]], peers: list[str]) -> dict[str, float | str]:
    """Return the columns 'PEER, PASS': the peer's time over ours.

    Args:
        seconds: by pass and then by variant; ours is called 'ours'.
        peers: names of the other variants.
    """
    columns = {}
    for peer in peers:
        for what, times in seconds.items():
            columns[f'{peer}, {what}'] = ratio(times, peer, 'ours')
    return columns


def peak_bytes(run: Run, device: str) -> int:
    """Return the memory that a second run needs in addition, see `extra_bytes`."""
    run()
    return extra_bytes(run, device)


def extra_bytes(run: Run, device: str) -> int:
    """Run once and return the peak of the memory that this takes in addition.

    On a GPU this is CUDA's allocator's, on a CPU that of the process's resident set.
    """
    gc.collect()
    if device == 'cuda':
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run()
        return torch.cuda.max_memory_allocated() - before
    ctypes.CDLL(None).malloc_trim(0)  # what earlier runs freed would hide this one's need (glibc)
    before = kilobytes('/proc/self/status', 'VmRSS')
    Path('/proc/self/clear_refs').write_text('5')  # resets the high-water mark (Linux)
    run()
    return 1024 * (kilobytes('/proc/self/status', 'VmHWM') - before)


def kilobytes(file: str, field: str) -> int:
    """Return a field of a file in /proc: 'VmRSS' is the present size, 'VmHWM' the peak."""
    for line in Path(file).read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1])
    raise RuntimeError(f'{file}: expected the field {field}, got none')


def check_parity(case: str, runs: Mapping[str, Callable[[], Sequence[Tensor]]]) -> None:
    """Raise ParityError unless every variant's tensors equal the first one's within `PARITY`.

    The runs are without tf32.
    """
    torch.backends.cuda.matmul.allow_tf32 = False
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        results = {name: run() for name, run in runs.items()}
    first = next(iter(results))
    expected = results.pop(first)
    for name, tensors in results.items():
        for index, (tensor, reference) in enumerate(zip(tensors, expected, strict=True)):
            difference = (tensor.double() - reference.double()).norm()
            error = (difference / reference.double().norm()).item()
            if not error < PARITY:  # also true for NaN
                raise ParityError(
                    f'{case}: tensor {index} of {name!r} differs from that of {first!r} '
                    f'by {error:.1e}'
                )
