"""Training through tools/train.py: other weights, bfloat16 on a CPU, a run that was killed."""

import pytest
import torch
from filelock import FileLock

from mmpola.checkpoint.safe_load import read_checkpoint
from tests.helpers.processes import run_script
from tests.helpers.training import assert_same, saved, small_config

pytestmark = pytest.mark.usefixtures('unformatted_configs')


@pytest.mark.slow
def test_a_run_starts_from_other_weights_and_so_does_their_average(
    tiny_config, write_checkpoint, tmp_path
):
    """With a learning rate of 0, the raw and the averaged weights stay those of the file.

    A job that is restarted has --resume from its first start on.
    """
    path = write_checkpoint(tiny_config, tmp_path / 'start.pth')
    options = (
        f'load_from={path}',
        'default_hooks.average.type=EMAHook',
        'optim_wrapper.optimizer.lr=0',
        'train_cfg.max_epochs=1',
        'train_cfg.val_interval=2',
    )
    work = tmp_path / 'work'
    arguments = ('--work-dir', work, '--resume', '--cfg-options', *options)
    assert run_script('train', tiny_config, *arguments) == 0
    saved = read_checkpoint(work / 'epoch_1.pth')
    expected = read_checkpoint(path)['state_dict']
    for name, x in expected.items():
        assert_same(saved['state_dict'][name], x, name)
        assert_same(saved['ema_state_dict'][f'module.{name}'], x, name)


@pytest.mark.slow
@pytest.mark.parametrize(
    ('fixture', 'unit'), [('tiny_config', 'epoch'), ('tiny_segmentation', 'iter')]
)
def test_a_model_trains_in_bfloat16_on_a_cpu_and_resumes(
    fixture, unit, request, tmp_path, monkeypatch
):
    """The weights stay in float32, and validation is in float32 as on a GPU."""
    config = request.getfixturevalue(fixture)
    monkeypatch.setattr('torch.cuda.is_available', lambda: False)
    dtypes = []

    def record(module, inputs, output):
        if isinstance(module, torch.nn.Conv2d) and not output.is_meta:  # as checks of data run it
            dtypes.append((module.training, output.dtype))

    options = (
        '--amp',
        'bfloat16',
        '--work-dir',
        tmp_path / 'work',
        '--cfg-options',
        'train_cfg.val_interval=1',
        'default_hooks.checkpoint.interval=1',
        'default_hooks.checkpoint.max_keep_ckpts=2',
    )
    handle = torch.nn.modules.module.register_module_forward_hook(record)
    try:
        assert run_script('train', config, *options, f'train_cfg.max_{unit}s=1') == 0
        assert run_script('train', config, '--resume', *options, f'train_cfg.max_{unit}s=2') == 0
    finally:
        handle.remove()
    assert set(dtypes) == {(True, torch.bfloat16), (False, torch.float32)}
    first, last = (
        read_checkpoint(tmp_path / 'work' / f'{unit}_{number}.pth')['state_dict']
        for number in (1, 2)
    )
    assert {x.dtype for x in last.values()} <= {torch.float32, torch.int64}
    assert any(not torch.equal(x, first[key]) for key, x in last.items())
    assert all(x.isfinite().all() for x in last.values())


@pytest.mark.slow
def test_a_run_killed_in_its_last_validation_ends_as_a_whole_one(tiny_config, tmp_path, capsys):
    """The last checkpoint is saved once more, with the metrics of the validation.

    A run that has ended is not validated again, even if its last validation was not the best one,
    after which MMEngine saves nothing.
    """
    options = ('--skip-checks', 'trial', '--cfg-options')  # the trial validates, too
    options += ('train_cfg.max_epochs=1', 'train_cfg.val_interval=1')
    options += ('default_hooks.checkpoint.save_best=None',)

    def train(work, *arguments):
        return run_script('train', tiny_config, '--work-dir', work, *arguments, *options)

    def stop(*_):
        raise SystemExit(9)

    work = tmp_path / 'work'
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr('mmengine.runner.ValLoop.run', stop)
        assert train(work) == 9
    assert (work / 'epoch_1.pth').is_file()
    assert train(work, '--resume') == 0
    whole = tmp_path / 'whole'
    assert train(whole) == 0
    assert_same(saved(work / 'epoch_1.pth'), saved(whole / 'epoch_1.pth'))

    capsys.readouterr()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr('mmengine.runner.ValLoop.run', stop)
        for ended in (work, whole):
            assert train(ended, '--resume') == 0
            assert 'nothing is left to train or validate' in capsys.readouterr().out


def test_a_run_looks_into_its_work_dir_while_no_other_writes_to_it(colours, tmp_path, capsys):
    """Otherwise it would write over checkpoints that come after it has looked."""
    config = tmp_path / 'small.py'
    small_config(colours, tmp_path / 'unused', epochs=1).dump(config)
    work = tmp_path / 'work'
    work.mkdir()
    (work / 'epoch_1.pth').touch()
    with FileLock(work / 'training.lock'):
        assert run_script('train', config, '--work-dir', work) == 2
    assert 'another training run writes to it' in capsys.readouterr().err
    assert run_script('train', config, '--work-dir', work) == 2
    assert 'holds checkpoints that this run would overwrite' in capsys.readouterr().err
