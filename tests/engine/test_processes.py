"""Processes end with the one that started them."""

import subprocess
import sys

import psutil
import pytest

from tests.helpers import ROOT
from tests.helpers.processes import left_of, running

CODE = """
import os, time
from mmpola.engine import processes
processes.end_children_with_this_process()
child = os.fork()
if child == 0:
    time.sleep(1000)
print(child, flush=True)
time.sleep(1000)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != 'linux', reason='looks for processes in /proc')
def test_a_worker_ends_when_its_parent_is_killed():
    parent = subprocess.Popen(
        [sys.executable, '-c', CODE], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    try:
        worker = psutil.Process(int(parent.stdout.readline()))
        assert running([worker])
        parent.kill()
        assert not left_of(lambda: running([worker]))
    finally:
        parent.kill()
        parent.wait()
