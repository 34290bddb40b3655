"""Sets OpenMP's environment for training on a CPU; imported by scripts before torch, which reads it when it is loaded.

Waiting threads sleep instead of spinning: on cores that others use too, training is then several times faster. The
number of threads is that of the cores this process may use, divided by the processes that torchrun started here.
Variables that the user has set stay as they are.
"""

from __future__ import annotations

import os
from pathlib import Path

CPU_QUOTA = Path('/sys/fs/cgroup/cpu.max')
"""Microseconds of CPU time per period of so many microseconds, or 'max': the limit of a container."""


def usable_cores() -> int:
    """Return how many cores this process may use: its affinity, and the quota of its container."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count() or 1
    try:
        quota, period = CPU_QUOTA.read_text().split()
        return max(1, min(cores, int(quota) // int(period)))
    except (OSError, ValueError):  # no quota
        return cores


def set_environment() -> None:
    """Set the variables that are not set yet."""
    processes = int(os.environ.get('LOCAL_WORLD_SIZE', '1'))
    os.environ.setdefault('OMP_NUM_THREADS', str(max(1, usable_cores() // processes)))
    os.environ.setdefault('OMP_WAIT_POLICY', 'PASSIVE')
    os.environ.setdefault('GOMP_SPINCOUNT', '0')


set_environment()
