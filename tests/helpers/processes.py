"""Start processes, a module of tests/helpers in two gloo processes, and wait for processes that end."""

import os
import socket
import subprocess
import sys
import time
from contextlib import suppress

import psutil

from tests.helpers.small_training import ROOT


def environment():
    """One thread per process and a free port, because tests run in parallel."""
    with socket.socket() as free:
        free.bind(('127.0.0.1', 0))
        port = free.getsockname()[1]
    return {**os.environ, 'OMP_NUM_THREADS': '1', 'PYTHONUNBUFFERED': '1', 'PORT': str(port)}


def start(module, *arguments):
    """Run tests/helpers/`module`.py in both processes and return their exit statuses and outputs."""
    common = {
        **environment(),
        'MASTER_ADDR': '127.0.0.1',
        'WORLD_SIZE': '2',
        'PYTHONPATH': str(ROOT),
    }
    common['MASTER_PORT'] = common['PORT']
    processes = [
        subprocess.Popen(
            [sys.executable, '-m', f'tests.helpers.{module}', *map(str, arguments)],
            env={**common, 'RANK': str(rank), 'LOCAL_RANK': str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    outputs = [process.communicate(timeout=600)[0] for process in processes]
    return [process.returncode for process in processes], outputs


def left_of(found):
    """Wait until `found()` is empty, for at most a minute, and return it."""
    deadline = time.monotonic() + 60
    while (left := found()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


def running(processes):
    """Return those of psutil's processes that exist and are not zombies, which wait for their parents."""
    found = []
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            if process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found
