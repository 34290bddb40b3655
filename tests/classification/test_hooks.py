"""What the hooks say, and the runs that they and the loop refuse."""

import logging
from types import SimpleNamespace

import pytest
from mmengine.hooks import Hook
from mmengine.logging import MessageHub
from mmengine.runner import Runner

from mmpola.engine.hooks import PreemptionHook, ThroughputHook
from tests.helpers.small_training import run, small_config


class Lines(logging.Handler):
    """Keeps what the runner's logger says."""

    def __init__(self):
        super().__init__()
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())


class Listen(Hook):
    """Lets `lines` hear the runner from the start."""

    priority = 'HIGHEST'

    def __init__(self, lines):
        self.lines = lines

    def before_run(self, runner):
        runner.logger.addHandler(self.lines)
        runner.logger.setLevel(logging.INFO)


def spoken(cfg):
    lines = Lines()
    run(cfg, Listen(lines))
    return lines.lines


def test_the_batch_and_its_learning_rate_are_said(colours, tmp_path):
    options = {'optim_wrapper.accumulative_counts': 3, 'auto_scale_lr.base_batch_size': 8}
    said = spoken(small_config(colours, tmp_path, epochs=2, options=options))
    assert (
        'batch: 1 processes x 4 images x 3 accumulated = 12 images per step of the optimizer; learning rate 0.0005'
    ) in said
    assert (
        'auto_scale_lr does not count accumulation: for a learning rate in proportion to the whole batch set '
        'auto_scale_lr.base_batch_size=2'
    ) in said
    line = next(text for text in said if text.startswith('Epoch(train) [2][6/6]'))
    assert 'images_per_second: ' in line
    assert 'data_share: ' in line


def test_throughput_is_that_of_the_last_steps():
    hub, hook = MessageHub('throughput'), ThroughputHook(window=2)
    runner = SimpleNamespace(message_hub=hub)
    for seconds, waited, images in ((9.0, 9.0, 1), (1.0, 0.5, 6), (3.0, 0.5, 2)):
        hub.update_scalar('train/time', seconds)
        hub.update_scalar('train/data_time', waited)
        hook.after_train_iter(runner, 0, {'inputs': [None] * images})
    assert hub.get_scalar('train/images_per_second').current() == 2.0
    assert hub.get_scalar('train/data_share').current() == 0.25


REFUSED = {
    'sampler': (
        {'train_dataloader.sampler.type': 'DefaultSampler'},
        "train_dataloader.sampler: expected type='mmpola.DrawSampler', got DefaultSampler",
    ),
    'batch': (
        {'train_dataloader.batch_size': 25},
        'train_dataloader: 24 images per process make no batch of 25 with drop_last=True',
    ),
    'classes': (
        {'model.num_classes': 4},
        'model.num_classes: expected 3, the classes of train_dataloader, got 4',
    ),
    'loop': (
        {'train_cfg.type': 'EpochBasedTrainLoop'},
        "train_cfg.type: expected 'mmpola.ExactEpochLoop', which goes on in the middle of an epoch, got "
        'EpochBasedTrainLoop',
    ),
    'topk': (
        {'val_evaluator.topk': (1, 5)},
        'topk: expected numbers up to that of the classes, 3, got 5',
    ),
}


@pytest.mark.parametrize('case', REFUSED)
def test_refused_before_the_first_step(case, colours, tmp_path):
    options, message = REFUSED[case]
    with pytest.raises(ValueError) as raised:
        run(small_config(colours, tmp_path, options=options))
    assert str(raised.value) == message
    assert not list(tmp_path.glob('*.pth'))


def test_a_test_of_other_classes_is_refused(colours, tmp_path):
    runner = Runner.from_cfg(small_config(colours, tmp_path, options={'model.num_classes': 4}))
    with pytest.raises(ValueError) as raised:
        runner.test()
    assert str(raised.value) == 'model.num_classes: expected 3, the classes of test_dataloader, got 4'


def test_another_batch_in_the_middle_of_an_epoch_is_refused(colours, tmp_path):
    class Stop(Hook):
        def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
            if runner.iter == 7:
                raise KeyboardInterrupt

    options = {'default_hooks.checkpoint.by_epoch': False, 'default_hooks.checkpoint.interval': 7}
    with pytest.raises(KeyboardInterrupt):
        run(small_config(colours, tmp_path, options=options), Stop())
    assert (tmp_path / 'last_checkpoint').read_text() == f'{tmp_path}/iter_7.pth'
    with pytest.raises(ValueError) as raised:
        run(small_config(colours, tmp_path, batch=6), resume=True)
    assert str(raised.value) == (
        'resume: this training took 4 images per step (processes x train_dataloader.batch_size), got 6: go on with the '
        'same number, to which its learning rates and schedules belong'
    )


@pytest.mark.parametrize(
    ('build', 'message'),
    [
        (lambda: PreemptionHook(signals=('SIGTERM', 'USR1')), 'signals: expected names such as SIGTERM, got USR1'),
        (lambda: PreemptionHook(interval=0), 'interval: expected an integer from 1, got 0'),
        (lambda: ThroughputHook(window=0), 'window: expected an integer from 1, got 0'),
    ],
)
def test_bad_arguments(build, message):
    with pytest.raises(ValueError) as raised:
        build()
    assert str(raised.value) == message
