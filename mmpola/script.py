"""Imported by every script before anything else: Ctrl-C, text and OpenMP, from the first import on.

Importing torch, MMEngine and mmdet takes seconds, before `run_main` is called. torch reads OpenMP's
variables when it is loaded: waiting threads sleep instead of spinning, because on cores that others
use too, training is then several times faster. Their number is that of the cores this process may
use, divided by the processes that torchrun started here. Variables that the user has set stay as
they are.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import sys
from pathlib import Path
from typing import Any

CPU_QUOTA = Path('/sys/fs/cgroup/cpu.max')
"""Microseconds of CPU time per period of so many microseconds, or 'max': the limit of a container."""


def usable_cores() -> int:
    """Return how many cores this process may use: its affinity, and the quota of its container."""
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count() or 1
    )
    try:
        quota, period = CPU_QUOTA.read_text().split()
        return max(1, min(cores, int(quota) // int(period)))
    except (OSError, ValueError):  # no quota
        return cores


def set_environment() -> None:
    """Set the variables of OpenMP that are not set yet."""
    processes = int(os.environ.get('LOCAL_WORLD_SIZE', '1'))
    os.environ.setdefault('OMP_NUM_THREADS', str(max(1, usable_cores() // processes)))
    os.environ.setdefault('OMP_WAIT_POLICY', 'PASSIVE')
    os.environ.setdefault('GOMP_SPINCOUNT', '0')


def prepare() -> None:
    """End with one line on Ctrl-C until `run_main` is called, and without a home directory; print in any locale.

    Until then nothing is collected as garbage: to look for it would take a fifth of the time of the
    imports.
    """
    if (
        multiprocessing.current_process().name == 'MainProcess'
    ):  # spawned workers import the script, but run no main
        gc.disable()
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, 'reconfigure'):
            stream.reconfigure(errors='backslashreplace')
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)
    try:
        Path.home()
    except RuntimeError:  # MMEngine cannot be imported: yapf looks for its cache
        sys.exit(
            'error: HOME: expected a folder, got none, and this user has no home directory; set HOME'
        )


def _end(number: int, frame: Any) -> None:
    os.write(2, b'interrupted\n')
    os._exit(130)  # `messages.CTRL_C`; some packages take an exception for a failed import


set_environment()
if 'torch' not in sys.modules:  # else this is no script: a test has loaded one
    prepare()
