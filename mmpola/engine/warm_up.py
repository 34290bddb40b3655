"""Whether the warm-up of the learning rate fits the number of steps of a training run."""

from __future__ import annotations

import math
from typing import Any

from mmengine.config import Config

from mmpola.engine.config import schedule_note
from mmpola.engine.processes import place

WARM_UPS = ('LinearLR', 'ConstantLR', 'QuadraticWarmupLR')
"""Schedules with which the learning rate starts below its value; LinearLR can also end below it."""

SHARE = 10
"""The warm-up that is proposed is the run divided by this."""


def warm_up_note(cfg: Config, images: float) -> str | None:
    """Return a line if a warm-up that is counted in steps is not shorter than the run, else None.

    The line names the option that shortens it. What `schedule_note` scales is left to that.

    Args:
        cfg: config of the run.
        images: number of training images in an epoch, infinity if it is unknown.
    """
    steps = _steps(cfg, images)
    if cfg.train_cfg.get('max_iters') and schedule_note(cfg) is not None:
        return None
    parts = cfg.get('param_scheduler') or []
    several = isinstance(parts, list)
    for number, part in enumerate(parts if several else [parts]):
        end = part.get('end')
        if not _is_warm_up(part) or part.get('by_epoch', True) or end is None or end < steps:
            continue
        key = f'param_scheduler.{number}' if several else 'param_scheduler'
        shorter = max(1, int(steps) // SHARE)
        return (
            f'{key}: expected a warm-up that is shorter than the run of {steps} steps, got {end} '
            'steps, so training ends before the learning rate reaches its value; a warm-up of '
            f'1/{SHARE} of the run: --cfg-options {key}.end={shorter}'
        )
    return None


def _is_warm_up(part: dict[str, Any]) -> bool:
    kind = str(part.get('type')).rpartition('.')[2]
    falls = part.get('start_factor', 0) > part.get('end_factor', 1)
    return kind in WARM_UPS and not falls and not part.get('begin')


def _steps(cfg: Config, images: float) -> float:
    """Return the number of steps of the run, infinity if it is unknown."""
    if steps := cfg.train_cfg.get('max_iters'):
        return int(steps)
    epochs = cfg.train_cfg.get('max_epochs')
    batch = cfg.train_dataloader.get('batch_size')
    if not epochs or not batch or images == math.inf:
        return math.inf
    share = math.ceil(images / place(cfg.get('launcher', 'none')).processes)
    dropped = cfg.train_dataloader.get('drop_last', False)
    per_epoch = share // batch if dropped else math.ceil(share / batch)
    return epochs * per_epoch
