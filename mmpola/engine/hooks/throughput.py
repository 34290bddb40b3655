"""Logs images per second and the share of the time spent waiting for them."""

from __future__ import annotations

from collections import deque
from typing import Any

from mmengine.dist import get_world_size
from mmengine.hooks import Hook

from mmpola.registry import HOOKS


@HOOKS.register_module()
class ThroughputHook(Hook):
    """Adds `images_per_second` of all processes and `data_share`, from 0 to 1, to MMEngine's log line and scalars.

    `data_share` is the share of a step's time in which this process waited for its data loader. Both are computed over
    the last `window` steps from IterTimerHook's times.

    Args:
        window: number of steps.

    Raises:
        ValueError: window is less than 1.
    """

    priority = 'NORMAL'  # after IterTimerHook, which MMEngine registers first, before LoggerHook

    def __init__(self, window: int = 50) -> None:
        if window < 1:
            raise ValueError(f'window: expected a positive integer, got {window}')
        self.steps: deque[tuple[int, float, float]] = deque(maxlen=window)  # images, seconds, seconds waited

    def after_train_iter(self, runner: Any, batch_idx: int, data_batch: Any = None, outputs: Any = None) -> None:
        """Add the step and update both values."""
        hub = runner.message_hub
        seconds, waited = (hub.get_scalar(f'train/{name}').current() for name in ('time', 'data_time'))
        self.steps.append((len(data_batch['data_samples']) * get_world_size(), seconds, waited))
        images, total, waiting = (sum(column) for column in zip(*self.steps, strict=True))
        hub.update_scalar('train/images_per_second', images / total)
        hub.update_scalar('train/data_share', waiting / total)
