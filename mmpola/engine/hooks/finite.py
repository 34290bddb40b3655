"""Stop a run with NaN or infinity in its loss or weights, before it replaces finite checkpoints."""

from __future__ import annotations

from typing import Any

import numpy as np
from mmengine.hooks import EMAHook, Hook, LoggerHook

from mmpola.engine.processes import any_process
from mmpola.registry import HOOKS

PATIENCE = 10
"""How many steps without a finite loss stop a run whose weights are finite.

In fp16, single losses may overflow: GradScaler skips these steps.
"""


class NonFiniteError(ArithmeticError):
    """The loss or the weights became NaN or infinite; earlier checkpoints are finite."""


@HOOKS.register_module()
class FiniteLossHook(Hook):
    """Stops training within one logging interval after its loss became NaN or infinite.

    All processes stop together. They stop if the newest loss and some weights are not finite, or if
    no loss of the interval, and of at least `PATIENCE` steps, was finite. A step that overflows in
    fp16 and is skipped by GradScaler stops nothing. The check reads the losses that MMEngine has
    copied to the CPU for its log; with several processes, it synchronises the GPU. mmdet's
    CheckInvalidLossHook stops only the process whose own loss is not finite, by an assertion.
    """

    priority = 'LOW'  # after the log line

    def before_train(self, runner: Any) -> None:
        """Take the logging interval."""
        self.interval = 50
        for hook in runner.hooks:
            if isinstance(hook, LoggerHook):
                self.interval = hook.interval
                break

    def after_train_iter(
        self, runner: Any, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        """Check the losses since the last check.

        Raises:
            NonFiniteError: training has to stop; the message has the step and the last finite loss.
        """
        if not self.every_n_train_iters(runner, self.interval):
            return
        recent = _losses(runner)[-max(self.interval, PATIENCE) :]
        finite = np.isfinite(recent)
        failed = len(finite) >= PATIENCE and not finite.any()
        newest_is_finite = finite[-1:].all()  # also if there is none
        if not failed and not newest_is_finite:
            failed = bool(_non_finite_tensors(runner))
        if any_process(failed):
            raise NonFiniteError(
                f'loss: expected a finite number, got NaN or infinity; {_last_finite(runner)}'
            )


def refuse_non_finite(runner: Any) -> None:
    """Check the weights before a checkpoint is written, averaged ones too; every process calls it.

    Raises:
        NonFiniteError: some are NaN or infinite, on any process.
    """
    names = _non_finite_tensors(runner)
    if any_process(bool(names)):
        which = 'tensors of another process'
        if names:
            which = f'{len(names)} tensors such as {names[0]}'
        raise NonFiniteError(
            f'model: expected finite weights to save, got {which}; {_last_finite(runner)}'
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


def _losses(runner: Any) -> np.ndarray:
    """Return the losses of this process, of all steps; empty if the model logs none."""
    history = runner.message_hub.log_scalars.get('train/loss')
    if history is None:
        return np.empty(0)
    losses, _ = history.data
    return np.asarray(losses, float)


def _last_finite(runner: Any) -> str:
    """Say after which step the run stopped, and when its loss was last finite."""
    step = runner.message_hub.get_info('iter', -1) + 1
    losses = _losses(runner)[:-1]  # the newest one may be finite here and not in another process
    finite = np.flatnonzero(np.isfinite(losses))
    last = 'never'
    if len(finite):
        index = finite[-1]
        last = f'at step {step - len(losses) + index}: {losses[index]:.4g}'
    return f'stopped after step {step}, the loss was last finite {last}'
