"""Saves a checkpoint and exits when the scheduler reclaims the machine, so that training can be resumed elsewhere."""

from __future__ import annotations

import atexit
import os
import signal
from collections.abc import Callable
from functools import partial
from multiprocessing import RawValue
from typing import Any

import torch
from mmengine.device import get_device
from mmengine.dist import all_reduce, barrier, get_world_size
from mmengine.hooks import Hook

from mmpola.engine.hooks.checkpoint import ATOMIC, save_and_point
from mmpola.engine.loop import ExactEpochLoop
from mmpola.registry import HOOKS

EXIT_STATUS = 75
"""EX_TEMPFAIL of sysexits.h: temporary failure, try again. torchrun turns every status but 0 into 1."""


@HOOKS.register_module()
class PreemptionHook(Hook):
    """On a signal, finishes the step, saves `filename` in the work dir and exits with status 75.

    `--resume` then continues in the middle of the epoch with the remaining samples. All processes stop after the same
    step, one at which the optimizer stepped. A signal during validation takes effect when validation ends; under
    torchrun that may be too late, as it kills its processes 30 seconds after passing a signal on.

    Args:
        signals: names; Slurm sends SIGTERM, and with `--signal=USR1@120` SIGUSR1 120 seconds before the time limit.
        interval: with several processes, optimizer steps between cross-rank signal checks; each check synchronises the
            GPU.
        filename: name of the checkpoint; the next interruption overwrites it.

    Raises:
        ValueError: a signal is unknown, interval is less than 1, or the training loop is not an ExactEpochLoop.
    """

    priority = 'LOWEST'  # after averaging, schedules and the regular checkpoint

    def __init__(
        self,
        signals: tuple[str, ...] = ('SIGTERM', 'SIGUSR1'),
        interval: int = 10,
        filename: str = 'interrupted.pth',
    ) -> None:
        unknown = [name for name in signals if not hasattr(signal, name)]
        if unknown:
            raise ValueError(f'signals: expected names such as SIGTERM, got {", ".join(unknown)}')
        if interval < 1:
            raise ValueError(f'interval: expected an integer from 1, got {interval}')
        self.signals = [signal.Signals[name] for name in signals]
        self.interval = interval
        self.filename = filename
        self.received: signal.Signals | None = None
        self.replaced: dict[signal.Signals, Any] = {}
        self.training = RawValue('b', 0)  # shared with the workers

    def before_train(self, runner: Any) -> None:
        """Install the signal handlers, here and in the data loaders' workers."""
        if not isinstance(runner.train_loop, ExactEpochLoop):
            raise ValueError(
                "train_cfg.type: expected 'mmpola.ExactEpochLoop', which can resume in the middle of an epoch, got "
                f'{type(runner.train_loop).__name__}'
            )
        for number in self.signals:
            self.replaced[number] = signal.signal(number, self._receive)
        self.training.value = 1
        # runs before multiprocessing terminates the workers by SIGTERM, also after an error
        atexit.register(self._restore_handlers)
        for loader in filter(None, (runner.train_dataloader, runner._val_loop and runner.val_dataloader)):
            loader.worker_init_fn = partial(_start_worker, loader.worker_init_fn, self.signals, self.training)

    def after_train_iter(self, runner: Any, batch_idx: int, data_batch: Any = None, outputs: Any = None) -> None:
        """Save and exit if a process got a signal and the optimizer stepped."""
        steps, rest = divmod(runner.iter + 1, runner.optim_wrapper._accumulative_counts)
        if rest == 0 and (get_world_size() == 1 or steps % self.interval == 0) and self._any_process_signalled():
            self._save_and_exit(runner, {'epoch': runner.epoch, 'iter': runner.iter + 1})

    def after_val_epoch(self, runner: Any, metrics: dict[str, float] | None = None) -> None:
        """Save and exit if a process got a signal."""
        whole = runner.iter % runner.optim_wrapper._accumulative_counts == 0  # else gradients are being accumulated
        if self.replaced and whole and self._any_process_signalled():
            self._save_and_exit(runner, {'epoch': runner.epoch, 'iter': runner.iter})

    def after_train(self, runner: Any) -> None:
        """Restore the signal handlers."""
        self._restore_handlers()

    def _receive(self, number: int, frame: Any) -> None:
        self.received = signal.Signals(number)

    def _restore_handlers(self) -> None:
        for number, handler in self.replaced.items():
            signal.signal(number, handler)
        self.replaced = {}
        self.training.value = 0

    def _any_process_signalled(self) -> bool:
        if get_world_size() == 1:
            return self.received is not None
        received = torch.tensor(int(self.received is not None), device=get_device())
        all_reduce(received, op='max')
        return bool(received)

    def _save_and_exit(self, runner: Any, meta: dict[str, int]) -> None:
        cause = self.received.name if self.received else 'a signal to another process'
        save_and_point(runner, runner.work_dir, self.filename, meta=meta, by_epoch=False, backend_args=ATOMIC)
        barrier()
        runner.logger.warning(
            f'{cause}: stopped in epoch {meta["epoch"] + 1} after step {meta["iter"]}; --resume continues from '
            f'{runner.work_dir}/{self.filename} (exit status {EXIT_STATUS})'
        )
        runner.visualizer.close()
        self._restore_handlers()
        raise SystemExit(EXIT_STATUS)


def _start_worker(
    inner: Callable[[int], None] | None, signals: list[signal.Signals], training: Any, worker: int
) -> None:
    """Make a data loader's worker ignore the signals while training runs: schedulers send them to workers too."""

    def receive(number: int, frame: Any) -> None:
        if not training.value:
            os._exit(0)

    for number in signals:
        signal.signal(number, receive)
    if inner is not None:
        inner(worker)
