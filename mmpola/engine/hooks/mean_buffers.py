"""Average the running statistics of BatchNorm over all processes."""

from __future__ import annotations

from typing import Any

from mmengine.dist import all_reduce_params
from mmengine.hooks import EMAHook, SyncBuffersHook


class MeanBuffersHook(SyncBuffersHook):
    """MMEngine's SyncBuffersHook, which also averages the buffers of the EMA.

    The buffers are the running statistics of BatchNorm. Each process computes its own and rank 0
    saves its own, so without this hook the saved model is not the one that was evaluated. As in
    SyncBuffersHook, they are averaged after every epoch, and in iteration-based training before
    every validation.
    """

    priority = 'LOW'  # after EMAHook, before the checkpoint is written

    def before_val_epoch(self, runner: Any) -> None:
        """Average the buffers unless this was done after the training epoch."""
        if not self.called_in_train:
            self._average_ema_buffers(runner)
        super().before_val_epoch(runner)

    def after_train_epoch(self, runner: Any) -> None:
        """Average the buffers."""
        self._average_ema_buffers(runner)
        super().after_train_epoch(runner)

    def _average_ema_buffers(self, runner: Any) -> None:
        if not self.distributed:
            return
        for hook in runner.hooks:
            if isinstance(hook, EMAHook):
                all_reduce_params(hook.ema_model.buffers(), op='mean')
