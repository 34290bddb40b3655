"""Processes beside this one: some compile kernels without using the GPU, one checks them on it."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ProcessPoolExecutor, TimeoutError
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from multiprocessing import get_context, parent_process
from threading import Thread
from typing import Any

import torch

from benchmarks.gpu.checks import CheckedCall, check_call
from benchmarks.gpu.launches import Binary, compile_only
from mmpola.messages import first_line
from mmpola.ops.triton.tables import LaunchTable, use_table

CHECK_SECONDS = 60.0
"""Seconds after which a check is given up.

Most take less than one; the longest also compile their kernels.
"""

COMPILING = {'TRITON_INTERPRET': '0', 'CUDA_VISIBLE_DEVICES': '', 'OMP_NUM_THREADS': '1'}
"""The environment in which processes that compile are started, also in a dry run."""


def start_pool(workers: int) -> ProcessPoolExecutor:
    """Return a pool of processes; each is started when a job is submitted."""
    return ProcessPoolExecutor(workers, get_context('spawn'), _prepare_worker)


def _prepare_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started this one
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def compile_call(
    capability: tuple[int, int], call: CheckedCall, launches: LaunchTable
) -> list[Binary]:
    """Compile all kernels of a call with these launches; others have the current ones."""
    short = call.shortened()
    problem = short.problem(torch.device('cpu'))
    with use_table(launches):
        return compile_only(partial(short.run, problem), capability)


class Checker:
    """Checks kernels in a process of its own.

    A kernel that hangs or leaves the GPU unusable ends that process, and not this one.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool: ProcessPoolExecutor | None = None
        self._process_id = 0

    def check(self, call: CheckedCall, launches: LaunchTable) -> dict[str, Any]:
        """Return `check_call` of a call with these launches.

        A check that does not end as it should is a failure, and ends the process.
        """
        try:
            if self._pool is None:
                pool = start_pool(1)
                self._process_id = pool.submit(os.getpid).result()
                self._pool = pool
            checking = self._pool.submit(_check_in_worker, self._device, call, launches)
            return checking.result(CHECK_SECONDS)
        except TimeoutError:
            failure = f'the check did not end within {CHECK_SECONDS:g} s'
        except BrokenProcessPool:
            failure = 'the check ended its process'
            self._pool = None
        except Exception as error:  # an illegal address spoils every later call of the process
            failure = first_line(error)
        self.close()
        return {'failure': failure}

    def close(self) -> None:
        """End the process; the next check starts another one."""
        if self._pool is None:
            return
        os.kill(self._process_id, signal.SIGKILL)  # a kernel that hangs heeds no other signal
        self._pool.shutdown()
        self._pool = None


def _check_in_worker(
    device: torch.device, call: CheckedCall, launches: LaunchTable
) -> dict[str, Any]:
    with use_table(launches):
        found = check_call(call, device)
    if device.type == 'cuda':
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()  # the other process measures on the same GPU
    return found
