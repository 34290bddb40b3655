"""One of two gloo processes that train together: `two_processes.py COLOURS SHAPES OUT`.

All runs share one pair of processes, because a process takes longer to start than to train.
"""

import json
import os
import signal
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from mmengine.hooks import EMAHook, Hook
from mmengine.model import ExponentialMovingAverage
from mmengine.runner import get_priority
from torch import distributed, nn

from mmpola.openmmlab.run.finite import NonFiniteError
from mmpola.openmmlab.run.mean_buffers import MeanBuffersHook
from tests.helpers.configs import leave_configs_unformatted, remember_packages
from tests.helpers.training import (
    CONFIGS,
    distribute,
    interrupt_and_resume,
    run,
    saved,
    small,
    small_config,
)


def plain(data, out, **arguments):
    """Only images are random; SGD, because Adam divides rounding differences by their own size."""
    cfg = small_config(data, out, epochs=2, **arguments)
    cfg.model.data_preprocessor.mixup = None
    cfg.model.backbone.drop_path_rate = 0.0
    cfg.optim_wrapper.optimizer = {'type': 'SGD', 'lr': 0.1, 'weight_decay': 0.05}
    cfg.auto_scale_lr.base_batch_size = 4
    return cfg


class SignalOne(Hook):
    """Sends a signal to the second process only, after step 2."""

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        if runner.iter + 1 == 2 and distributed.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGTERM)


class PoisonOne(Hook):
    """Makes the weights of the second process NaN after the last step of the first epoch."""

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        if batch_idx + 1 == len(runner.train_dataloader) and distributed.get_rank() == 1:
            with torch.no_grad():
                next(runner.model.parameters()).fill_(float('nan'))


def train(data, out, *hooks, resume=False):
    """Train, and return the metrics, or the exit status with what was saved, or the error."""
    cfg = distribute(plain(data, out, batch=2))
    cfg.default_hooks.preemption.interval = 3
    try:
        return run(cfg, *hooks, resume=resume).val_loop.run()
    except SystemExit as stop:
        return [stop.code, saved(out / 'interrupted.pth')['meta']]
    except NonFiniteError as error:
        return str(error)


def average_buffers():
    """Call MeanBuffersHook and EMAHook after a step, in the order of their priorities.

    Returns the statistics of a norm, of a frozen one, and of the norm's average over the steps.
    """
    rank = distributed.get_rank()
    without = [nn.InstanceNorm2d(2), nn.BatchNorm2d(2, track_running_stats=False)]
    model = nn.Sequential(nn.BatchNorm2d(2), nn.BatchNorm2d(2).eval(), *without)
    for norm in model[:2]:
        norm.running_mean.fill_(rank)
        norm.running_var.fill_(3 * rank)
        norm.num_batches_tracked.fill_(4)
    runner = SimpleNamespace(model=model, iter=0)
    average = EMAHook(update_buffers=True)
    average.src_model = model
    average.ema_model = ExponentialMovingAverage(model, update_buffers=True)
    buffers = MeanBuffersHook()
    buffers.before_train(runner)
    for hook in sorted([average, buffers], key=lambda hook: get_priority(hook.priority)):
        hook.after_train_iter(runner, 0)
    norms = [*model[:2], average.ema_model.module[0]]
    return [{name: x.tolist() for name, x in norm.named_buffers()} for norm in norms]


def main(colours, shapes, out):
    patch = pytest.MonkeyPatch()
    remember_packages(patch)
    leave_configs_unformatted(patch)
    distributed.init_process_group('gloo')
    out = Path(out)
    results = {
        'whole': train(colours, out / 'whole'),
        'interrupted': train(colours, out / 'parts', SignalOne()),
        'resumed': train(colours, out / 'parts', resume=True),
        'poisoned': train(colours, out / 'poisoned', PoisonOne()),
        'statistics': average_buffers(),
    }
    for name, step in CONFIGS.items():

        def config(work, name=name):
            workers = 0 if work.name == 'whole' else 1
            return distribute(small(shapes, work, name, workers=workers))

        interrupt_and_resume(out / name, step, config)
    (out / f'rank{distributed.get_rank()}.json').write_text(json.dumps(results))
    distributed.destroy_process_group()


if __name__ == '__main__':
    main(*sys.argv[1:])
