"""One of two gloo processes that train and evaluate together; tests start it as `two_processes.py DATA OUT CASE`."""

import json
import os
import signal
import sys
from pathlib import Path

import torch
from mmengine.hooks import Hook
from torch import distributed

from tests.helpers.small_training import run, small_config


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


HOOKS = {'interrupted': SignalOne, 'poisoned': PoisonOne}


def main(data, out, case):
    distributed.init_process_group('gloo')
    cfg = plain(data, out, batch=2)
    cfg.launcher = 'pytorch'
    cfg.model_wrapper_cfg = {'type': 'MMDistributedDataParallel', 'device_ids': None, 'broadcast_buffers': False}
    cfg.default_hooks.preemption.interval = 3
    hooks = [HOOKS[case]()] if case in HOOKS else []
    runner = run(cfg, *hooks, resume=case == 'resumed')
    metrics = runner.val_loop.run()
    Path(out, f'rank{distributed.get_rank()}.json').write_text(json.dumps(metrics))
    distributed.destroy_process_group()


if __name__ == '__main__':
    main(*sys.argv[1:])
