"""Training through tools/train.py: resuming, the work dir, mistakes that MMEngine finds, CPUs."""

import logging
from types import SimpleNamespace

import pytest
import torch
from mmengine.config import Config

from mmpola.checkpoint.safe_load import read_checkpoint
from mmpola.engine import train as training
from tests.helpers.processes import load_script, run_script
from tests.helpers.refusals import refusal
from tests.helpers.training import assert_same, saved

pytestmark = pytest.mark.usefixtures('unformatted_configs')


@pytest.fixture
def train(tiny_config, monkeypatch):
    """A function that runs tools/train.py with a function of the config in place of a Runner."""

    def train(work, *arguments, steps=lambda cfg: None):
        def build(cfg):
            return SimpleNamespace(
                train=lambda: steps(cfg),
                register_hook=lambda hook: None,
                auto_scale_lr=None,
                cfg=cfg,
                logger=logging.getLogger(),
            )

        monkeypatch.setattr(training, 'Runner', SimpleNamespace(from_cfg=build))
        monkeypatch.setattr(
            'sys.argv', ['train.py', str(tiny_config), '--work-dir', str(work), *arguments]
        )
        load_script('train').main()

    return train


def test_a_resumed_run_reads_no_pretrained_file(trained_work, train, tiny_config):
    """MMEngine would load that file first, and the checkpoint over it: it may be gone since."""
    with tiny_config.open('a') as config:
        config.write(
            "start = dict(_delete_=True, type='Pretrained', checkpoint='none.pth')\n"
            "model['backbone']['init_cfg'] = start\n"
        )
    resumed = []

    def steps(cfg):
        assert cfg.resume
        assert cfg.model.backbone.init_cfg is None
        resumed.append(cfg.load_from)

    train(trained_work, '--resume', steps=steps)
    assert resumed == [str(trained_work / 'epoch_2.pth')]


def test_a_work_dir_has_one_run_at_a_time(work, train):
    during = []

    def start_another(cfg):
        during.append(refusal(train, work, '--overwrite'))

    for _ in range(2):  # the first one released it
        train(work, '--overwrite', steps=start_another)
    assert len(during) == 2
    assert during[0].startswith(f'{work}: another training run writes to it')


@pytest.mark.slow
def test_overwriting_forgets_the_earlier_run_when_everything_is_built(
    tiny_config, work, monkeypatch
):
    """Without its record, a later --resume cannot continue from the end of the earlier run."""
    record = work / 'last_checkpoint'
    options = ('--work-dir', work, '--overwrite', '--cfg-options')
    with pytest.raises((TypeError, ValueError)):
        run_script('train', tiny_config, *options, 'param_scheduler.0.begin=zero')
    assert record.exists()

    def stop(*_, **__):
        assert record.read_bytes() == b''
        raise KeyboardInterrupt

    monkeypatch.setattr('mmpola.engine.loops.ExactEpochLoop.run_epoch', stop)
    assert run_script('train', tiny_config, *options, 'log_level=ERROR') == 130


def test_only_rank_0_holds_the_lock(tmp_path, monkeypatch):
    cfg = Config({'work_dir': str(tmp_path), 'launcher': 'pytorch'})
    monkeypatch.setenv('RANK', '0')
    with training.locked(cfg):
        monkeypatch.setenv('RANK', '1')
        with training.locked(cfg):
            pass


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
    options = ('--cfg-options', 'train_cfg.max_epochs=1', 'train_cfg.val_interval=1')
    options += ('default_hooks.checkpoint.save_best=None',)

    def train(work, *arguments):
        return run_script('train', tiny_config, '--work-dir', work, *arguments, *options)

    def stop(*_):
        raise SystemExit(9)

    work = tmp_path / 'work'
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr('mmengine.runner.ValLoop.run', stop)
        assert train(work) == 9
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


@pytest.mark.parametrize(('counts', 'base'), [(4, 4.0), (1, 16)])
def test_the_learning_rate_is_scaled_by_the_images_per_step_of_the_optimizer(
    counts, base, monkeypatch
):
    scaling = {'enable': True, 'base_batch_size': 16}
    cfg = Config({'optim_wrapper': {'accumulative_counts': counts}})
    logged = []
    monkeypatch.setattr(training, 'info', logged.append)
    training.count_accumulation(SimpleNamespace(auto_scale_lr=scaling, cfg=cfg))
    assert scaling['base_batch_size'] == base
    assert len(logged) == (counts > 1)
    training.count_accumulation(SimpleNamespace(auto_scale_lr=None, cfg=cfg))


@pytest.mark.parametrize(
    ('settings', 'start', 'value'),
    [
        ({'strategy': {'type': 'FSDPStrategy'}}, 'strategy: ', "{'type': 'FSDPStrategy'}"),
        ({'strategy': 'FSDPStrategy'}, 'strategy: ', 'FSDPStrategy'),
        (
            {'model_wrapper_cfg': {'type': 'MMFullyShardedDataParallel'}},
            'model_wrapper_cfg: ',
            'MMFullyShardedDataParallel',
        ),
    ],
)
def test_sharded_weights_are_refused(settings, start, value, tiny_config):
    """MMEngine's Runner would ignore the strategy, and save one shard under the wrapper."""
    cfg = Config.fromfile(tiny_config)
    cfg.merge_from_dict(settings)
    message = refusal(training.build_runner, cfg, [])
    assert message.startswith(start)
    assert f'got {value}; remove it, see docs/train.md' in message


def test_processes_without_a_gpu_keep_the_settings_of_their_wrapper(monkeypatch):
    monkeypatch.setattr('torch.distributed.init_process_group', lambda backend: None)
    cfg = Config({'model': {}, 'find_unused_parameters': True})
    training._use_cpu_processes(cfg)
    assert cfg.model_wrapper_cfg.find_unused_parameters is True
    cfg.model_wrapper_cfg = {'type': 'MMDistributedDataParallel', 'static_graph': True}
    training._use_cpu_processes(cfg)
    assert cfg.model_wrapper_cfg.static_graph is True
    assert cfg.model_wrapper_cfg.device_ids is None
