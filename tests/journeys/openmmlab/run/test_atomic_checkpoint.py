"""A full disk, at any write, leaves complete checkpoints, and `last_checkpoint` names one of
them.
"""

import errno
import itertools
import os
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from mmengine.config import ConfigDict
from mmengine.hooks import Hook
from mmengine.runner.checkpoint import load_from_local

from mmpola.checkpoint.safe_load import read_checkpoint
from mmpola.openmmlab.results.mistakes import CONFUSION, MISTAKES
from mmpola.openmmlab.run.atomic_checkpoint import AtomicBackend, AtomicCheckpointHook, SaveError
from mmpola.openmmlab.run.final_test import RESULT
from mmpola.openmmlab.screen.curves import CURVES
from mmpola.openmmlab.screen.first_batch import FIRST_BATCH_FILE
from tests.helpers.training import run, saved, small_config

pytestmark = pytest.mark.usefixtures('unformatted_configs')


def files(folder):
    return sorted(
        path.name for path in Path(folder).iterdir() if path.is_file() and path.suffix != '.py'
    )


class NumpyValues(Hook):
    """Puts into the message hub what metrics and data sets of other packages put there."""

    def before_train(self, runner):
        values = {
            'best': np.float64(0.5),
            'palette': np.eye(2),
            'folder': Path('/data'),
            'cfg': ConfigDict(a=(1, 'b')),
        }
        runner.message_hub.update_info('foreign', values)


@pytest.mark.slow
def test_the_newest_and_the_best_are_kept(colours, tmp_path):
    pictures = (FIRST_BATCH_FILE, CURVES, CONFUSION, MISTAKES)
    for name in ('epoch_9.pth', 'interrupted.pth', RESULT, *pictures):
        (tmp_path / f'{name}.partial').write_text('of a run that was killed')
    (tmp_path / 'weights.tar.partial').write_text('a download of the user')
    options = {'default_hooks.checkpoint.max_keep_ckpts': 2}
    run(small_config(colours, tmp_path, epochs=4, options=options), NumpyValues())
    kept = files(tmp_path)
    assert kept[1:] == ['epoch_3.pth', 'epoch_4.pth', 'last_checkpoint', 'weights.tar.partial']
    assert kept[0].startswith('best_accuracy_top1_epoch_')
    assert (tmp_path / 'last_checkpoint').read_text() == f'{tmp_path}/epoch_4.pth'
    assert saved(tmp_path / 'epoch_4.pth')['meta'] == {'epoch': 4, 'iter': 24, 'seed': 0}
    assert_plain(tmp_path / 'epoch_4.pth')


def assert_plain(path):
    """Assert that a file of `NumpyValues` holds tensors and plain values alone.

    Anyone's torch.load(weights_only=True) opens it, so OpenMMLab's inferencers do too.
    """
    assert torch.serialization.get_unsafe_globals_in_checkpoint(path) == []
    # The reader of mmdet's DetInferencer and publish_model.py.
    content = load_from_local(str(path), 'cpu')
    assert content['message_hub']['runtime_info']['foreign'] == {
        'best': 0.5,
        'palette': [[1.0, 0.0], [0.0, 1.0]],
        'folder': '/data',
        'cfg': {'a': (1, 'b')},
    }
    assert content['message_hub']['log_scalars']['train/loss']['log_history'].shape == (24,)
    assert content['state_dict']._metadata


@pytest.mark.slow
def test_a_resumed_run_removes_the_outdated_checkpoints_of_the_first_part(colours, tmp_path):
    keep = {
        'default_hooks.checkpoint.max_keep_ckpts': 2,
        'default_hooks.checkpoint.save_best': None,
    }
    run(small_config(colours, tmp_path, epochs=3, options=keep))
    assert files(tmp_path) == ['epoch_2.pth', 'epoch_3.pth', 'last_checkpoint']
    kept = read_checkpoint(tmp_path / 'epoch_3.pth')['message_hub']['runtime_info']
    assert kept['keep_ckpt_ids'] == [2, 3]
    run(small_config(colours, tmp_path, epochs=4, options=keep), resume=True)
    assert files(tmp_path) == ['epoch_3.pth', 'epoch_4.pth', 'last_checkpoint']


class Rising(Hook):
    """Makes the score of every validation the number of epochs."""

    def after_val_epoch(self, runner, metrics=None):
        metrics['accuracy/top1'] = float(runner.epoch)


@pytest.mark.slow
def test_a_run_that_resumes_in_another_work_dir_removes_no_file_of_the_first(colours, tmp_path):
    first = tmp_path / 'first'
    second = tmp_path / 'second'
    run(small_config(colours, first, epochs=2), Rising())
    before = files(first)
    cfg = small_config(colours, second, epochs=3, options={'load_from': str(first / 'epoch_2.pth')})
    runner = run(cfg, Rising(), resume=True)
    assert files(first) == before
    assert [name for name in files(second) if 'best' in name] == ['best_accuracy_top1_epoch_3.pth']
    assert runner.message_hub.get_info('best_ckpt') == str(
        second / 'best_accuracy_top1_epoch_3.pth'
    )


def fill_disk(monkeypatch, word, after):
    """Raise ENOSPC after `after` writes of files with `word` in their name."""
    sync = os.fsync
    written = itertools.count()

    def full(descriptor):
        if word in os.readlink(f'/proc/self/fd/{descriptor}') and next(written) >= after:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(descriptor)

    monkeypatch.setattr(os, 'fsync', full)


@pytest.mark.slow
@pytest.mark.parametrize(
    ('word', 'after', 'expected'),
    [
        ('epoch_2.pth', 0, ['best_accuracy_top1_epoch_1.pth', 'epoch_1.pth', 'last_checkpoint']),
        ('best_', 1, ['best_accuracy_top1_epoch_1.pth', 'epoch_2.pth', 'last_checkpoint']),
        (
            'last_checkpoint',
            2,
            ['best_accuracy_top1_epoch_1.pth', 'epoch_1.pth', 'epoch_2.pth', 'last_checkpoint'],
        ),
    ],
)
def test_a_full_disk_leaves_the_earlier_checkpoints(
    word, after, expected, colours, tmp_path, monkeypatch
):
    scores = iter([40.0, 50.0, 60.0])  # of the trial and of each epoch
    monkeypatch.setattr(
        'mmpola.pretraining.accuracy.Accuracy.compute_metrics',
        lambda self, results: {'top1': next(scores)},
    )
    fill_disk(monkeypatch, word, after)
    cfg = small_config(
        colours, tmp_path, epochs=2, options={'default_hooks.checkpoint.max_keep_ckpts': 1}
    )
    with pytest.raises(SaveError) as raised:
        run(cfg)
    message = 'could not be written (No space left on device); earlier checkpoints are intact'
    assert re.fullmatch(rf'{tmp_path}/.*{word}.*: {re.escape(message)}', str(raised.value))
    assert files(tmp_path) == expected
    last = Path((tmp_path / 'last_checkpoint').read_text())
    assert last.name in expected
    for name in expected[:-1]:
        read_checkpoint(tmp_path / name)


@pytest.mark.parametrize(
    ('older', 'backend'), [({'backend': 'disk'}, 'mmpola_atomic'), ({'backend': 'local'}, 'local')]
)
def test_the_earlier_name_of_backend_args(older, backend):
    hook = AtomicCheckpointHook(file_client_args=older)
    assert hook.backend_args == {'backend': backend}
    assert hook.file_client_args is None


def test_the_folders_of_a_file_are_made(tmp_path):
    path = tmp_path / 'new folder' / 'a.pth'
    AtomicBackend().put(b'content', path)
    assert path.read_bytes() == b'content'
