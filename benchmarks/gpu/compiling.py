"""Compile kernels for the GPU in parallel processes, which do not use the GPU themselves.

This module imports neither torch nor Triton, because a worker must change its environment before they are imported.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.gpu.launches import Binary
    from benchmarks.gpu.problems import Call
    from mmpola.ops.triton.tables import Key

Launches = Mapping['Key', dict[str, int]]


class Compiler:
    """A pool of processes, which takes jobs in their order.

    Args:
        capability: compute capability of the GPU.
        workers: number of processes.
    """

    def __init__(self, capability: tuple[int, int], workers: int) -> None:
        self.capability = capability
        self._pool = ProcessPoolExecutor(workers, get_context('spawn'), initializer=_prepare)

    def submit(self, call: Call, launches: Launches) -> Future[list[Binary]]:
        """Compile all kernels of a call with these launches, or the current ones for kernels without one."""
        return self._pool.submit(_compile, call.shortened(), launches, self.capability)

    def close(self) -> None:
        """Drop the jobs that have not started."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def _prepare() -> None:
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
