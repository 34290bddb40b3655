"""The processes of a run: the place of each, and what they decide together."""

from __future__ import annotations

import gc
import os
import signal
import sys
from functools import cache
from typing import NamedTuple

import torch
from mmengine.device import get_device
from mmengine.dist import all_reduce, get_world_size

PROCESS_VARIABLES = {
    'pytorch': ('RANK', 'LOCAL_RANK', 'WORLD_SIZE'),
    'slurm': ('SLURM_PROCID', 'SLURM_LOCALID', 'SLURM_NTASKS'),
    'mpi': ('OMPI_COMM_WORLD_RANK', 'OMPI_COMM_WORLD_LOCAL_RANK', 'OMPI_COMM_WORLD_SIZE'),
}
"""Environment variables of a process's `Place` by launcher."""

PR_SET_PDEATHSIG = 1
"""Option of prctl(2): the signal that the kernel sends a process when its parent dies."""


class Place(NamedTuple):
    """Rank of a process in its run, its rank on its machine, and the number of processes."""

    rank: int
    local_rank: int
    processes: int


def place(launcher: str) -> Place:
    """Return the place of this process, also before the process group is initialised."""
    if launcher not in PROCESS_VARIABLES:
        return Place(rank=0, local_rank=0, processes=1)
    rank, local_rank, processes = PROCESS_VARIABLES[launcher]
    return Place(
        rank=int(os.environ.get(rank, 0)),
        local_rank=int(os.environ.get(local_rank, 0)),
        processes=int(os.environ.get(processes, 1)),
    )


def print_once(text: str, launcher: str) -> None:
    """Print text in the first process of a run, also before the process group is initialised."""
    if place(launcher).rank == 0:
        print(text)


def any_process(condition: bool) -> bool:
    """Return whether a condition is true in any process of the run.

    All processes must call it; this synchronises their GPUs.
    """
    if get_world_size() == 1:
        return condition
    flag = torch.tensor(int(condition), device=get_device())
    all_reduce(flag, op='max')
    return bool(flag)


def leave_process_group() -> None:
    """Destroy the process group of a run that has ended well, if there is one.

    Otherwise its threads run on while Python is torn down, and now and then one of them aborts the
    process. They end here unless something still holds the runner or its model. After an exception
    this could wait forever for the other processes.
    """
    if torch.distributed.is_initialized():
        gc.collect()
        torch.distributed.destroy_process_group()


def is_killed_worker(error: BaseException) -> bool:
    """Whether an exception is torch's report that a worker of a loader has died.

    A signal handler raises it, so it interrupts whatever the main process is doing.
    """
    return isinstance(error, RuntimeError) and str(error).startswith('DataLoader worker (pid')


@cache
def end_children_with_this_process() -> None:
    """Make every process that is forked from now on end when its parent dies.

    When its parent is killed, a data loader's worker would wait for ever for a reader of its queue,
    and hold the parent's output open. If torchrun has started this process, it gets SIGTERM when
    torchrun dies. This needs Linux; elsewhere nothing is done.
    """
    if sys.platform != 'linux':
        return
    import ctypes

    prctl = ctypes.CDLL(None).prctl
    parent = os.getpid()

    def note_parent() -> None:  # a child may fork too
        nonlocal parent
        parent = os.getpid()

    def end_with_parent(number: signal.Signals) -> None:
        failed = prctl(PR_SET_PDEATHSIG, number) != 0
        died_before = os.getppid() != parent
        if failed or died_before:
            os.kill(os.getpid(), number)

    os.register_at_fork(before=note_parent, after_in_child=lambda: end_with_parent(signal.SIGKILL))
    if 'TORCHELASTIC_RUN_ID' in os.environ:
        parent = os.getppid()
        end_with_parent(signal.SIGTERM)
