"""Says how many images make a step of the optimizer and which learning rate that gives."""

from __future__ import annotations

from typing import Any

from mmengine.dist import get_world_size
from mmengine.hooks import Hook

from mmpola.registry import HOOKS


@HOOKS.register_module()
class BatchSizeHook(Hook):
    """Logs processes x images x accumulation, and the highest learning rate of the schedule, before training.

    MMEngine's auto_scale_lr leaves accumulation out: with it on, the hook says which base batch keeps the linear rule.
    """

    def before_train(self, runner: Any) -> None:
        """Log the line."""
        processes, images = get_world_size(), runner.train_dataloader.batch_size
        accumulated = runner.optim_wrapper._accumulative_counts
        rate = max(group.get('initial_lr', group['lr']) for group in runner.optim_wrapper.optimizer.param_groups)
        runner.logger.info(
            f'batch: {processes} processes x {images} images x {accumulated} accumulated = '
            f'{processes * images * accumulated} images per step of the optimizer; learning rate {rate:.3g}'
        )
        scaling = runner.auto_scale_lr or {}
        if scaling.get('enable') and accumulated > 1:
            runner.logger.warning(
                f'auto_scale_lr does not count accumulation: for a learning rate in proportion to the whole batch set '
                f'auto_scale_lr.base_batch_size={scaling["base_batch_size"] // accumulated}'
            )
