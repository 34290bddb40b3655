"""Measure parity, times, peak memory and copy bandwidth; all variants take turns in one run."""

from __future__ import annotations

import ctypes
import gc
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

Run = Callable[[], Any]

PARITY = 1e-4
"""Largest relative error between variants in float32."""

COPIED_BYTES = {'cuda': 2**30, 'cpu': 2**27}
"""Size of the tensor that is copied to measure the bandwidth: far larger than any cache."""

EVICTING_BYTES = 2**28
"""Size of the tensor that is read to fill a GPU's L2 cache, which has up to 126 MB."""


class Timing(NamedTuple):
    """Median and interquartile range of a variant's times."""

    seconds: float
    spread: float


class ParityError(Exception):
    """Variants do not compute the same function; their times would mean nothing."""


def interleaved_seconds(variants: Mapping[str, Run], device: str, repeats: int) -> dict[str, float]:
    """Return each variant's median seconds; in each of `repeats` rounds all variants take turns."""
    timings = _timings(variants, repeats, lambda run: _host_seconds(device, run))
    return {name: timing.seconds for name, timing in timings.items()}


def interleaved_device_seconds(
    variants: Mapping[str, Run], device: str, repeats: int
) -> dict[str, Timing]:
    """Return the variants' times on the GPU, with none of their data in L2; on a CPU, host times.

    Before each run a large tensor is read, which also writes back what the run before left in the
    cache: a run pays for its own traffic only. Meanwhile the host launches what follows, so that
    short kernels are not measured together with their launches.
    """
    if device != 'cuda':
        return _timings(variants, repeats, lambda run: _host_seconds(device, run))
    evicting = torch.zeros(EVICTING_BYTES // 4, device=device)
    return _timings(variants, repeats, lambda run: _event_seconds(evicting, run))


def _timings(
    variants: Mapping[str, Run], repeats: int, clock: Callable[[Run], float]
) -> dict[str, Timing]:
    """Time the variants in turn, after a tenth of the rounds to warm up."""
    warmup = repeats // 10
    rounds: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(warmup + repeats):
        for name, run in variants.items():
            rounds[name].append(clock(run))
    timings = {}
    for name, seconds in rounds.items():
        low, median, high = np.percentile(seconds[warmup:], [25, 50, 75])
        timings[name] = Timing(float(median), float(high - low))
    return timings


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


def graphed(run: Run, device: str) -> Run:
    """Return a function that replays `run` from a CUDA graph without host time; on a CPU, `run`."""
    if device != 'cuda':
        return run
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):  # compiles, and allocates the libraries' workspaces
            run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


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
    """Return the memory that a run needs in addition.

    On a GPU this is CUDA's allocator's, on a CPU that of the process's resident set.
    """
    run()
    gc.collect()
    if device == 'cuda':
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run()
        return torch.cuda.max_memory_allocated() - before
    ctypes.CDLL(None).malloc_trim(0)  # what earlier runs freed would hide this one's need (glibc)
    before = _memory_of_process('VmRSS')
    Path('/proc/self/clear_refs').write_text('5')  # resets the high-water mark (Linux)
    run()
    return _memory_of_process('VmHWM') - before


def _memory_of_process(field: str) -> int:
    """Return a field of /proc/self/status in bytes: VmRSS is the present size, VmHWM the peak."""
    for line in Path('/proc/self/status').read_text().splitlines():
        if line.startswith(field):
            kilobytes = int(line.split()[1])
            return kilobytes * 1024
    raise RuntimeError(f'/proc/self/status: expected the field {field}, got none')


def copy_bandwidth(device: str, repeats: int) -> float:
    """Return the bytes that a plain copy reads and writes per second.

    No kernel that is limited by memory can be faster.
    """
    source = torch.ones(COPIED_BYTES[device] // 4, device=device)
    target = source.clone()  # in memory that has been touched
    timings = interleaved_device_seconds({'copy': lambda: target.copy_(source)}, device, repeats)
    return 2 * COPIED_BYTES[device] / timings['copy'].seconds


def check_parity(case: str, runs: Mapping[str, Callable[[], Sequence[Tensor]]]) -> None:
    """Raise ParityError unless every variant's tensors equal the first one's within `PARITY`.

    The runs are without tf32.
    """
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


def _event_seconds(evicting: Tensor, run: Run) -> float:
    """Time a run on the GPU after reading a tensor that takes the whole L2 cache."""
    start = torch.cuda.Event(enable_timing=True)
    end = torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    evicting.sum()
    start.record()
    run()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / 1e3


def _host_seconds(device: str, run: Run) -> float:
    """Time a run on the host, until the device has finished."""
    if device == 'cuda':
        torch.cuda.synchronize()
    start = time.perf_counter()
    run()
    if device == 'cuda':
        torch.cuda.synchronize()
    return time.perf_counter() - start
