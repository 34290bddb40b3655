"""The processes beside this one: some compile kernels without using the GPU, one checks them on
it.
"""

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

from benchmarks.gpu.checks import Call, check
from benchmarks.gpu.launches import Binary, compile_only
from mmpola.messages import first_line
from mmpola.ops.triton.tables import LaunchTable, use_table

CHECK_SECONDS = 60.0
"""After which a check is given up; most take less than one, the longest compile kernels that no
worker did.
"""

COMPILING = {'TRITON_INTERPRET': '0', 'CUDA_VISIBLE_DEVICES': '', 'OMP_NUM_THREADS': '1'}
"""The environment in which processes that compile are started, also in a dry run."""


def start_pool(workers: int) -> ProcessPoolExecutor:
    """Return a pool of processes that take jobs in their order; each is started when a job is
    submitted.
    """
    return ProcessPoolExecutor(workers, get_context('spawn'), _prepare)


def _prepare() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started this one
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def compile_call(capability: tuple[int, int], call: Call, launches: LaunchTable) -> list[Binary]:
    """Compile all kernels of a call with these launches, or the current ones for kernels without
    one.
    """
    short = call.shortened()
    with use_table(launches):
        return compile_only(partial(short.run, short.problem(torch.device('cpu'))), capability)


class Checker:
    """A process that checks kernels: one that hangs or leaves the GPU unusable ends that process,
    and not this one.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._started: tuple[ProcessPoolExecutor, int] | None = None  # and the process's id

    def check(self, call: Call, launches: LaunchTable) -> dict[str, Any]:
        """Return `checks.check` of a call with these launches, or a failure if it does not end as
        it should.
        """
        try:
            if self._started is None:
                pool = start_pool(1)
                self._started = pool, pool.submit(os.getpid).result()
            return (
                self._started[0].submit(_check, self._device, call, launches).result(CHECK_SECONDS)
            )
        except TimeoutError:
            failure = f'the check did not end within {CHECK_SECONDS:g} s'
        except BrokenProcessPool:
            self._started, failure = None, 'the check ended its process'
        except Exception as error:  # an illegal address spoils every later call of the process
            failure = first_line(error)
        self.close()
        return {'failure': failure}

    def close(self) -> None:
        """End the process; the next check starts another one."""
        if self._started is not None:
            pool, process = self._started
            os.kill(process, signal.SIGKILL)  # a kernel that hangs listens to no other signal
            pool.shutdown()
            self._started = None


def _check(device: torch.device, call: Call, launches: LaunchTable) -> dict[str, Any]:
    with use_table(launches):
        found = check(call, device)
    if device.type == 'cuda':
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()  # the other process measures on the same GPU
    return found
