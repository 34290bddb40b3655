"""What tools/train.py does before the first step: resuming, the work dir, CPUs."""

import logging
from types import SimpleNamespace

import pytest
from mmengine.config import Config

from mmpola.openmmlab.run import train as training
from tests.helpers.processes import load_script, run_script
from tests.helpers.refusals import refusal

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
    assert run_script('train', tiny_config, *options, 'param_scheduler.0.begin=zero') == 2
    assert record.exists()

    def stop(*_, **__):
        assert record.read_bytes() == b''
        raise KeyboardInterrupt

    monkeypatch.setattr('mmpola.openmmlab.run.loops.ExactEpochLoop.run_epoch', stop)
    assert run_script('train', tiny_config, *options, 'log_level=ERROR') == 130


def test_only_rank_0_holds_the_lock(tmp_path, monkeypatch):
    cfg = Config({'work_dir': str(tmp_path), 'launcher': 'pytorch'})
    monkeypatch.setenv('RANK', '0')
    with training.locked(cfg):
        monkeypatch.setenv('RANK', '1')
        with training.locked(cfg):
            pass


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
