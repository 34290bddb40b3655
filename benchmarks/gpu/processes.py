"""The processes beside this one: some compile kernels without using the GPU, one checks them on it.

This module imports neither torch nor Triton, because a process must change its environment before they are imported.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from benchmarks.gpu.launches import Binary
    from benchmarks.gpu.problems import Call
    from mmpola.ops.triton.tables import Key

Launches = Mapping['Key', dict[str, int]]

CHECK_SECONDS = 60.0
"""After which a check is given up; most take less than one, the longest compile kernels that no worker did."""

START_SECONDS = 120.0
"""The same of the first check of a process, which imports torch and Triton."""


class Compiler:
    """A pool of processes that compile, and take jobs in their order.

    Args:
        capability: compute capability of the GPU.
        workers: number of processes; None leaves one core to this process.
    """

    def __init__(self, capability: tuple[int, int], workers: int | None = None) -> None:
        self.capability = capability
        workers = workers or max(1, len(os.sched_getaffinity(0)) - 1)
        self._pool = ProcessPoolExecutor(workers, get_context('spawn'), initializer=_prepare)

    def submit(self, call: Call, launches: Launches) -> Future[list[Binary]]:
        """Compile all kernels of a call with these launches, or the current ones for kernels without one."""
        return self._pool.submit(_compile, call.shortened(), launches, self.capability)

    def close(self) -> None:
        """Drop the jobs that have not started."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def _prepare() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started this one
    os.environ.pop('TRITON_INTERPRET', None)  # of a dry run
    os.environ |= {'CUDA_VISIBLE_DEVICES': '', 'OMP_NUM_THREADS': '1'}


def _compile(call: Call, launches: Launches, capability: tuple[int, int]) -> list[Binary]:
    import torch

    from benchmarks.gpu.launches import compiled_only
    from mmpola.ops.triton.tables import LaunchTable, use_table

    problem = call.problem(torch.device('cpu'))
    with compiled_only(capability) as binaries, use_table(LaunchTable(launches)):
        call.run(problem)
    return binaries


class Checker:
    """A process that checks kernels: one that hangs or leaves the GPU unusable ends that process, and not this one.

    Args:
        device: of the checks, as text.
    """

    def __init__(self, device: str) -> None:
        self._device = device
        self._started: tuple[Any, Connection] | None = None

    def check(self, call: Call, launches: Launches, allowed: float = 1.0) -> dict[str, Any]:
        """Return `correctness.check` of a call with these launches, or a failure if it does not end as it should."""
        seconds = CHECK_SECONDS if self._started else START_SECONDS
        process, pipe = self._started = self._started or self._start()
        try:
            pipe.send((call, launches, allowed))
            if pipe.poll(seconds):
                found, is_usable = pipe.recv()
            else:
                found, is_usable = {'failure': f'the check did not end within {seconds:g} s'}, False
        except (EOFError, OSError):
            process.join()
            found, is_usable = {'failure': f'the check ended its process with status {process.exitcode}'}, False
        if not is_usable:
            self.close()
        return found

    def _start(self) -> tuple[Any, Connection]:
        context = get_context('spawn')
        pipe, other = context.Pipe()
        process = context.Process(target=_serve, args=(other, self._device), daemon=True)
        process.start()
        other.close()  # now of the process alone, so that its end is noticed
        return process, pipe

    def close(self) -> None:
        """End the process; the next check starts another one."""
        if self._started is not None:
            process, pipe = self._started
            process.kill()
            process.join()
            pipe.close()
            self._started = None


def _serve(pipe: Connection, device_name: str) -> None:
    """Check what the pipe names until its other end closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    import torch

    from benchmarks.gpu.correctness import check
    from mmpola.ops.triton.tables import LaunchTable, use_table

    device = torch.device(device_name)
    while True:
        try:
            call, launches, allowed = pipe.recv()
        except EOFError:
            return
        with use_table(LaunchTable(launches)):
            found = check(call, device, allowed)
        try:
            if device.type == 'cuda':
                torch.cuda.synchronize(device)
                torch.cuda.empty_cache()  # the other process measures on the same GPU
        except Exception:  # an illegal address spoils every later call
            pipe.send((found, False))
            return
        pipe.send((found, True))
