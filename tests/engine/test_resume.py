"""Whose a work dir is, and from which files a training goes on: nothing of an earlier training is lost unasked."""

import os
from pathlib import Path

import pytest
import torch
from mmengine.config import Config

from mmpola.engine.resume import check_resume, check_work_dir, newest_checkpoint
from mmpola.messages import UsageError
from tests.helpers.scripts import load

STATE = {
    'message_hub': {},
    'optimizer': {},
    'meta': {'epoch': 2, 'iter': 12, 'experiment_name': 'tiny_20250131_235959'},
}


@pytest.fixture
def work(tmp_path):
    """A work dir as after two epochs of tiny.py."""
    folder = tmp_path / 'work'
    folder.mkdir()
    for number in (1, 2):
        path = folder / f'epoch_{number}.pth'
        torch.save(number, path)
        os.utime(path, (number, number))
    (folder / 'last_checkpoint').write_text(str(folder / 'epoch_2.pth'))
    (folder / 'tiny.py').write_text('')
    return folder


@pytest.fixture
def cfg(tiny_config, work):
    cfg = Config.fromfile(tiny_config)
    cfg.work_dir = str(work)
    return cfg


def refusal(check, *arguments):
    with pytest.raises(UsageError) as raised:
        check(*arguments)
    return str(raised.value)


def test_checkpoints_are_kept_unless_the_newest_is_gone_on_from(cfg, work):
    kept = (
        f'{work}: holds checkpoints that this training would write over (epoch_2.pth, epoch_1.pth); go on from the '
        'newest by --resume, train elsewhere by --work-dir, or let it write over them by --overwrite'
    )
    assert refusal(check_work_dir, cfg, False) == kept
    check_work_dir(cfg, True)
    cfg.resume = True
    check_work_dir(cfg, False)
    cfg.load_from = str(work / '..' / 'work' / 'epoch_2.pth')
    check_work_dir(cfg, False)
    cfg.load_from = str(work / 'epoch_1.pth')
    assert refusal(check_work_dir, cfg, False) == kept
    (work / 'last_checkpoint').unlink()
    cfg.load_from = None
    assert refusal(check_work_dir, cfg, False) == (  # MMEngine would begin anew
        f'{work}: holds checkpoints (epoch_2.pth, epoch_1.pth) and no last_checkpoint that names the newest; '
        'name the one to go on from: --resume CHECKPOINT'
    )
    cfg.load_from = str(work / 'epoch_2.pth')
    check_work_dir(cfg, False)


def test_a_work_dir_belongs_to_one_config(cfg, work):
    (work / 'tiny.py').rename(work / 'other.py')
    cfg.resume = True
    for overwrite in (False, True):
        assert refusal(check_work_dir, cfg, overwrite) == (
            f'{work}: holds checkpoints of other.py, and this training is of tiny.py; '
            'give it another --work-dir, or go on with the config of that one by --resume'
        )
    for path in work.glob('*.pth'):
        path.unlink()
    check_work_dir(cfg, False)  # nothing to lose


def test_a_work_dir_may_be_moved(cfg, work, tmp_path):
    moved = work.rename(tmp_path / 'moved')
    cfg.work_dir = str(moved)
    assert newest_checkpoint(cfg) == moved / 'epoch_2.pth'
    (moved / 'epoch_2.pth').unlink()
    assert refusal(newest_checkpoint, cfg) == (
        f'{moved}/last_checkpoint: names {work}/epoch_2.pth, which is not there; correct the line, or remove the file '
        'and name a checkpoint to go on from: --resume CHECKPOINT'
    )


def test_a_training_goes_on_from_its_own_checkpoint(cfg, work, tiny_config, write_checkpoint):
    newest = work / 'epoch_2.pth'
    write_checkpoint(tiny_config, newest, **STATE)
    assert check_resume(cfg) is None
    assert cfg.load_from == str(newest)
    cfg.train_cfg.max_epochs = 2
    assert check_resume(cfg) == f'{newest}: this training is finished: 2 of 2 epochs'
    cfg.train_cfg = {'type': 'IterBasedTrainLoop', 'max_iters': 12}
    assert check_resume(cfg) == f'{newest}: this training is finished: 12 of 12 steps'
    cfg.train_cfg.max_iters = 13
    assert check_resume(cfg) is None


def test_files_that_no_training_can_go_on_from(cfg, work, tiny_config, write_checkpoint):
    best = cfg.load_from = str(work / 'best.pth')
    write_checkpoint(tiny_config, best, meta=STATE['meta'])
    assert refusal(check_resume, cfg) == (
        f'--resume: {best}: no checkpoint to go on from: it has weights but no message_hub and no optimizer; '
        f'start anew from its weights by --cfg-options load_from={best}'
    )
    meta = {**STATE['meta'], 'experiment_name': 'mask_rcnn_1x_20250131_235959'}
    write_checkpoint(tiny_config, best, **{**STATE, 'meta': meta})
    assert refusal(check_resume, cfg) == (
        f'--resume: {best}: was written by a training of mask_rcnn_1x, and this one is of tiny; '
        f'start anew from its weights by --cfg-options load_from={best}'
    )
    cfg.model.roi_head.bbox_head.num_classes = 5
    assert refusal(check_resume, cfg).splitlines() == [
        f'{best}: does not fit the MaskRCNN of {tiny_config}; it comes from a training of mask_rcnn_1x',
        '  4 of another shape: roi_head.bbox_head.fc_cls.weight [7, 256] instead of [6, 256], '
        'roi_head.bbox_head.fc_cls.bias [7] instead of [6], roi_head.bbox_head.fc_reg.weight [24, 256] instead of '
        '[20, 256], roi_head.bbox_head.fc_reg.bias [24] instead of [20]',
    ]


def test_without_a_checkpoint_a_resumed_training_begins(cfg, tmp_path):
    cfg.work_dir, cfg.resume = str(tmp_path / 'fresh'), True
    check_work_dir(cfg, False)
    assert check_resume(cfg) is None
    assert cfg.get('load_from') is None


def test_train_says_so_and_touches_nothing(work, tiny_config, write_checkpoint, monkeypatch, capsys):
    meta = {**STATE['meta'], 'epoch': 3}
    write_checkpoint(tiny_config, work / 'epoch_2.pth', **{**STATE, 'meta': meta})
    before = {path: path.read_bytes() for path in work.iterdir()}
    command = ['train.py', str(tiny_config), '--work-dir', str(work)]
    monkeypatch.setattr('sys.argv', [*command, '--resume'])
    load('train').main()
    assert capsys.readouterr().out == f'{work}/epoch_2.pth: this training is finished: 3 of 3 epochs\n'
    monkeypatch.setattr('sys.argv', command)
    assert refusal(load('train').main).startswith(f'{work}: holds checkpoints that this training would write over')
    assert {path: path.read_bytes() for path in work.iterdir()} == before


class InterruptedRunner:
    """Stands for MMEngine's Runner under Ctrl-C, after an epoch that it saved if there is a work dir to save into."""

    @classmethod
    def from_cfg(cls, cfg):
        runner = cls()
        runner.work_dir = Path(cfg.work_dir)
        return runner

    def train(self):
        if self.work_dir.is_dir():
            (self.work_dir / 'epoch_1.pth').touch()
            (self.work_dir / 'last_checkpoint').write_text('epoch_1.pth')
        raise KeyboardInterrupt


@pytest.mark.parametrize('saved', [False, True])
def test_an_interrupted_training_says_what_is_left_of_it(saved, tmp_path, tiny_config, monkeypatch, capsys):
    monkeypatch.setattr(load('train'), 'Runner', InterruptedRunner)
    monkeypatch.setattr(load('train'), 'prepare_process', lambda cfg: None)
    work = tmp_path / 'fresh'
    if saved:
        work.mkdir()
    monkeypatch.setattr('sys.argv', ['train.py', str(tiny_config), '--work-dir', str(work), '--resume'])
    with pytest.raises(SystemExit) as raised:
        load('train').main()
    assert raised.value.code == load('train').INTERRUPTED
    printed = capsys.readouterr()
    assert f'{work}: no checkpoint to go on from yet, training begins\n' in printed.out
    left = f'--resume goes on from {work}/epoch_1.pth' if saved else 'nothing saved yet'
    assert printed.err.splitlines()[-1] == f'interrupted; {left}'
