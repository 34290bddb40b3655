"""A full disk, at any write, leaves complete checkpoints, and `last_checkpoint` names one of
them.
"""

import errno
import itertools
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from mmengine.config import ConfigDict
from mmengine.hooks import Hook
from mmengine.runner.checkpoint import load_from_local

from mmpola.checkpoint.safe_load import read_checkpoint
from mmpola.engine.hooks.atomic_checkpoint import AtomicBackend, AtomicCheckpointHook, SaveError
from tests.helpers.refusals import refusal
from tests.helpers.training import run, saved, small_config

pytestmark = pytest.mark.usefixtures('unformatted_configs')


def files(folder):
    return sorted(
        path.name for path in Path(folder).iterdir() if path.is_file() and path.suffix != '.py'
    )


@pytest.mark.slow
def test_the_newest_and_the_best_are_kept(colours, tmp_path):
    written = [
        'best_accuracy_top1_epoch_9.pth',
        'epoch_9.pth',
        'interrupted.pth',
        'last_checkpoint',
    ]
    for name in written:
        (tmp_path / f'{name}.partial').write_text('of a run that was killed')
    (tmp_path / 'weights.tar.partial').write_text('a download of the user')
    run(
        small_config(
            colours, tmp_path, epochs=4, options={'default_hooks.checkpoint.max_keep_ckpts': 2}
        )
    )
    kept = files(tmp_path)
    assert kept[1:] == ['epoch_3.pth', 'epoch_4.pth', 'last_checkpoint', 'weights.tar.partial']
    assert kept[0].startswith('best_accuracy_top1_epoch_')
    assert (tmp_path / 'last_checkpoint').read_text() == f'{tmp_path}/epoch_4.pth'
    assert saved(tmp_path / 'epoch_4.pth')['meta'] == {'epoch': 4, 'iter': 24, 'seed': 0}


class Rising(Hook):
    """Makes the score of every validation the number of epochs."""

    def after_val_epoch(self, runner, metrics=None):
        metrics['accuracy/top1'] = float(runner.epoch)


@pytest.mark.slow
@pytest.mark.parametrize('copied', [True, False])
def test_a_run_that_resumes_in_another_work_dir_removes_no_file_of_the_first(
    copied, colours, tmp_path
):
    first = tmp_path / 'first'
    second = tmp_path / 'second'
    run(small_config(colours, first, epochs=2), Rising())
    if copied:
        shutil.copytree(first, second)
    before = files(first)
    cfg = small_config(colours, second, epochs=3, options={'load_from': str(first / 'epoch_2.pth')})
    runner = run(cfg, Rising(), resume=True)
    assert files(first) == before
    assert [name for name in files(second) if 'best' in name] == ['best_accuracy_top1_epoch_3.pth']
    assert runner.message_hub.get_info('best_ckpt') == str(
        second / 'best_accuracy_top1_epoch_3.pth'
    )


@pytest.mark.slow
def test_the_best_checkpoint_is_found_in_a_work_dir_that_was_moved(colours, tmp_path):
    first = tmp_path / 'first'
    second = tmp_path / 'second'
    run(small_config(colours, first, epochs=2))
    first.rename(second)
    cfg = small_config(
        colours, second, epochs=2, options={'load_from': str(second / 'epoch_2.pth')}
    )
    runner = run(cfg, resume=True)  # nothing is left to train
    (best,) = second.glob('best_*.pth')
    assert runner.message_hub.get_info('best_ckpt') == str(best)


def fill_disk(monkeypatch, word, after, ends=False):
    """Raise ENOSPC after `after` writes of files with `word` in their name; once if it `ends`."""
    sync = os.fsync
    written = itertools.count()

    def full(descriptor):
        if word in os.readlink(f'/proc/self/fd/{descriptor}'):
            number = next(written)
            if number == after or (number > after and not ends):
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
    scores = iter([50.0, 60.0])
    monkeypatch.setattr(
        'mmpola.classification.accuracy.Accuracy.compute_metrics',
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ('word', 'after', 'scores', 'best', 'kept'),
    [
        ('epoch_2.pth', 0, (50.0, 40.0, 30.0), 1, [1, 3]),
        (
            'best_',
            1,
            (50.0, 60.0, 55.0),
            3,
            [1, 2, 3],
        ),  # 55 is better than 50, the best that was saved
    ],
)
def test_a_run_may_continue_without_a_checkpoint(
    word, after, scores, best, kept, colours, tmp_path, monkeypatch
):
    """The next one is kept like in any run: the disk has space again."""
    values = iter(scores)
    monkeypatch.setattr(
        'mmpola.classification.accuracy.Accuracy.compute_metrics',
        lambda self, results: {'top1': next(values)},
    )
    fill_disk(monkeypatch, word, after, ends=True)
    run(small_config(colours, tmp_path, options={'default_hooks.checkpoint.on_error': 'continue'}))
    assert files(tmp_path) == [
        f'best_accuracy_top1_epoch_{best}.pth',
        *(f'epoch_{number}.pth' for number in kept),
        'last_checkpoint',
    ]
    assert (tmp_path / 'last_checkpoint').read_text() == f'{tmp_path}/epoch_3.pth'
    assert (
        read_checkpoint(tmp_path / 'epoch_3.pth')['message_hub']['runtime_info']['keep_ckpt_ids']
        == kept
    )


class RemoveWorkDir(Hook):
    """Removes the work dir after a number of steps, or in the validation after an epoch."""

    def __init__(self, step=None, epoch=None):
        self.step = step
        self.epoch = epoch

    def before_train_iter(self, runner, batch_idx, data_batch=None):
        if runner.iter == self.step:
            shutil.rmtree(runner.work_dir)

    def before_val_epoch(self, runner):
        if runner.epoch == self.epoch:
            shutil.rmtree(runner.work_dir)


@pytest.mark.slow
@pytest.mark.parametrize('when', [{'step': 8}, {'epoch': 2}], ids=['training', 'validation'])
def test_a_work_dir_that_is_removed_is_created_again(when, colours, tmp_path, monkeypatch):
    """Logs, the config and later checkpoints, the best among them, are written to it."""
    scores = iter([60.0, 50.0, 40.0])
    monkeypatch.setattr(
        'mmpola.classification.accuracy.Accuracy.compute_metrics',
        lambda self, results: {'top1': next(scores)},
    )
    work = tmp_path / 'work'
    cfg = small_config(colours, work, options={'default_hooks.logger.interval': 1})
    runner = run(cfg, RemoveWorkDir(**when))
    best = 'best_accuracy_top1_epoch_2.pth'
    assert files(work)[0] == best
    assert set(files(work)[1:]) == {'epoch_2.pth', 'epoch_3.pth', 'last_checkpoint'}
    assert runner.message_hub.get_info('best_ckpt') == str(work / best)
    assert runner.message_hub.get_info('best_score') == 50.0
    (log,) = work.glob('*/*.log')
    assert 'was removed while training ran' in log.read_text()
    (scalars,) = work.glob('*/vis_data/2*.json')
    assert '"step": 18' in scalars.read_text()
    assert list(work.glob('*.py'))


@pytest.mark.slow
def test_a_work_dir_that_cannot_be_created_again_ends_the_run(colours, tmp_path, monkeypatch):
    class Refuse(RemoveWorkDir):
        def before_train_iter(self, runner, batch_idx, data_batch=None):
            super().before_train_iter(runner, batch_idx)
            if runner.iter == self.step:
                Path(runner.work_dir).write_text('a file in its place')

    with pytest.raises(SaveError) as raised:
        run(small_config(colours, tmp_path / 'work'), Refuse(step=8))
    assert str(raised.value).startswith(f'{tmp_path}/work/')
    assert 'could not be created again' in str(raised.value)


@pytest.mark.slow
def test_a_final_test_without_its_checkpoint_is_refused(colours, tmp_path):
    options = {'default_hooks.final_test': {'type': 'mmpola.FinalTestHook'}}

    class RemoveBest(Hook):
        def after_train(self, runner):
            Path(runner.message_hub.get_info('best_ckpt')).unlink()

    message = refusal(run, small_config(colours, tmp_path, epochs=2, options=options), RemoveBest())
    assert message.startswith(f'{tmp_path}/best_accuracy_top1_epoch_')
    assert ': expected the best checkpoint, got no file' in message


def test_on_error_is_checked():
    with pytest.raises(ValueError, match="on_error: expected 'stop' or 'continue'"):
        AtomicCheckpointHook(on_error='ignore')


def test_a_refused_write_leaves_the_old_content(tmp_path, monkeypatch):
    path = tmp_path / 'new folder' / 'a.pth'
    AtomicBackend().put(b'old', path)
    fill_disk(monkeypatch, 'a.pth', after=0)
    with pytest.raises(
        SaveError, match=r'a\.pth: could not be written .*; earlier checkpoints are intact'
    ):
        AtomicBackend().put(b'new', path)
    assert [(file.name, file.read_bytes()) for file in path.parent.iterdir()] == [('a.pth', b'old')]


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
def test_files_hold_tensors_and_plain_values_alone(colours, tmp_path):
    """Anyone's torch.load(weights_only=True) opens them, so OpenMMLab's inferencers do too."""
    run(small_config(colours, tmp_path, epochs=2), NumpyValues())
    path = tmp_path / 'epoch_2.pth'
    assert torch.serialization.get_unsafe_globals_in_checkpoint(path) == []
    content = load_from_local(
        str(path), 'cpu'
    )  # the reader of mmdet's DetInferencer and publish_model.py
    assert content['message_hub']['runtime_info']['foreign'] == {
        'best': 0.5,
        'palette': [[1.0, 0.0], [0.0, 1.0]],
        'folder': '/data',
        'cfg': {'a': (1, 'b')},
    }
    assert content['message_hub']['log_scalars']['train/loss']['log_history'].shape == (12,)
    assert content['state_dict']._metadata
