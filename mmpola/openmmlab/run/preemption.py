"""Save a checkpoint and exit when the scheduler reclaims the machine or the user presses Ctrl-C."""

from __future__ import annotations

import atexit
import os
import signal
import sys
from collections.abc import Callable
from functools import cache, partial
from multiprocessing import RawValue
from typing import Any

from mmengine.dist import barrier, get_world_size, is_main_process
from mmengine.hooks import Hook

from mmpola.messages import CTRL_C, UsageError
from mmpola.openmmlab.processes import any_process
from mmpola.openmmlab.run.atomic_checkpoint import ATOMIC_BACKEND, INTERRUPTED, save_and_point
from mmpola.openmmlab.run.loops import ExactEpochLoop, accumulated_steps

PREEMPTED = 75
"""Exit status EX_TEMPFAIL of sysexits.h: temporary failure, try again.

torchrun itself ends with 1 if a process ends with any status but 0.
"""


class PreemptionHook(Hook):
    """On a signal, finishes the step, saves `interrupted.pth` in the work dir and exits.

    `--resume` then continues in the middle of the epoch with the remaining samples; the file is
    removed when the resumed run saves a checkpoint. All processes stop after the same step, which
    is one that updated the weights. A validation that is running is finished first. The exit
    status is 75, or 130 after Ctrl-C (SIGINT); another Ctrl-C stops a single process at once.
    Under torchrun there may be too little time: it kills its processes 30 seconds after it has
    passed a signal on.

    Args:
        signals: names; Slurm sends SIGTERM, and with `--signal=USR1@120` SIGUSR1 120 seconds before
            the time limit; a terminal that closes sends SIGHUP. Signals that are ignored already,
            as by nohup, stay ignored. Those that Windows does not have are left out there.
        interval: number of optimizer steps between two checks whether a process got a signal. It
            applies to several processes: a check synchronises their GPUs.

    Raises:
        KeyError: there is no signal of a name.
        UsageError: the training loop cannot resume within an epoch.
    """

    priority = 'LOWEST'  # after averaging, schedules and the regular checkpoint

    def __init__(
        self,
        signals: tuple[str, ...] = ('SIGINT', 'SIGTERM', 'SIGUSR1', 'SIGHUP'),
        interval: int = 10,
    ) -> None:
        if sys.platform == 'win32':
            signals = tuple(name for name in signals if name in signal.Signals.__members__)
        self.signals = [signal.Signals[name] for name in signals]
        self.interval = interval
        self.received: signal.Signals | None = None
        self.replaced: dict[signal.Signals, Any] = {}
        self.training = RawValue('b', 0)  # shared with the workers

    def before_train(self, runner: Any) -> None:
        """Install the signal handlers, here and in the data loaders' workers."""
        if not isinstance(runner.train_loop, ExactEpochLoop):
            raise UsageError(
                "train_cfg.type: expected 'mmpola.ExactEpochLoop' or 'mmpola.ExactIterLoop', which "
                f'can resume after any step, got {type(runner.train_loop).__name__}'
            )
        for number in self.signals:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self.replaced[number] = signal.signal(number, self._receive)
        self.process = os.getpid()
        if sys.platform != 'win32':
            _let_forks_be_ended()
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
        steps, accumulated = divmod(runner.iter + 1, accumulated_steps(runner.optim_wrapper))
        if accumulated > 0:  # the checkpoint would lack their gradients
            return
        if get_world_size() > 1 and steps % self.interval != 0:
            return
        if any_process(self.received is not None):
            self._save_and_exit(runner)

    def after_train(self, runner: Any) -> None:
        """Restore the signal handlers."""
        self._restore_handlers()

    def _receive(self, number: int, frame: Any) -> None:
        """Note the first signal; stop a single process at once at another Ctrl-C."""
        if os.getpid() != self.process:  # a process that a metric has forked
            return
        if self.received is not None:
            under_torchrun = 'TORCHELASTIC_RUN_ID' in os.environ  # it passes on the first again
            if number == signal.SIGINT and not under_torchrun:
                raise KeyboardInterrupt
            return
        self.received = signal.Signals(number)
        if number == signal.SIGINT and is_main_process():
            message = b'\nCtrl-C: saving a checkpoint after this step\n'
            os.write(sys.stderr.fileno(), message)  # print fails if it is interrupted

    def _restore_handlers(self) -> None:
        for number, handler in self.replaced.items():
            signal.signal(number, handler)
        self.replaced = {}
        self.training.value = 0

    def _save_and_exit(self, runner: Any) -> None:
        cause = 'a signal to another process'
        if self.received is not None:
            cause = self.received.name
        status = PREEMPTED
        if self.received == signal.SIGINT:
            status = CTRL_C
        steps = runner.iter + 1
        save_and_point(
            runner,
            runner.work_dir,
            INTERRUPTED,
            meta={'epoch': runner.epoch, 'iter': steps},
            by_epoch=False,
            backend_args=ATOMIC_BACKEND,
        )
        barrier()
        runner.logger.warning(
            f'{cause}: stopped after step {steps}; --resume continues from '
            f'{runner.work_dir}/{INTERRUPTED} (exit status {status})'
        )
        runner.visualizer.close()
        self._restore_handlers()
        raise SystemExit(status)


@cache
def _let_forks_be_ended() -> None:
    """Give processes that are forked from now on the system's handler of SIGTERM.

    mmdet's VOCMetric ends its pool by SIGTERM and waits for it. Python loses a signal that a new
    process gets before it runs, so SIGTERM is held back until the handler is replaced. Workers of
    data loaders install their own.
    """

    def block() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

    def unblock() -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})

    def restore() -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        unblock()

    os.register_at_fork(before=block, after_in_parent=unblock, after_in_child=restore)


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
