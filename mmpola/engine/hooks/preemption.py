"""Save a checkpoint and exit when the scheduler reclaims the machine or the user presses Ctrl-C."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from multiprocessing import RawValue
from typing import Any

from mmengine.dist import barrier, get_world_size, is_main_process
from mmengine.hooks import EMAHook, Hook

from mmpola.engine.hooks.atomic_checkpoint import ATOMIC_BACKEND, INTERRUPTED, save_and_point
from mmpola.engine.loops import ExactEpochLoop, ExactIterLoop
from mmpola.engine.processes import any_process
from mmpola.messages import CTRL_C
from mmpola.registry import HOOKS

PREEMPTED = 75
"""Exit status EX_TEMPFAIL of sysexits.h: temporary failure, try again.

torchrun itself ends with 1 if a process ends with any status but 0.
"""

REPEAT_SECONDS = 2.0
"""Seconds after which another Ctrl-C means to stop at once.

torchrun passes the first one on a moment later.
"""


@HOOKS.register_module()
class PreemptionHook(Hook):
    """On a signal, finishes the step, saves `interrupted.pth` in the work dir and exits.

    `--resume` then continues in the middle of the epoch with the remaining samples, or with the
    validation that was interrupted; the file is removed when the resumed run saves a checkpoint.
    All processes stop after the same step, which is one that updated the weights. The exit status
    is 75, or 130 after Ctrl-C (SIGINT); another Ctrl-C stops the process at once. A signal that
    arrives while metrics are computed takes effect after the next step. Under torchrun this may be
    too late: torchrun kills its processes 30 seconds after it has passed a signal on.

    Args:
        signals: names; Slurm sends SIGTERM, and with `--signal=USR1@120` SIGUSR1 120 seconds before
            the time limit; a terminal that closes sends SIGHUP. Signals that are ignored already,
            as by nohup, stay ignored.
        interval: number of optimizer steps, or batches of validation, between two checks whether a
            process got a signal. It applies to several processes: a check synchronises their GPUs.

    Raises:
        ValueError: a signal is unknown, interval is less than 1, or the training loop cannot resume
            within an epoch.
    """

    priority = 'LOWEST'  # after averaging, schedules and the regular checkpoint

    def __init__(
        self,
        signals: tuple[str, ...] = ('SIGINT', 'SIGTERM', 'SIGUSR1', 'SIGHUP'),
        interval: int = 10,
    ) -> None:
        unknown = [name for name in signals if not hasattr(signal, name)]
        if unknown:
            raise ValueError(f'signals: expected names such as SIGTERM, got {", ".join(unknown)}')
        if interval < 1:
            raise ValueError(f'interval: expected a positive integer, got {interval}')
        self.signals = [signal.Signals[name] for name in signals]
        self.interval = interval
        self.received: signal.Signals | None = None
        self.received_at = 0.0
        self.replaced: dict[signal.Signals, Any] = {}
        self.training = RawValue('b', 0)  # shared with the workers

    def before_train(self, runner: Any) -> None:
        """Install the signal handlers, here and in the data loaders' workers."""
        if not isinstance(runner.train_loop, ExactEpochLoop):
            raise ValueError(
                "train_cfg.type: expected 'mmpola.ExactEpochLoop' or 'mmpola.ExactIterLoop', which "
                f'can resume after any step, got {type(runner.train_loop).__name__}'
            )
        for number in self.signals:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self.replaced[number] = signal.signal(number, self._receive)
        self.training.value = 1
        # This runs before multiprocessing terminates the workers by SIGTERM, also after an error.
        atexit.register(self._restore_handlers)
        loaders = [runner.train_dataloader]
        if runner._val_loop is not None:
            loaders.append(runner.val_dataloader)
        for loader in loaders:
            loader.worker_init_fn = partial(
                _start_worker, loader.worker_init_fn, list(self.replaced), self.training
            )

    def after_train_iter(
        self, runner: Any, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        """Save and exit if a process got a signal and the optimizer stepped."""
        steps, accumulated = divmod(runner.iter + 1, runner.optim_wrapper._accumulative_counts)
        if accumulated > 0:  # the checkpoint would lack their gradients
            return
        if get_world_size() > 1 and steps % self.interval != 0:
            return
        if any_process(self.received is not None):
            self._save_and_exit(runner, {'epoch': runner.epoch, 'iter': runner.iter + 1})

    def after_val_iter(
        self, runner: Any, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        """Save and exit if a process got a signal; the resumed run validates from the beginning."""
        accumulating = runner.iter % runner.optim_wrapper._accumulative_counts != 0
        if not self.training.value or accumulating:
            return
        loader = runner.val_dataloader
        processes = get_world_size()
        common_batches = len(loader.dataset) // processes // loader.batch_sampler.batch_size
        all_check_now = batch_idx < common_batches and batch_idx % self.interval == 0
        if processes > 1 and not all_check_now:
            return
        if any_process(self.received is not None):
            for hook in runner.hooks:
                if isinstance(hook, EMAHook):
                    hook.after_val_epoch(runner)  # puts back the weights that it replaced
            self._save_and_exit(runner, {'epoch': runner.epoch, 'iter': runner.iter})

    def after_train(self, runner: Any) -> None:
        """Restore the signal handlers."""
        self._restore_handlers()

    def _receive(self, number: int, frame: Any) -> None:
        """Note the first signal; stop at once at another Ctrl-C."""
        now = time.monotonic()
        if number == signal.SIGINT and self.received and now - self.received_at > REPEAT_SECONDS:
            raise KeyboardInterrupt
        if number == signal.SIGINT and not self.received and is_main_process():
            message = (
                '\nCtrl-C: saving a checkpoint after this step; press it again to stop without '
                'saving\n'
            )
            os.write(sys.stderr.fileno(), message.encode())  # print fails if it is interrupted
        if not self.received:
            self.received = signal.Signals(number)
            self.received_at = now

    def _restore_handlers(self) -> None:
        for number, handler in self.replaced.items():
            signal.signal(number, handler)
        self.replaced = {}
        self.training.value = 0

    def _save_and_exit(self, runner: Any, meta: dict[str, int]) -> None:
        cause = 'a signal to another process'
        if self.received is not None:
            cause = self.received.name
        status = PREEMPTED
        if self.received == signal.SIGINT:
            status = CTRL_C
        save_and_point(
            runner,
            runner.work_dir,
            INTERRUPTED,
            meta=meta,
            by_epoch=False,
            backend_args=ATOMIC_BACKEND,
        )
        barrier()
        epoch = f'in epoch {meta["epoch"] + 1} '
        if isinstance(runner.train_loop, ExactIterLoop):
            epoch = ''
        runner.logger.warning(
            f'{cause}: stopped {epoch}after step {meta["iter"]}; --resume continues from '
            f'{runner.work_dir}/{INTERRUPTED} (exit status {status})'
        )
        runner.visualizer.close()
        self._restore_handlers()
        raise SystemExit(status)


def _start_worker(
    inner: Callable[[int], None] | None, signals: list[signal.Signals], training: Any, worker: int
) -> None:
    """Make a data loader's worker ignore the signals, which it gets too, while training runs."""

    def receive(number: int, frame: Any) -> None:
        if not training.value:
            os._exit(0)

    for number in signals:
        signal.signal(number, receive)
    if inner is not None:
        inner(worker)
