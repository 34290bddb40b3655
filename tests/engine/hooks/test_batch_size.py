"""The logged batch size and learning rate, and the throughput of the same training."""

import logging

from mmengine.hooks import Hook

from tests.helpers.small_training import run, small_config


class Lines(logging.Handler):
    """Keeps the messages of the runner's logger."""

    def __init__(self):
        super().__init__()
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())


class Listen(Hook):
    """Adds `lines` to the runner's logger before anything is logged."""

    priority = 'HIGHEST'

    def __init__(self, lines):
        self.lines = lines

    def before_run(self, runner):
        runner.logger.addHandler(self.lines)
        runner.logger.setLevel(logging.INFO)


def logged(cfg):
    lines = Lines()
    run(cfg, Listen(lines))
    return lines.lines


def test_the_batch_size_and_its_learning_rate_are_logged(colours, tmp_path):
    options = {'optim_wrapper.accumulative_counts': 3, 'auto_scale_lr.base_batch_size': 8}
    lines = logged(small_config(colours, tmp_path, epochs=2, options=options))
    assert (
        'batch: 1 processes x 4 images x 3 accumulated = 12 images per optimizer step; learning rate 0.0005'
    ) in lines
    assert (
        'auto_scale_lr ignores gradient accumulation; for a learning rate proportional to the whole batch set '
        'auto_scale_lr.base_batch_size=2'
    ) in lines
    line = next(text for text in lines if text.startswith('Epoch(train) [2][6/6]'))
    assert 'images_per_second: ' in line
    assert 'data_share: ' in line
