"""Stop a training whose loss or weights are NaN or infinite, before its checkpoints replace finite ones."""

from __future__ import annotations

from typing import Any

import numpy as np
from mmengine.hooks import EMAHook, Hook, LoggerHook

from mmpola.engine.processes import any_process
from mmpola.registry import HOOKS

PATIENCE = 10
"""Steps without a finite loss that stop a run whose weights are finite: GradScaler skips single steps in fp16."""


class NonFiniteError(ArithmeticError):
    """The loss or the weights became NaN or infinite; checkpoints that were saved earlier are finite."""


@HOOKS.register_module()
class FiniteLossHook(Hook):
    """Stops training within one logging interval after its loss became NaN or infinite, on all processes together.

    That is the case if the newest loss is not finite and the weights are not either, or if no loss
    of the interval, and of at least `PATIENCE` steps, was finite. A step that overflows in fp16 and
    is skipped by GradScaler stops nothing. MMEngine has copied every loss to the CPU for its log
    already; with several processes, a check synchronises the GPU. mmdet's CheckInvalidLossHook
    stops, by an assertion, only the process whose own loss is not finite.
    """

    priority = 'LOW'  # after the log line

    def before_train(self, runner: Any) -> None:
        """Take the interval of the log."""
        self.interval = next(
            (hook.interval for hook in runner.hooks if isinstance(hook, LoggerHook)), 50
        )

    def after_train_iter(
        self, runner: Any, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        """Check the losses since the last check.

        Raises:
            NonFiniteError: training has to stop; the message has the step and the last finite loss.
        """
        if not self.every_n_train_iters(runner, self.interval):
            return
        finite = np.isfinite(_losses(runner)[-max(self.interval, PATIENCE) :])
        never = len(finite) >= PATIENCE and not finite.any()
        if any_process(never or (not finite[-1:].all() and bool(_non_finite_tensors(runner)))):
            raise NonFiniteError(
                f'loss: expected a finite number, got NaN or infinity; {_last_finite(runner)}'
            )


def refuse_non_finite(runner: Any) -> None:
    """Check the weights, averaged ones too, before a checkpoint is written; every process calls this.

    Raises:
        NonFiniteError: some are NaN or infinite, on any process.
    """
    names = _non_finite_tensors(runner)
    if any_process(bool(names)):
        which = (
            f'{len(names)} tensors such as {names[0]}' if names else 'tensors of another process'
        )
        raise NonFiniteError(
            f'model: expected finite weights to save, got {which}; {_last_finite(runner)}'
        )


def _non_finite_tensors(runner: Any) -> list[str]:
    """Return the names of parameters with NaN or infinity, and of buffers with NaN: masks may be infinite."""
    models = [runner.model, *(hook.ema_model for hook in runner.hooks if isinstance(hook, EMAHook))]
    return [
        *(
            name
            for model in models
            for name, x in model.named_parameters()
            if not x.isfinite().all()
        ),
        *(name for model in models for name, x in model.named_buffers() if x.isnan().any()),
    ]


def _losses(runner: Any) -> np.ndarray:
    """Return the losses of this process, of all steps; empty if the model logs none."""
    history = runner.message_hub.log_scalars.get('train/loss')
    return np.empty(0) if history is None else np.asarray(history.data[0], float)


def _last_finite(runner: Any) -> str:
    step = runner.message_hub.get_info('iter', -1) + 1
    losses = _losses(runner)[:-1]  # the newest one may be finite here and not in another process
    finite = np.flatnonzero(np.isfinite(losses))
    last = (
        f'at step {step - len(losses) + finite[-1]}: {losses[finite[-1]]:.4g}'
        if len(finite)
        else 'never'
    )
    return f'stopped after step {step}, the loss was last finite {last}'
