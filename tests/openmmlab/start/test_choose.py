"""What a run resumes from; checkpoints of an earlier run are overwritten only with permission."""

import copy
import os
import shutil

import pytest
from mmengine.config import Config

from mmpola.openmmlab.config.build import build_model
from mmpola.openmmlab.start import choose as resuming
from mmpola.openmmlab.start.choose import newest_checkpoint
from tests.helpers.configs import STATE
from tests.helpers.refusals import refusal

pytestmark = pytest.mark.usefixtures('unformatted_configs')


@pytest.fixture
def cfg(tiny_config, work):
    cfg = Config.fromfile(tiny_config)
    cfg.work_dir = str(work)
    cfg.launcher = 'none'
    return cfg


def decide_resume(cfg, overwrite=False):
    return resuming.decide_resume(cfg, overwrite, build_model(cfg))


def resumed_from(cfg, overwrite=False):
    """Return the checkpoint that a run resumes from, or None."""
    cfg = copy.deepcopy(cfg)
    decide_resume(cfg, overwrite)
    return cfg.load_from if cfg.get('resume') else None


def test_checkpoints_are_kept_unless_the_newest_is_resumed(cfg, work, trained_work, capsys):
    kept = f'{work}: holds checkpoints that this run would overwrite (epoch_2.pth, epoch_1.pth); '
    newest = str(work / 'epoch_2.pth')
    assert refusal(decide_resume, cfg).startswith(kept)
    assert resumed_from(cfg, overwrite=True) is None
    cfg.resume = True
    assert resumed_from(cfg) == newest
    assert capsys.readouterr().out == (
        f'--resume: {newest}, after 12 steps in all, with 2 complete epochs\n'
    )
    cfg.load_from = str(work / '..' / 'work' / 'epoch_2.pth')
    assert resumed_from(cfg) == cfg.load_from
    cfg.load_from = str(work / 'epoch_1.pth')
    assert refusal(decide_resume, cfg).startswith(kept)


def test_only_the_first_process_says_it(cfg, tmp_path, capsys, monkeypatch):
    cfg.work_dir = str(tmp_path)
    cfg.launcher = 'pytorch'
    cfg.resume = True
    monkeypatch.setenv('RANK', '1')
    assert resumed_from(cfg) is None
    assert capsys.readouterr().out == ''
    monkeypatch.setenv('RANK', '0')
    assert resumed_from(cfg) is None
    said = f'--resume: {tmp_path}: no checkpoint yet; training starts from the first step\n'
    assert capsys.readouterr().out == said


@pytest.mark.parametrize(
    ('damage', 'problem'),
    [
        (lambda x: x[:-100], 'not a checkpoint, or truncated'),
        (
            lambda x: x[:-9999] + bytes([x[-9999] ^ 1]) + x[-9998:],
            'damaged, the check sum of epoch_2/data/',
        ),
    ],
    ids=['truncated', 'flipped'],
)
def test_a_damaged_newest_checkpoint_names_the_older_intact_one(
    damage, problem, cfg, trained_work, tiny_config, write_checkpoint
):
    work = trained_work
    write_checkpoint(
        tiny_config, work / 'epoch_1.pth', **{**STATE, 'meta': {**STATE['meta'], 'epoch': 1}}
    )
    write_checkpoint(tiny_config, work / 'best_mAP_epoch_1.pth')  # cannot be resumed from
    (work / 'epoch_2.pth').write_bytes(damage((work / 'epoch_2.pth').read_bytes()))
    for time, name in enumerate(('epoch_1.pth', 'best_mAP_epoch_1.pth', 'epoch_2.pth'), start=1):
        os.utime(work / name, (time, time))
    cfg.resume = True
    message = refusal(decide_resume, cfg)
    assert message.startswith(f'{work}/epoch_2.pth: {problem}')
    assert message.endswith(f'--resume {work}/epoch_1.pth --overwrite')
    assert '\n' not in message
    cfg.load_from = str(work / 'epoch_1.pth')
    assert resumed_from(cfg, overwrite=True) == cfg.load_from


def test_a_work_dir_belongs_to_one_config(cfg, work):
    (work / 'tiny.py').rename(work / 'other.py')
    cfg.resume = True
    for overwrite in (False, True):
        message = refusal(decide_resume, cfg, overwrite)
        assert message.startswith(f'{work}: holds checkpoints of other.py, not of tiny.py; ')
    for path in (*work.glob('*.pth'), work / 'last_checkpoint'):
        path.unlink()
    assert resumed_from(cfg) is None  # nothing to lose


def test_a_work_dir_may_be_copied_and_moved(work, tmp_path):
    shutil.copytree(work, tmp_path / 'copy')
    assert newest_checkpoint(tmp_path / 'copy') == tmp_path / 'copy' / 'epoch_2.pth'
    assert newest_checkpoint(work) == work / 'epoch_2.pth'
    moved = work.rename(tmp_path / 'moved')
    assert newest_checkpoint(moved) == moved / 'epoch_2.pth'
    (moved / 'epoch_2.pth').unlink()
    message = refusal(newest_checkpoint, moved)
    assert message.startswith(
        f'{moved}/last_checkpoint: names {work}/epoch_2.pth, which does not exist'
    )
    assert message.endswith('--resume CHECKPOINT --overwrite')


def test_a_run_that_was_killed_before_its_first_checkpoint_was_recorded_resumes(
    cfg, trained_work, capsys
):
    """MMEngine would begin at the first step, and a refusal would be for ever."""
    record = trained_work / 'last_checkpoint'
    best = trained_work / 'best_mAP_epoch_2.pth'  # newer, and without an optimizer
    shutil.copy(trained_work / 'epoch_2.pth', best)
    record.unlink()
    cfg.resume = True
    assert resumed_from(cfg) == str(trained_work / 'epoch_2.pth')
    assert f'{record}: names no checkpoint; the newest one is taken' in capsys.readouterr().out


def test_a_run_that_overwrites_does_not_resume_from_the_earlier_one(cfg, trained_work):
    """`ForgetHook` empties the record; the files of the earlier run are older."""
    record = trained_work / 'last_checkpoint'
    record.write_bytes(b'')
    os.utime(record, (20, 20))
    os.utime(trained_work / 'epoch_2.pth', (10, 10))
    cfg.resume = True
    kept = f'{trained_work}: holds checkpoints that this run would overwrite'
    assert refusal(decide_resume, cfg).startswith(kept)
    os.utime(trained_work / 'epoch_2.pth', (30, 30))
    assert resumed_from(cfg) == str(trained_work / 'epoch_2.pth')


@pytest.mark.parametrize(('end', 'due', 'finished'), [(2, False, True), (2, True, False)])
def test_a_run_that_has_ended_says_so(
    end, due, finished, cfg, trained_work, tiny_config, write_checkpoint, capsys
):
    hub = {**STATE['message_hub'], 'runtime_info': {'due_validation': due}}
    write_checkpoint(tiny_config, trained_work / 'epoch_2.pth', **{**STATE, 'message_hub': hub})
    cfg.train_cfg.max_epochs = end
    cfg.resume = True
    assert decide_resume(cfg).finished == finished
    assert ('nothing is left to train or validate' in capsys.readouterr().out) == finished
    cfg.train_cfg.max_epochs = 3
    assert not decide_resume(cfg).finished


def test_a_run_without_a_checkpoint_starts_from_the_first_step(cfg, tmp_path, capsys):
    cfg.work_dir = str(tmp_path / 'fresh')
    cfg.resume = True
    decide_resume(cfg)
    assert cfg.resume is False
    assert cfg.work_dir in capsys.readouterr().out


def test_files_that_cannot_be_resumed_from(cfg, work, tiny_config, write_checkpoint, tmp_path):
    cfg.work_dir = str(tmp_path / 'fresh')
    cfg.resume = True
    best = cfg.load_from = str(work / 'best.pth')
    write_checkpoint(tiny_config, best, meta=STATE['meta'])
    message = refusal(decide_resume, cfg)
    assert message.startswith(f'--resume: {best}: ')
    assert 'message_hub, optimizer' in message
    assert message.endswith(f'--cfg-options load_from={best}')
    write_checkpoint(tiny_config, best, **STATE)
    cfg.model.roi_head.bbox_head.num_classes = 5
    message = refusal(decide_resume, cfg)
    assert message.startswith(f'{best}: ')
    assert 'roi_head.bbox_head.fc_cls.weight expected [6, 32], got [7, 32]' in message


@pytest.mark.parametrize('frozen', ['checkpoint', 'config'])
def test_another_optimizer_is_refused_before_the_data_are_read(
    frozen, cfg, trained_work, tiny_config, write_checkpoint
):
    """MMEngine's error is about parameter groups, and comes when everything is built."""
    path = trained_work / 'epoch_2.pth'
    cfg.resume = True
    if frozen == 'config':
        cfg.model.backbone.frozen_stages = 4
    else:
        frozen_config = tiny_config.with_name('frozen.py')
        frozen_config.write_text(
            tiny_config.read_text() + "model['backbone']['frozen_stages'] = 4\n"
        )
        write_checkpoint(frozen_config, path, **STATE)
    message = refusal(decide_resume, cfg)
    assert message.startswith(f'--resume: {path}: expected an optimizer of ')
    assert '(frozen_stages)' in message
    assert message.endswith(f'--cfg-options load_from={path}')
    cfg.model.backbone.frozen_stages = -1 if frozen == 'config' else 4
    assert resumed_from(cfg) == str(path)


def test_groups_of_several_optimizers():
    one = {'state': {}, 'param_groups': [{'params': [0, 1]}, {'params': [2]}]}
    assert resuming._group_sizes(one) == [2, 1]
    assert resuming._group_sizes({'backbone': one, 'head': one, 'base': 'text'}) == [2, 1, 2, 1]
