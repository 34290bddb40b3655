"""Processes end with the one that started them."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from tests.helpers.small_training import ROOT

CODE = """
import os, sys, time
from mmpola.engine import processes
if sys.argv[1] == 'watch':
    processes.prctl, processes.WATCH_INTERVAL = None, 0.1
processes.end_children_with_this_process()
child = os.fork()
if child == 0:
    time.sleep(1000)
print(child, flush=True)
time.sleep(1000)
"""


def running(process):
    """Whether a process exists and is not a zombie that waits for its parent."""
    try:
        return Path(f'/proc/{process}/stat').read_text().rpartition(')')[2].split()[0] != 'Z'
    except FileNotFoundError:
        return False


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != 'linux', reason='looks for processes in /proc')
@pytest.mark.parametrize('way', ['prctl', 'watch'])
def test_a_worker_ends_when_its_parent_is_killed(way):
    parent = subprocess.Popen(
        [sys.executable, '-c', textwrap.dedent(CODE), way], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    try:
        worker = int(parent.stdout.readline())
        assert running(worker)
        os.kill(parent.pid, signal.SIGKILL)
        deadline = time.monotonic() + 60
        while running(worker) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not running(worker)
    finally:
        parent.kill()
        parent.wait()
