"""A run that is killed at any moment leaves no process and no half file, and resumes exactly."""

import os
import random
import signal
import time
from pathlib import Path

import psutil
import pytest

from mmpola.backbones import PolaSwin
from mmpola.checkpoint.load import load_weights
from tests.helpers.configs import SMALL_ARCHS
from tests.helpers.processes import left_of, run_script, running
from tests.helpers.training import assert_same, saved

pytestmark = pytest.mark.usefixtures('unformatted_configs')

KILLS = int(os.environ.get('MMPOLA_KILLS', '1'))
OPTIONS = (
    '--cfg-options',
    'train_dataloader.num_workers=2',
    'val_dataloader.num_workers=1',
    'train_cfg.val_interval=1',
)


def shared_memory():
    return {
        path.name for path in Path('/dev/shm').iterdir() if path.name.startswith(('torch_', 'sem.'))
    }


@pytest.mark.slow
@pytest.mark.skipif(not Path('/dev/shm').is_dir(), reason='looks for shared memory in /dev/shm')
def test_a_killed_run_resumes_and_its_checkpoint_evaluates_and_loads(
    tiny_config, start_tool, tmp_path
):
    work = tmp_path / 'work'
    generator = random.Random(0)
    before = shared_memory()
    for _ in range(KILLS):
        process = start_tool('train.py', tiny_config, '--work-dir', work, '--resume', *OPTIONS)
        for line in process.stdout:
            if 'Epoch(train)' in line:
                break
        time.sleep(generator.uniform(0, 4))
        workers = (
            psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
        )
        process.send_signal(signal.SIGKILL)
        process.stdout.read()  # ends when nobody holds the output any more
        process.wait()
        assert not left_of(lambda workers=workers: running(workers))
        assert not left_of(lambda: shared_memory() - before)
    assert run_script('train', tiny_config, '--work-dir', work, '--resume', *OPTIONS) == 0
    assert run_script('train', tiny_config, '--work-dir', tmp_path / 'whole', *OPTIONS) == 0
    assert_same(saved(work / 'epoch_3.pth'), saved(tmp_path / 'whole' / 'epoch_3.pth'))
    assert not list(work.glob('*.partial'))

    pictures = tmp_path / 'pictures'
    assert (
        run_script(
            'test', tiny_config, work / 'epoch_3.pth', '--show-dir', pictures, '--work-dir', work
        )
        == 0
    )
    assert len(list(pictures.glob('*.jpg'))) == 4

    backbone = PolaSwin(SMALL_ARCHS['mmpola.PolaSwin'], pretrain_img_size=(160, 192))
    report = load_weights(backbone, work / 'epoch_3.pth')
    assert (report.container, report.new) == ('state_dict', [])
    assert len(report.loaded) == len(backbone.state_dict())
