"""What a run resumes from; checkpoints of an earlier run are overwritten only with permission."""

import copy
import os
import shutil

import pytest
from mmengine.config import Config

from mmpola.engine import resume as resuming
from mmpola.engine.resume import newest_checkpoint
from mmpola.engine.validate import build_model
from tests.helpers.configs import STATE
from tests.helpers.refusals import refusal

pytestmark = pytest.mark.usefixtures('unformatted_configs')


@pytest.fixture
def cfg(tiny_config, work):
    cfg = Config.fromfile(tiny_config)
    cfg.work_dir = str(work)
    return cfg


def decide_resume(cfg, overwrite=False):
    resuming.decide_resume(cfg, overwrite, build_model(cfg))


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
    assert newest in capsys.readouterr().out
    cfg.load_from = str(work / '..' / 'work' / 'epoch_2.pth')
    assert resumed_from(cfg) == cfg.load_from
    cfg.load_from = str(work / 'epoch_1.pth')
    assert refusal(decide_resume, cfg).startswith(kept)
    (work / 'last_checkpoint').unlink()
    cfg.load_from = None
    message = refusal(decide_resume, cfg)  # MMEngine would begin at the first step
    assert message.startswith(kept)
    assert f'--resume {newest}' in message
    cfg.load_from = newest
    assert resumed_from(cfg) == newest


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


def test_a_run_resumes_from_its_own_checkpoint(cfg, trained_work, capsys):
    cfg.resume = True
    decide_resume(cfg)
    assert (cfg.resume, cfg.load_from) == (True, str(trained_work / 'epoch_2.pth'))
    line = capsys.readouterr().out
    assert 'after 2 epochs and 12 steps' in line


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
