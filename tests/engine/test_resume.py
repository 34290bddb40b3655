"""What a run resumes from; checkpoints of an earlier run are overwritten only with permission."""

import copy
import os
import shutil

import pytest
from mmengine.config import Config

from mmpola.engine import resume as resuming
from mmpola.engine.resume import newest_checkpoint, progress_if_finished
from mmpola.engine.validate import build_on_meta
from tests.helpers.configs import STATE
from tests.helpers.processes import run_script
from tests.helpers.refusals import refusal

pytestmark = pytest.mark.usefixtures('unformatted_configs')


@pytest.fixture
def cfg(tiny_config, work):
    cfg = Config.fromfile(tiny_config)
    cfg.work_dir = str(work)
    return cfg


def decide_resume(cfg, overwrite=False):
    return resuming.decide_resume(cfg, overwrite, build_on_meta(cfg))


def test_checkpoints_are_kept_unless_the_newest_is_resumed(cfg, work, trained_work):
    kept = f'{work}: holds checkpoints that this run would overwrite (epoch_2.pth, epoch_1.pth); '
    newest = str(work / 'epoch_2.pth')
    assert refusal(decide_resume, cfg).startswith(kept)
    assert decide_resume(cfg, overwrite=True) is None
    cfg.resume = True
    assert decide_resume(cfg).path == newest
    cfg.load_from = str(work / '..' / 'work' / 'epoch_2.pth')
    assert decide_resume(cfg).path == cfg.load_from
    cfg.load_from = str(work / 'epoch_1.pth')
    assert refusal(decide_resume, cfg).startswith(kept)
    (work / 'last_checkpoint').unlink()
    cfg.load_from = None
    message = refusal(decide_resume, cfg)  # MMEngine would begin at the first step
    assert message.startswith(f'{work}: holds checkpoints (epoch_2.pth, epoch_1.pth) but no ')
    assert message.endswith('--resume CHECKPOINT')
    cfg.load_from = newest
    assert decide_resume(cfg).path == newest


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
    write_checkpoint(tiny_config, work / 'best.pth')  # cannot be resumed from
    (work / 'epoch_2.pth').write_bytes(damage((work / 'epoch_2.pth').read_bytes()))
    for time, name in enumerate(('epoch_1.pth', 'best.pth', 'epoch_2.pth'), start=1):
        os.utime(work / name, (time, time))
    cfg.resume = True
    message = refusal(decide_resume, cfg)
    assert message.startswith(f'{work}/epoch_2.pth: {problem}')
    assert message.endswith(f'; the newest intact one: --resume {work}/epoch_1.pth')
    assert '\n' not in message
    cfg.load_from = str(work / 'epoch_1.pth')
    assert decide_resume(cfg).path == cfg.load_from
    (work / 'epoch_1.pth').write_bytes(b'')
    cfg.load_from = None
    assert refusal(decide_resume, cfg).startswith(f'{work}/epoch_2.pth: ')


@pytest.mark.parametrize('name', [b'\xff\xfe.pth', b'a\0b.pth', 300 * b'x' + b'.pth'])
def test_a_record_may_hold_any_bytes(name, work):
    (work / 'last_checkpoint').write_bytes(name)
    assert 'which does not exist; correct the line' in refusal(newest_checkpoint, work)


def test_a_work_dir_belongs_to_one_config(cfg, work):
    (work / 'tiny.py').rename(work / 'other.py')
    cfg.resume = True
    for overwrite in (False, True):
        assert refusal(decide_resume, cfg, overwrite) == (
            f'{work}: holds checkpoints of other.py, not of tiny.py; '
            'use another --work-dir, or resume the earlier run with its own config'
        )
    for path in (*work.glob('*.pth'), work / 'last_checkpoint'):
        path.unlink()
    assert decide_resume(cfg) is None  # nothing to lose


def test_checkpoints_outside_of_the_work_dir_are_kept_too(cfg, trained_work, tmp_path):
    """MMEngine writes to `out_dir`/LAST NAME OF THE WORK DIR, which two runs may share."""
    written = tmp_path / 'checkpoints' / 'work'
    written.mkdir(parents=True)
    for name in ('epoch_1.pth', 'epoch_2.pth'):
        (trained_work / name).rename(written / name)
    (trained_work / 'last_checkpoint').write_text(str(written / 'epoch_2.pth'))
    cfg.default_hooks.checkpoint.out_dir = str(tmp_path / 'checkpoints')
    assert resuming.written_folders(cfg) == [trained_work, written]
    assert refusal(decide_resume, cfg).startswith(
        f'{written}: holds checkpoints that this run would overwrite'
    )
    assert decide_resume(cfg, overwrite=True) is None
    cfg.resume = True
    assert decide_resume(cfg).path == str(written / 'epoch_2.pth')

    cfg.load_from = None
    cfg.work_dir = str(tmp_path / 'second' / 'work')
    message = refusal(decide_resume, cfg)
    assert message.startswith(
        f'{written}: holds checkpoints (epoch_2.pth, epoch_1.pth) but no last_checkpoint'
    )
    cfg.work_dir = str(tmp_path / 'another')
    assert decide_resume(cfg) is None


@pytest.mark.parametrize('out_dir', ['s3://bucket/checkpoints', None])
def test_only_local_folders_are_checked(out_dir, cfg, work):
    cfg.default_hooks.checkpoint.out_dir = out_dir
    assert resuming.written_folders(cfg) == [work]


def test_a_work_dir_may_be_copied_and_moved(work, tmp_path):
    shutil.copytree(work, tmp_path / 'copy')
    assert newest_checkpoint(tmp_path / 'copy') == tmp_path / 'copy' / 'epoch_2.pth'
    assert newest_checkpoint(work) == work / 'epoch_2.pth'
    moved = work.rename(tmp_path / 'moved')
    assert newest_checkpoint(moved) == moved / 'epoch_2.pth'
    (moved / 'epoch_2.pth').unlink()
    message = refusal(newest_checkpoint, moved)
    assert message.startswith(
        f'{moved}/last_checkpoint: names {work}/epoch_2.pth, which does not exist; correct the '
    )
    assert message.endswith('--resume CHECKPOINT')


def test_a_run_resumes_from_its_own_checkpoint(cfg, trained_work):
    newest = str(trained_work / 'epoch_2.pth')
    cfg.resume = True
    resume = decide_resume(cfg)
    assert (resume.path, resume.meta, progress_if_finished(resume, cfg)) == (
        newest,
        STATE['meta'],
        None,
    )
    assert cfg.load_from == newest
    cfg.train_cfg.max_epochs = 2
    assert progress_if_finished(resume, cfg) == '2 of 2 epochs'
    cfg.train_cfg = {'type': 'IterBasedTrainLoop', 'max_iters': 12}
    assert progress_if_finished(resume, cfg) == '12 of 12 steps'
    cfg.train_cfg.max_iters = 13
    assert progress_if_finished(resume, cfg) is None


class Foreign:
    """A class that no reader builds."""


def test_files_that_cannot_be_resumed_from(cfg, work, tiny_config, write_checkpoint, tmp_path):
    cfg.work_dir = str(tmp_path / 'fresh')
    cfg.resume = True
    best = cfg.load_from = str(work / 'best.pth')
    restart = f'start a new run from its weights with --cfg-options load_from={best}'
    write_checkpoint(tiny_config, best, meta=STATE['meta'])
    message = refusal(decide_resume, cfg)
    assert message.startswith(f'--resume: {best}: expected a training checkpoint, got ')
    assert message.endswith(f' without message_hub and optimizer; {restart}')
    write_checkpoint(
        tiny_config, best, **{**STATE, 'message_hub': {'runtime_info': {'x': [Foreign()]}}}
    )
    message = refusal(decide_resume, cfg)
    assert message.startswith(
        f'--resume: {best}: holds instances of {Foreign.__module__}.Foreign, '
    )
    assert message.endswith(restart)
    meta = {**STATE['meta'], 'experiment_name': 'mask_rcnn_1x_20250131_235959'}
    write_checkpoint(tiny_config, best, **{**STATE, 'meta': meta})
    assert refusal(decide_resume, cfg) == (
        f'--resume: {best}: expected a checkpoint of tiny, got one of mask_rcnn_1x; {restart}'
    )
    cfg.model.roi_head.bbox_head.num_classes = 5
    headline, problem = refusal(decide_resume, cfg).splitlines()
    assert (
        headline
        == f'{best}: does not fit the MaskRCNN of {tiny_config}; it was trained with mask_rcnn_1x'
    )
    assert problem.startswith(
        '  wrong shape: roi_head.bbox_head.fc_cls.weight expected [6, 32], got [7, 32], '
    )


MALFORMED = {
    'meta': 'text',
    'meta.epoch': '2',
    'meta.iter': -1,
    'meta.seed': [0],
    'message_hub': [],
    'message_hub.log_scalars': None,
    'message_hub.runtime_info': 3,
    'message_hub.resumed_keys': 'all',
    'message_hub.runtime_info.keep_ckpt_ids': {'a': 1},
    'message_hub.runtime_info.epoch_position': 'middle',
    'message_hub.runtime_info.epoch_position.iter': 13,  # of 12
    'message_hub.runtime_info.epoch_position.images_per_step': 2.5,
    'optimizer': 0,
    'optimizer.state': [],
    'optimizer.param_groups': {'lr': 1},
    'param_schedulers': 'linear',
    'param_schedulers.0': None,
    'param_schedulers.0.last_step': True,
}
"""Key of an entry of a checkpoint -> a value of the wrong type, or out of range."""


def whole_state():
    """The state of a run in the middle of its third epoch."""
    state = copy.deepcopy(STATE)
    position = {'epoch': 2, 'iter': 12, 'images_per_step': 2}
    state['message_hub']['runtime_info'] = {'epoch_position': position, 'keep_ckpt_ids': [1, 2]}
    return {**state, 'param_schedulers': [{'last_step': 12}, {'last_step': -1}]}


@pytest.mark.parametrize('key', MALFORMED)
def test_malformed_entries_are_named(key, cfg, work, tiny_config, write_checkpoint):
    path = work / 'epoch_2.pth'
    value = MALFORMED[key]
    state = whole_state()
    write_checkpoint(tiny_config, path, **state)
    cfg.resume = True
    assert decide_resume(cfg).path == str(path)

    *parents, last = key.split('.')
    node = state
    for name in parents:
        node = node[int(name)] if isinstance(node, list) else node[name]
    node[int(last) if isinstance(node, list) else last] = value
    write_checkpoint(tiny_config, path, **state)
    cfg.load_from = None
    message = refusal(decide_resume, cfg)
    assert message.startswith(f'--resume: {path}: expected {key}: ')
    assert f', got {value!r}; start a new run from its weights' in message


def test_the_optimizers_of_several_networks_are_checked_one_by_one(
    cfg, work, tiny_config, write_checkpoint
):
    networks = {'generator': STATE['optimizer'], 'critic': {'state': 1, 'param_groups': []}}
    write_checkpoint(tiny_config, work / 'epoch_2.pth', **{**STATE, 'optimizer': networks})
    cfg.resume = True
    assert 'expected optimizer.critic.state: a dict, got 1' in refusal(decide_resume, cfg)


@pytest.mark.slow
@pytest.mark.parametrize(
    ('damage', 'word'),
    [
        (lambda state: None, 'parameter group'),  # STATE has none
        (
            lambda state: state['message_hub']['log_scalars'].update(loss={'log_history': [1.0]}),
            'count_history',
        ),
    ],
    ids=['optimizer', 'log'],
)
def test_what_does_not_fit_the_run_ends_it_with_one_line(
    damage, word, work, tiny_config, write_checkpoint, capsys
):
    state = whole_state()
    damage(state)
    path = write_checkpoint(tiny_config, work / 'epoch_2.pth', **state)
    before = path.read_bytes()
    assert run_script('train', tiny_config, '--work-dir', work, '--resume') == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith(
        f'error: --resume: {path}: expected the state of this training run, got '
    )
    assert word in line
    assert path.read_bytes() == before
