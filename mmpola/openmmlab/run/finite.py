"""Stop a run with NaN or infinity in its loss or weights, before it replaces finite checkpoints."""

from __future__ import annotations

import math
from typing import Any

from mmengine.hooks import EMAHook, Hook, LoggerHook

from mmpola.messages import UsageError
from mmpola.openmmlab.processes import any_process


class NonFiniteError(UsageError):
    """The loss or the weights became NaN or infinite; earlier checkpoints are finite."""


class FiniteLossHook(Hook):
    """Stops training within one logging interval after its weights became NaN or infinite.

    All processes stop together. They stop if the newest loss and some weights are not finite: a
    step that overflows in fp16 and is skipped by GradScaler stops nothing. The check reads the loss
    that MMEngine has copied to the CPU for its log; with several processes, it synchronises the
    GPU. mmdet's CheckInvalidLossHook stops only the process whose own loss is not finite.
    """

    priority = 'LOW'  # after the log line

    def before_train(self, runner: Any) -> None:
        """Take the logging interval."""
        self.interval = 50
        for hook in runner.hooks:
            if isinstance(hook, LoggerHook):
                self.interval = hook.interval

    def after_train_iter(
        self, runner: Any, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        """Check the newest loss, and the weights if it is not finite.

        Raises:
            NonFiniteError: training has to stop.
        """
        if not self.every_n_train_iters(runner, self.interval):
            return
        history = runner.message_hub.log_scalars.get('train/loss')
        failed = False
        if history is not None and not math.isfinite(history.current()):
            failed = bool(_non_finite_tensors(runner))
        if any_process(failed):
            raise NonFiniteError(
                f'loss: NaN or infinity at step {runner.iter + 1}; earlier checkpoints are finite'
            )


def refuse_non_finite(runner: Any, alone: bool = False) -> None:
    """Check the weights before a checkpoint is written, averaged ones too; every process calls it.

    Args:
        runner: of the run.
        alone: only this process calls it.

    Raises:
        NonFiniteError: some are NaN or infinite, on any process.
    """
    names = _non_finite_tensors(runner)
    failed = bool(names)
    if not alone:
        failed = any_process(failed)
    if failed:
        which = 'another process'
        if names:
            which = names[0]
        raise NonFiniteError(
            f'model: expected finite weights to save at step {runner.iter}, got NaN or infinity in '
            f'{which}; earlier checkpoints are finite'
        )


def _non_finite_tensors(runner: Any) -> list[str]:
    """Return the names of parameters with NaN or infinity, and of buffers with NaN.

    Buffers, such as masks, may be infinite. The averaged models of EMAHooks are read too.
    """
    models = [runner.model]
    for hook in runner.hooks:
        if isinstance(hook, EMAHook):
            models.append(hook.ema_model)
    names = []
    for model in models:
        for name, x in model.named_parameters():
            if not x.isfinite().all():
                names.append(name)
        for name, x in model.named_buffers():
            if x.isnan().any():
                names.append(name)
    return names
