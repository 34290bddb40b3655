"""Measure parity, times, peak memory and the copy bandwidth, with all variants interleaved in one
run.
"""

from __future__ import annotations

import ctypes
import gc
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
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
    """Return each variant's median seconds over `repeats` rounds, in each of which all variants run
    in turn.
    """
    return {
        name: timing.seconds
        for name, timing in _timings(variants, repeats, partial(_host_seconds, device)).items()
    }


def interleaved_device_seconds(
    variants: Mapping[str, Run], device: str, repeats: int
) -> dict[str, Timing]:
    """Return the times that the variants take on the GPU with none of their data in L2; on a CPU
    those of the host.

    Before each run a large tensor is read, which also writes back what the run before left in the
    cache: a run pays for its own traffic only. Meanwhile the host launches what follows, so that
    short kernels are not measured together with their launches.
    """
    if device != 'cuda':
        return _timings(variants, repeats, partial(_host_seconds, device))
    return _timings(
        variants, repeats, partial(_event_seconds, torch.zeros(EVICTING_BYTES // 4, device=device))
    )


def _timings(
    variants: Mapping[str, Run], repeats: int, clock: Callable[[Run], float]
) -> dict[str, Timing]:
    """Time the variants in turn, after a tenth of the rounds to warm up."""
    rounds = [
        {name: clock(run) for name, run in variants.items()} for _ in range(repeats // 10 + repeats)
    ]
    found = {}
    for name in variants:
        low, middle, high = np.percentile(
            [seconds[name] for seconds in rounds[repeats // 10 :]], [25, 50, 75]
        )
        found[name] = Timing(float(middle), float(high - low))
    return found


def measured(
    variants: Mapping[str, Mapping[str, Run]], device: str, repeats: int
) -> tuple[dict[str, dict[str, float]], dict[str, int]]:
    """Return the seconds of each pass of each variant, and the peak bytes of its last pass; on a
    GPU with autocast.

    Args:
        variants: runs by variant and then by pass, as 'forward'.

    Returns:
        Seconds by pass and then by variant, bytes by variant.
    """
    passes = next(iter(variants.values()))
    with torch.autocast(device, torch.float16, enabled=device == 'cuda'):
        memory = {name: peak_bytes([*runs.values()][-1], device) for name, runs in variants.items()}
        seconds = {
            what: interleaved_seconds(
                {name: runs[what] for name, runs in variants.items()}, device, repeats
            )
            for what in passes
        }
    return seconds, memory


def graphed(run: Run, device: str) -> Run:
    """Return a function that replays `run` from a CUDA graph, without its host time; on a CPU
    return `run`.
    """
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
    """Return the value of one variant over that of another, or 'absent' if one was not measured.

    On a CPU, a small need of memory may be met by what was freed before: 'too small' to be compared
    with.
    """
    if not {above, below} <= values.keys():
        return 'absent'
    return values[above] / values[below] if values[below] else 'too small'


def time_ratios(seconds: dict[str, dict[str, float]], peers: list[str]) -> dict[str, float | str]:
    """Return the columns 'PEER, WHAT': the peer's time over ours. `seconds`: by WHAT, then by
    variant.
    """
    return {
        f'{peer}, {what}': ratio(times, peer, 'ours')
        for peer in peers
        for what, times in seconds.items()
    }


def peak_bytes(run: Run, device: str) -> int:
    """Return the memory that one run needs in addition: of CUDA's allocator, or of the process's
    resident set.
    """
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
    """Return the bytes that a plain copy reads and writes per second: the upper bound of a
    memory-bound kernel.
    """
    source = torch.ones(COPIED_BYTES[device] // 4, device=device)
    target = source.clone()  # in memory that has been touched
    timings = interleaved_device_seconds({'copy': lambda: target.copy_(source)}, device, repeats)
    return 2 * COPIED_BYTES[device] / timings['copy'].seconds


def check_parity(case: str, runs: Mapping[str, Callable[[], Sequence[Tensor]]]) -> None:
    """Raise ParityError unless every variant's tensors equal those of the first one within PARITY,
    without tf32.
    """
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        (first, expected), *others = ((name, run()) for name, run in runs.items())
    for name, found in others:
        for index, (a, b) in enumerate(zip(found, expected, strict=True)):
            error = ((a.double() - b.double()).norm() / b.double().norm()).item()
            if not error < PARITY:
                raise ParityError(
                    f'{case}: tensor {index} of {name!r} differs from that of {first!r} '
                    f'by {error:.1e}'
                )


def _event_seconds(other: Tensor, run: Run) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    other.sum()
    start.record()
    run()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / 1e3


def _host_seconds(device: str, run: Run) -> float:
    synchronize = torch.cuda.synchronize if device == 'cuda' else lambda: None
    synchronize()
    start = time.perf_counter()
    run()
    synchronize()
    return time.perf_counter() - start


def _resident(field: str) -> int:
    line = next(
        line
        for line in Path('/proc/self/status').read_text().splitlines()
        if line.startswith(field)
    )
    return int(line.split()[1]) * 1024
