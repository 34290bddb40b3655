"""Training through tools/train.py: resuming, Ctrl-C, mistakes that MMEngine finds, CPUs."""

import errno
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from mmengine.config import Config
from mmengine.runner.checkpoint import CheckpointLoader

from mmpola.checkpoint.safe_load import read_checkpoint
from mmpola.engine import train as training
from mmpola.engine.hooks.finite import NonFiniteError
from tests.helpers.configs import STATE
from tests.helpers.processes import load_script, run_script
from tests.helpers.refusals import refusal

pytestmark = pytest.mark.usefixtures('unformatted_configs')


@pytest.fixture
def train(tiny_config, monkeypatch):
    """A function that runs tools/train.py with a function of the config in place of a Runner."""

    def train(work, *arguments, steps=lambda cfg: None):
        stand_in = SimpleNamespace(from_cfg=lambda cfg: SimpleNamespace(train=lambda: steps(cfg)))
        monkeypatch.setattr(training, 'Runner', stand_in)
        monkeypatch.setattr(
            'sys.argv', ['train.py', str(tiny_config), '--work-dir', str(work), *arguments]
        )
        load_script('train').main()

    return train


def contents(work):
    return {path: path.read_bytes() for path in work.iterdir()}


def test_sync_bn_is_replaced_everywhere():
    sync = {'type': 'SyncBN', 'requires_grad': True}
    batch = {'type': 'BN'}
    heads = [{'norm_cfg': dict(sync)}, {'convs': {'norm_cfg': dict(sync)}}]
    cfg = Config({'model': {'backbone': {'norm_cfg': batch}, 'heads': heads}})
    assert training.replace_sync_bn(cfg.model) == 2
    assert cfg.model.heads[0].norm_cfg == {'type': 'BN', 'requires_grad': True}
    assert cfg.model.heads[1].convs.norm_cfg.type == 'BN'
    assert training.replace_sync_bn(cfg.model) == 0


def test_a_finished_run_changes_nothing(work, train, tiny_config, write_checkpoint, capsys):
    write_checkpoint(
        tiny_config, work / 'epoch_2.pth', **{**STATE, 'meta': {**STATE['meta'], 'epoch': 3}}
    )
    before = contents(work)
    train(work, '--resume')
    assert capsys.readouterr().out == f'{work}/epoch_2.pth: training is finished: 3 of 3 epochs\n'
    assert refusal(train, work).startswith(
        f'{work}: holds checkpoints that this run would overwrite'
    )
    assert contents(work) == before


def test_a_resumed_training_reads_its_checkpoint_once_and_no_pretrained_file(
    trained_work, train, tiny_config, monkeypatch
):
    """MMEngine would load that file first, and the checkpoint over it: it may be gone since."""
    with tiny_config.open('a') as config:
        config.write(
            "start = dict(_delete_=True, type='Pretrained', checkpoint='none.pth')\n"
            "model['backbone']['init_cfg'] = start\n"
        )
    read = []
    resumed = []
    torch_load = torch.load
    monkeypatch.setattr(
        torch, 'load', lambda path, **options: read.append(path) or torch_load(path, **options)
    )

    def resume(cfg):  # as MMEngine does
        assert cfg.resume
        assert cfg.model.backbone.init_cfg is None
        resumed.append(CheckpointLoader.load_checkpoint(cfg.load_from))

    train(trained_work, '--resume', steps=resume)
    assert read == [trained_work / 'epoch_2.pth']
    assert resumed[0]['meta']['epoch'] == 2


def ending(error, saved):
    """Steps that end with this error, after an epoch that is saved, or not."""

    def steps(cfg):
        if saved:
            (Path(cfg.work_dir) / 'epoch_1.pth').touch()
            (Path(cfg.work_dir) / 'last_checkpoint').write_text('epoch_1.pth')
        raise error

    return steps


@pytest.mark.parametrize('saved', [False, True])
def test_an_interrupted_run_says_what_was_saved(saved, tmp_path, train, capsys):
    work = tmp_path / 'fresh'
    with pytest.raises(SystemExit) as raised:
        train(work, '--resume', steps=ending(KeyboardInterrupt(), saved))
    assert raised.value.code == training.CTRL_C == 130
    printed = capsys.readouterr()
    assert (
        f'{work}: no checkpoint to resume from yet; training starts from the first step\n'
        in printed.out
    )
    left = f'--resume continues from {work}/epoch_1.pth' if saved else 'nothing was saved yet'
    assert printed.err.splitlines()[-1] == f'interrupted; {left}'


@pytest.mark.parametrize('saved', [False, True])
def test_a_run_that_is_not_finite_ends_with_one_line(saved, tmp_path, train):
    work = tmp_path / 'fresh'
    with pytest.raises(SystemExit) as raised:
        train(work, steps=ending(NonFiniteError('loss: nan'), saved))
    left = (
        f'{work}/epoch_1.pth is the newest checkpoint and finite' if saved else 'nothing was saved'
    )
    assert raised.value.code == f'error: loss: nan; {left}'  # which exits with status 1


def test_a_work_dir_has_one_training_at_a_time_and_overwriting_forgets_the_earlier_run(work, train):
    """Without its record, a later --resume cannot continue from the end of the earlier run."""
    before = contents(work)
    during = []
    before.pop(work / 'last_checkpoint')

    def start_another(cfg):
        during.append(refusal(train, work, '--overwrite'))
        assert before.items() <= contents(work).items()

    for _ in range(2):  # the first one released it
        train(work, '--overwrite', steps=start_another)
    assert during == [f'{work}: another training run writes to it; use another --work-dir'] * 2
    assert not (work / 'last_checkpoint').exists()


def test_a_resumed_run_that_may_overwrite_keeps_its_record(trained_work, train):
    """Until its first checkpoint, another --resume continues from the same one."""
    train(trained_work, '--resume', '--overwrite')
    assert (trained_work / 'last_checkpoint').read_text() == str(trained_work / 'epoch_2.pth')


def test_a_folder_of_checkpoints_has_one_training_at_a_time(tmp_path, train):
    """Two work dirs of the same last name write to the same folder below `out_dir`."""
    out_dir = ('--cfg-options', f'default_hooks.checkpoint.out_dir={tmp_path}/checkpoints')
    refused = []

    def start_another(cfg):
        refused.append(refusal(train, tmp_path / 'second' / 'work', *out_dir))
        train(tmp_path / 'second' / 'other', *out_dir)

    train(tmp_path / 'first' / 'work', *out_dir, steps=start_another)
    (message,) = refused
    assert message.startswith(f'{tmp_path}/checkpoints/work: another training run writes to it')


def refuse_folders(monkeypatch):
    monkeypatch.setattr('os.access', lambda path, mode, **_: False)


def refuse_new_folders(monkeypatch):
    make = Path.mkdir

    def mkdir(path, *arguments, **options):
        if path.name == 'work':
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        make(path, *arguments, **options)

    monkeypatch.setattr(Path, 'mkdir', mkdir)


@pytest.mark.parametrize('refuse', [refuse_folders, refuse_new_folders, None])
def test_a_work_dir_that_cannot_be_written_to_is_refused(refuse, tmp_path, train, monkeypatch):
    work = tmp_path / 'work'
    if refuse is None:
        work.write_text('a file')
    else:
        refuse(monkeypatch)
    started = []
    message = refusal(train, work, steps=started.append)
    assert message.startswith(f'{work}: expected a folder that can be written to, got ')
    assert '\n' not in message
    assert not started
    cfg = Config({'work_dir': str(work)})
    assert refusal(training.evaluate, cfg, SimpleNamespace(path='none.pth')) == message


def test_a_lock_of_another_user_is_named(tmp_path, train, monkeypatch):
    def refuse(lock):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(training.FileLock, 'acquire', refuse)
    message = refusal(train, tmp_path / 'work')
    assert message.startswith(
        f'{tmp_path}/work/training.lock: expected a file that can be written to, got '
    )


@pytest.mark.parametrize('removed', [True, False])
def test_a_work_dir_that_was_removed_ends_the_run_with_one_line(removed, tmp_path, train):
    """The checkpoint hook creates it again after every step; other hooks write in between."""
    work = tmp_path / 'work'

    def steps(cfg):
        if removed:
            shutil.rmtree(work)
        (work / 'log' / 'scalars.json').open()

    with pytest.raises(SystemExit if removed else FileNotFoundError) as raised:
        train(work, steps=steps)
    if removed:
        assert raised.value.code.startswith(f'error: {work}: was removed while training ran')


def test_only_rank_0_holds_the_lock(tmp_path, monkeypatch):
    cfg = Config({'work_dir': str(tmp_path), 'launcher': 'pytorch'})
    monkeypatch.setenv('RANK', '0')
    with training.locked(cfg):
        monkeypatch.setenv('RANK', '1')
        with training.locked(cfg):
            pass


@pytest.mark.slow
def test_a_segmenter_trains_in_bfloat16_on_a_cpu_and_resumes(
    tiny_segmentation, tmp_path, monkeypatch
):
    """The weights stay in float32, and validation is in float32 as on a GPU."""
    monkeypatch.setattr('torch.cuda.is_available', lambda: False)
    dtypes = []

    def record(module, inputs, output):
        if isinstance(module, torch.nn.Conv2d):
            dtypes.append((module.training, output.dtype))

    options = (
        '--amp',
        'bfloat16',
        '--work-dir',
        tmp_path / 'work',
        '--cfg-options',
        'train_cfg.val_interval=2',
    )
    options = (*options, 'default_hooks.checkpoint.interval=2')
    handle = torch.nn.modules.module.register_module_forward_hook(record)
    try:
        assert run_script('train', tiny_segmentation, *options, 'train_cfg.max_iters=2') == 0
        assert (
            run_script('train', tiny_segmentation, '--resume', *options, 'train_cfg.max_iters=4')
            == 0
        )
    finally:
        handle.remove()
    assert set(dtypes) == {(True, torch.bfloat16), (False, torch.float32)}
    first, last = (
        read_checkpoint(tmp_path / 'work' / f'iter_{step}.pth')['state_dict'] for step in (2, 4)
    )
    assert {x.dtype for x in last.values()} == {torch.float32, torch.int64}
    assert any(not torch.equal(x, first[key]) for key, x in last.items())
    assert all(x.isfinite().all() for x in last.values())


CONSTRUCTORS = [
    ('default_hooks.preemption.interval=0', 'default_hooks.preemption.interval: ', '0'),
    ('default_hooks.checkpoint.intervall=2', 'default_hooks.checkpoint: ', 'intervall'),
    ('optim_wrapper.optimizer.lr=1e-4x', 'optim_wrapper: ', ''),
    ('optim_wrapper.optimizer.weight_decay=None', 'optim_wrapper: ', 'None'),
    ('optim_wrapper.clip_grad=dict(max_norm=1)', 'optim_wrapper: ', 'clip_grad'),
    ('param_scheduler.0.begin=zero', 'param_scheduler.0: ', "'str'"),
    ('param_scheduler.1.end=zero', 'param_scheduler.1: ', 'zero'),
    (
        'train_dataloader.batch_sampler.type=Samplr',
        'train_dataloader.batch_sampler.type: ',
        'Samplr',
    ),
    ('train_dataloader.dataset.pipeline.3.prob=2', 'train_dataloader.dataset.pipeline.3: ', ''),
    ('train_dataloader.sampler.shuffled=x', 'train_dataloader.sampler: ', 'shuffled'),
]
"""An option that a constructor refuses while the Runner builds it, how the message begins, and what
it holds."""


@pytest.mark.slow
@pytest.mark.parametrize(('option', 'beginning', 'value'), CONSTRUCTORS)
def test_what_a_constructor_refuses_is_one_line_with_its_key(
    option, beginning, value, tiny_config, tmp_path, capsys
):
    """MMEngine builds hooks, transforms, optimizer and schedules; its errors name no key."""
    work = tmp_path / 'work'
    assert run_script('train', tiny_config, '--work-dir', work, '--cfg-options', option) == 2
    (line,) = (line for line in capsys.readouterr().err.splitlines() if line.startswith('error: '))
    assert line.removeprefix('error: ').startswith(beginning)
    assert value in line
    assert not list(work.glob('*.pth'))
