"""One set of running statistics for all processes."""

from __future__ import annotations

from typing import Any

from mmengine.dist import all_reduce_params, get_world_size
from mmengine.hooks import EMAHook, Hook

from mmpola.registry import HOOKS


@HOOKS.register_module()
class MeanBuffersHook(Hook):
    """Averages BatchNorm's running statistics, and those of the averaged model, over the processes after every epoch.

    Each process gathers its own, and the first one's are saved: without this, what is evaluated is not what is saved.
    """

    priority = 'LOW'  # after EMAHook, before the checkpoint

    def after_train_epoch(self, runner: Any) -> None:
        """Average them."""
        if get_world_size() > 1:
            averaged = [hook.ema_model for hook in runner.hooks if isinstance(hook, EMAHook)]
            for model in (runner.model, *averaged):
                all_reduce_params(model.buffers(), op='mean')
