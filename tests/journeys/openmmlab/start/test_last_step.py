"""A run that ends early leaves its last weights, and continues as if it had not ended."""

import copy

import pytest
from mmengine.hooks import Hook

from mmpola.checkpoint.safe_load import read_checkpoint
from mmpola.openmmlab.run.runner import Runner
from tests.helpers.configs import SMALL_ARCHS
from tests.helpers.training import assert_same, forget_runs, saved, small_config

pytestmark = pytest.mark.usefixtures('unformatted_configs')

STEPS = 6
"""Of an epoch: 24 images in batches of 4."""

AVERAGING = {'type': 'EMAHook', 'momentum': 0.2}


class Fails(Hook):
    """Fails in a method when this many steps or more have been made before it was called."""

    def __init__(self, method, steps, priority):
        self.priority = priority
        self.steps = steps
        setattr(self, method, self._fail)

    def _fail(self, runner, **_):
        if runner.iter >= self.steps:
            raise RuntimeError('broken')


def config(colours, work, **options):
    """A classifier with a schedule by steps and averaged weights; one checkpoint, at the end."""
    cfg = small_config(colours, work, epochs=2, options=options)
    cfg.custom_hooks = [AVERAGING]
    cfg.default_hooks.checkpoint = {'type': 'CheckpointHook', 'interval': 100}
    cfg.train_cfg.val_interval = 1
    return cfg


def train(cfg, *hooks, resume=False):
    """Train with the Runner of `mmpola train`."""
    cfg = copy.deepcopy(cfg)
    cfg.resume = resume
    forget_runs()
    runner = Runner.from_cfg(cfg)
    for hook in hooks:
        runner.register_hook(hook)
    runner.train()
    return runner


@pytest.fixture(scope='module')
def whole(colours, tmp_path_factory):
    """What the last checkpoint of an uninterrupted run holds."""
    work = tmp_path_factory.mktemp('whole')
    train(config(colours, work))
    return saved(work / 'epoch_2.pth')


@pytest.mark.parametrize(
    ('method', 'steps', 'priority', 'left'),
    [
        ('before_train_iter', 4, 'NORMAL', 4),
        ('after_train_iter', 4, 'HIGH', 5),  # before the average and the schedule
        ('after_train_iter', 4, 'LOWEST', 5),
        ('after_train_iter', STEPS - 1, 'LOWEST', STEPS),
        ('after_train_epoch', 4, 'HIGH', STEPS),
        ('before_val_epoch', 4, 'HIGH', STEPS),  # the model has its own weights
        ('before_val_epoch', 4, 'LOWEST', STEPS),  # the averaged ones
        ('after_val_iter', 4, 'LOWEST', STEPS),
        ('after_val_epoch', 4, 'HIGH', STEPS),
        ('after_val_epoch', 4, 'LOWEST', STEPS),  # its own again
    ],
)
def test_a_run_that_fails_continues_after_its_last_step(
    method, steps, priority, left, whole, colours, tmp_path
):
    cfg = config(colours, tmp_path)
    with pytest.raises(RuntimeError, match='broken'):
        train(cfg, Fails(method, steps, priority))
    assert (tmp_path / 'last_checkpoint').read_text() == str(tmp_path / 'interrupted.pth')
    assert read_checkpoint(tmp_path / 'interrupted.pth')['meta']['iter'] == left
    train(cfg, resume=True)
    found = saved(tmp_path / 'epoch_2.pth')
    if method in ('before_train_iter', 'after_val_epoch'):  # logged before it fails, and again
        found['log'] = whole['log']
    assert_same(found, whole)
    assert not (tmp_path / 'interrupted.pth').exists()


class FailsInForward(Hook):
    """Fails in the forward pass of a step, from 1 on, when all of the backbone has run."""

    def __init__(self, step):
        self.step = step

    def before_train(self, runner):
        runner.model.backbone.register_forward_hook(lambda *_: self._fail(runner))

    def _fail(self, runner):
        if runner.model.training and runner.iter + 1 == self.step:
            raise RuntimeError('broken')


def test_a_step_that_fails_leaves_no_trace_in_running_statistics(colours, tmp_path):
    """Its images are read again, and would be counted twice."""

    def with_batch_norm(name):
        cfg = config(colours, tmp_path / name)
        cfg.model.backbone.update(
            type='mmpola.PolaFormerPP', arch=SMALL_ARCHS['mmpola.PolaFormerPP']
        )
        return cfg

    train(with_batch_norm('whole'))
    with pytest.raises(RuntimeError, match='broken'):
        train(with_batch_norm('parts'), FailsInForward(step=4))
    assert read_checkpoint(tmp_path / 'parts' / 'interrupted.pth')['meta']['iter'] == 3
    train(with_batch_norm('parts'), resume=True)
    ends = [saved(tmp_path / name / 'epoch_2.pth') for name in ('parts', 'whole')]
    assert any('running_var' in name for name in ends[0]['state_dict'])
    ends[0]['log'] = ends[1]['log']  # the learning rate is logged before it fails, and again
    assert_same(*ends)


def test_what_a_checkpoint_holds_is_not_saved_again(colours, tmp_path):
    cfg = config(colours, tmp_path)
    cfg.default_hooks.checkpoint.interval = 1
    with pytest.raises(RuntimeError, match='broken'):
        train(cfg, Fails('after_val_epoch', 4, 'LOWEST'))
    assert not (tmp_path / 'interrupted.pth').exists()
    assert (tmp_path / 'last_checkpoint').read_text() == str(tmp_path / 'epoch_1.pth')


def test_a_run_that_another_hook_ends_saves_its_last_weights(colours, tmp_path):
    """EarlyStoppingHook ends it between two checkpoints."""
    cfg = config(colours, tmp_path)
    cfg.train_cfg.max_epochs = 9
    stops = {'type': 'EarlyStoppingHook', 'monitor': 'accuracy/top1', 'min_delta': 200}
    cfg.custom_hooks = [AVERAGING, {**stops, 'patience': 1}]
    runner = train(cfg)
    assert runner.epoch < 9
    last = tmp_path / f'epoch_{runner.epoch}.pth'
    assert (tmp_path / 'last_checkpoint').read_text() == str(last)
    assert read_checkpoint(last)['meta']['iter'] == runner.iter
    cfg.work_dir = str(tmp_path / 'none')
    cfg.default_hooks.checkpoint.save_last = False
    train(cfg)
    assert not list((tmp_path / 'none').glob('*.pth'))


@pytest.mark.parametrize('loop', ['mmpola.ExactIterLoop', 'IterBasedTrainLoop'])
def test_a_hook_that_counts_epochs_in_a_loop_of_steps_says_so(loop, colours, tmp_path):
    cfg = config(colours, tmp_path)
    cfg.train_cfg = {'type': loop, 'max_iters': 20}
    cfg.val_cfg = cfg.val_dataloader = cfg.val_evaluator = None
    cfg.param_scheduler = []
    cfg.default_hooks.pop('preemption')  # it needs a loop of mmpola
    with pytest.raises(RuntimeError, match='broken'):
        train(cfg, Fails('after_train_iter', 10, 'NORMAL'))
    log = next(tmp_path.glob('*/*.log')).read_text()
    assert log.count('[counting]') == 1
    assert log.count('default_hooks.checkpoint: counts epochs, but train_cfg counts steps') == 1
    assert f'stopped after 11 steps; --resume continues from {tmp_path}/interrupted.pth' in log
    assert read_checkpoint(tmp_path / 'interrupted.pth')['meta']['iter'] == 11
