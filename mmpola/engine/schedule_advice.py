"""Advice to print before training: does the learning rate schedule fit the length of the run?"""

from __future__ import annotations

import math
from typing import Any

from mmengine.config import Config

from mmpola.engine.processes import place

WARM_UPS = ('LinearLR', 'ConstantLR', 'QuadraticWarmupLR')
"""Schedules that start below the learning rate; LinearLR can also end below it."""

PROPOSED_PARTS = 10
"""The proposed warm-up takes one of this many parts of the run."""


def schedule_advice(cfg: Config, images: float) -> list[str]:
    """Return a line for each way in which the schedule does not fit the run.

    Args:
        cfg: config of the run.
        images: number of training images in an epoch, infinity if it is unknown.
    """
    try:
        lines = [length_advice(cfg), warm_up_advice(cfg, images)]
    except TypeError:  # an entry is not a number; MMEngine refuses it when it builds the schedule
        return []
    return [line for line in lines if line is not None]


def length_advice(cfg: Config) -> str | None:
    """Warn if the schedule and the training run have different lengths.

    The line names the options that scale the schedule (beginnings, ends, periods and milestones),
    or says that the run is too short for that.
    """
    for unit, by_epoch in (('epochs', True), ('iters', False)):
        length = cfg.train_cfg.get(f'max_{unit}')
        parts = {}
        for key, part in _schedule_parts(cfg):
            if 'end' in part and part.get('by_epoch', True) == by_epoch:
                parts[key] = part
        end = max((part['end'] for part in parts.values()), default=length)
        if not length or end == length:
            continue
        problem = f'param_scheduler: ends at {end}, but training at train_cfg.max_{unit}={length}'
        options = []
        for key, part in parts.items():
            scaled = _scaled(part, length / end)
            if scaled.get('begin', 0) >= scaled['end']:
                return (
                    f'{problem}; too short for the same proportions, so learning rates are those '
                    'of the first part of the schedule'
                )
            for name, value in scaled.items():
                option = f'{key}.{name}={value}'.replace(' ', '')
                if '[' in option:  # a pattern of file names to a shell
                    option = f'"{option}"'
                options.append(option)
        return (
            f'{problem}; to end it there too, in the same proportions: --cfg-options '
            f'{" ".join(options)}'
        )
    return None


def warm_up_advice(cfg: Config, images: float) -> str | None:
    """Warn if a warm-up that is counted in steps is not shorter than the run.

    The line names the option that shortens it.

    Args:
        cfg: config of the run.
        images: number of training images in an epoch, infinity if it is unknown.
    """
    if cfg.train_cfg.get('max_iters') and length_advice(cfg) is not None:
        return None  # the advice on the length scales the warm-up too
    steps = _steps(cfg, images)
    for key, part in _schedule_parts(cfg):
        type_name = str(part.get('type')).rpartition('.')[2]
        in_epochs = part.get('by_epoch', True)
        if type_name not in WARM_UPS or in_epochs or part.get('begin'):
            continue
        falls = part.get('start_factor', 0) > part.get('end_factor', 1)
        end = part.get('end')
        if falls or end is None or end < steps:
            continue
        proposed = max(1, int(steps) // PROPOSED_PARTS)
        return (
            f'{key}: expected a warm-up that is shorter than the run of {steps} steps, got {end} '
            'steps, so training ends before the learning rate reaches its value; a warm-up of '
            f'1/{PROPOSED_PARTS} of the run: --cfg-options {key}.end={proposed}'
        )
    return None


def _schedule_parts(cfg: Config) -> list[tuple[str, dict[str, Any]]]:
    """List the parts of the schedule as (config key, dict)."""
    parts = cfg.get('param_scheduler') or []
    if isinstance(parts, list):
        return [(f'param_scheduler.{number}', part) for number, part in enumerate(parts)]
    return [('param_scheduler', parts)]


def _scaled(part: dict[str, Any], factor: float) -> dict[str, Any]:
    """Return the epochs or steps of a part of a schedule, multiplied by a factor."""
    scaled: dict[str, Any] = {}
    for name in ('begin', 'warmup', 'end', 'T_max'):
        if part.get(name):
            scaled[name] = max(1, round(part[name] * factor))
    lasts_whole_part = part.get('T_max') == part['end'] - part.get('begin', 0)
    if lasts_whole_part:  # it must do so after rounding too
        scaled['T_max'] = scaled['end'] - scaled.get('begin', 0)
    if 'milestones' in part:
        scaled['milestones'] = [max(1, round(step * factor)) for step in part['milestones']]
    return scaled


def _steps(cfg: Config, images: float) -> float:
    """Return the number of steps of the run, infinity if it is unknown."""
    steps = cfg.train_cfg.get('max_iters')
    if steps:
        return int(steps)
    epochs = cfg.train_cfg.get('max_epochs')
    batch = cfg.train_dataloader.get('batch_size')
    if not epochs or not batch or images == math.inf:
        return math.inf
    processes = place(cfg.get('launcher', 'none')).processes
    images_per_process = math.ceil(images / processes)
    if cfg.train_dataloader.get('drop_last', False):
        return epochs * (images_per_process // batch)
    return epochs * math.ceil(images_per_process / batch)
