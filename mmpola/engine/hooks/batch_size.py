"""Logs how many images make an optimizer step and which learning rate is used with them."""

from __future__ import annotations

from typing import Any

from mmengine.dist import get_world_size
from mmengine.hooks import Hook

from mmpola.registry import HOOKS


@HOOKS.register_module()
class BatchSizeHook(Hook):
    """Logs processes x images x accumulation, and the highest learning rate of the schedule, before training.

    MMEngine's auto_scale_lr ignores gradient accumulation: if both are on, the hook logs the base batch size that makes
    the learning rate proportional to the whole batch.
    """

    def before_train(self, runner: Any) -> None:
        """Log the line."""
        processes, images = get_world_size(), runner.train_dataloader.batch_sampler.batch_size
        accumulated = runner.optim_wrapper._accumulative_counts
        rate = max(group.get('initial_lr', group['lr']) for group in runner.optim_wrapper.optimizer.param_groups)
        runner.logger.info(
            f'batch: {processes} processes x {images} images x {accumulated} accumulated = '
            f'{processes * images * accumulated} images per optimizer step; learning rate {rate:.3g}'
        )
        scaling = runner.auto_scale_lr or {}
        if scaling.get('enable') and accumulated > 1:
            runner.logger.warning(
                'auto_scale_lr ignores gradient accumulation; for a learning rate proportional to the whole batch set '
                f'auto_scale_lr.base_batch_size={scaling["base_batch_size"] // accumulated}'
            )
