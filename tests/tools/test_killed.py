"""Trainings that are killed at random moments leave no process and nothing half written, and always resume."""

import os
import random
import signal
import time
from pathlib import Path

import psutil
import pytest

from tests.helpers.exact import assert_same
from tests.helpers.small_training import saved

pytestmark = pytest.mark.slow

KILLS = int(os.environ.get('MMPOLA_KILLS', '2'))
OPTIONS = (
    '--cfg-options',
    'train_dataloader.num_workers=2',
    'val_dataloader.num_workers=1',
    'train_cfg.val_interval=1',
)


def shared_memory():
    return {path.name for path in Path('/dev/shm').iterdir() if path.name.startswith(('torch_', 'sem.'))}


def gone(processes):
    """Wait until none of the processes runs."""
    deadline = time.monotonic() + 60
    while alive := [process for process in processes if process.is_running() and process.status() != 'zombie']:
        if time.monotonic() > deadline:
            return alive
        time.sleep(0.1)
    return []


@pytest.mark.skipif(not Path('/dev/shm').is_dir(), reason='looks for shared memory in /dev/shm')
def test_killed_at_random_moments(tiny_config, run_tool, start_tool, tmp_path):
    run_tool('train.py', tiny_config, '--work-dir', tmp_path / 'whole', *OPTIONS)
    work, generator, before = tmp_path / 'work', random.Random(0), shared_memory()
    for _ in range(KILLS):
        process = start_tool('train.py', tiny_config, '--work-dir', work, '--resume', *OPTIONS)
        for line in process.stdout:
            if 'Epoch(train)' in line or 'training is finished' in line:
                break
        time.sleep(generator.uniform(0, 4))
        workers = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
        process.send_signal(signal.SIGKILL)
        process.stdout.read()  # ends when nobody holds the output any more
        process.wait()
        assert gone(workers) == []
        assert shared_memory() <= before
    run_tool('train.py', tiny_config, '--work-dir', work, '--resume', *OPTIONS)
    assert_same(saved(work / 'epoch_3.pth'), saved(tmp_path / 'whole' / 'epoch_3.pth'))
    assert not list(work.glob('*.partial'))
