"""Set the variables of OpenMP, which torch reads when it is loaded; scripts import this first.

Waiting threads sleep instead of spinning, which makes training several times faster on cores that
other programs use too. The number of threads is the number of cores that this process may use,
divided by the number of processes that torchrun started on this machine. Variables that the user
has set stay as they are.
"""

from __future__ import annotations

import os
from pathlib import Path

CPU_QUOTA = Path('/sys/fs/cgroup/cpu.max')
"""The limit of a container: microseconds of CPU time, or 'max', per period of microseconds."""


def usable_cores() -> int:
    """Return how many cores this process may use, by its affinity and its container's quota."""
    if hasattr(os, 'sched_getaffinity'):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    try:
        quota, period = CPU_QUOTA.read_text().split()
        return max(1, min(cores, int(quota) // int(period)))
    except (OSError, ValueError):  # no quota
        return cores


def set_environment() -> None:
    """Set the variables of OpenMP that are not set yet."""
    processes = int(os.environ.get('LOCAL_WORLD_SIZE', '1'))
    threads = max(1, usable_cores() // processes)
    os.environ.setdefault('OMP_NUM_THREADS', str(threads))
    os.environ.setdefault('OMP_WAIT_POLICY', 'PASSIVE')
    os.environ.setdefault('GOMP_SPINCOUNT', '0')


set_environment()
