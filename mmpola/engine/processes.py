"""The processes of a run: they end with the one that started them, and decide together."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from functools import cache
from typing import NamedTuple

import torch
from mmengine.device import get_device
from mmengine.dist import all_reduce, get_world_size

PR_SET_PDEATHSIG = 1
"""Option of prctl(2): the signal that the kernel sends a process when its parent dies."""

PROCESS_VARIABLES = {
    'pytorch': ('RANK', 'LOCAL_RANK', 'WORLD_SIZE'),
    'slurm': ('SLURM_PROCID', 'SLURM_LOCALID', 'SLURM_NTASKS'),
    'mpi': ('OMPI_COMM_WORLD_RANK', 'OMPI_COMM_WORLD_LOCAL_RANK', 'OMPI_COMM_WORLD_SIZE'),
}
"""Environment variables of a process's `Place` by launcher."""


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


@cache
def end_children_with_this_process() -> None:
    """Make every process that is forked from now on end when its parent dies.

    When its parent is killed, a data loader's worker would wait for ever for a reader of its queue,
    and hold the parent's output open. If torchrun has started this process, it gets SIGTERM when
    torchrun dies. This needs Linux; elsewhere nothing is done.
    """
    if sys.platform != 'linux':
        return
    parent = os.getpid()

    def note_parent() -> None:  # a child may fork too
        nonlocal parent
        parent = os.getpid()

    os.register_at_fork(before=note_parent, after_in_child=lambda: end_with(parent, signal.SIGKILL))
    if 'TORCHELASTIC_RUN_ID' in os.environ:
        end_with(os.getppid(), signal.SIGTERM)


def end_with(parent: int, number: signal.Signals) -> None:
    """Make this process get the signal `number` when its parent process, `parent`, dies."""
    failed = ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number) != 0
    died_before = os.getppid() != parent
    if failed or died_before:
        os.kill(os.getpid(), number)


def any_process(condition: bool) -> bool:
    """Return whether a condition is true in any process of the run.

    All processes must call it; this synchronises their GPUs.
    """
    if get_world_size() == 1:
        return condition
    flag = torch.tensor(int(condition), device=get_device())
    all_reduce(flag, op='max')
    return bool(flag)
