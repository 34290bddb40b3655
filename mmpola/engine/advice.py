"""Lines to print when the schedule or the warm-up of a run does not fit its length."""

from __future__ import annotations

from typing import Any

from mmengine.config import Config
from mmengine.hooks import CheckpointHook
from mmengine.optim.scheduler.param_scheduler import INF
from mmengine.runner import EpochBasedTrainLoop

WARM_UPS = ('LinearLR', 'ConstantLR', 'QuadraticWarmupLR')
"""Schedules that start below the learning rate."""


def length_advice(cfg: Config) -> str | None:
    """Warn if the schedule and the training run have different lengths.

    The line names the options that scale the schedule (beginnings, ends, periods and milestones),
    or says that the run is too short for that.
    """
    by_epoch = 'max_epochs' in cfg.train_cfg
    unit = 'epochs' if by_epoch else 'iters'
    length = cfg.train_cfg.get(f'max_{unit}')
    parts = {}
    for key, part in _schedule_parts(cfg):
        if part.get('by_epoch', True) == by_epoch:
            parts[key] = part
    end = max((part.get('end', INF) for part in parts.values()), default=length)
    if not length or end in (length, INF):  # a part without an end lasts as long as the run
        return None
    problem = f'param_scheduler: ends at {end}, but training at train_cfg.max_{unit}={length}'
    if cfg.get('resume'):
        return f'{problem}; a resumed run keeps the schedule of its checkpoint'
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


def is_by_epoch(loop: Any) -> bool:
    """Whether a training loop counts epochs; else it counts steps."""
    return isinstance(loop, EpochBasedTrainLoop) and not getattr(loop, 'endless', False)


def counting_advice(loop: Any, saving: CheckpointHook, schedulers: Any) -> list[str]:
    """Warn of what counts epochs in a run that has none, or steps that the run does not reach.

    Args:
        loop: the training loop.
        saving: the hook that writes checkpoints.
        schedulers: as in `warm_up_advice`.
    """
    key = 'default_hooks.checkpoint'
    lines = []
    if saving.by_epoch and not is_by_epoch(loop):
        lines.append(
            f'{key}: counts epochs, but train_cfg counts steps: there is no checkpoint before the '
            'end of the run; set by_epoch=False, and interval to a number of steps'
        )
    elif not saving.by_epoch and is_by_epoch(loop) and saving.interval > loop.max_iters:
        lines.append(
            f'{key}: counts steps (interval={saving.interval}), of which the run has '
            f'{loop.max_iters}: there is no checkpoint before its end; set by_epoch=True'
        )
    for scheduler in flat_schedulers(schedulers):
        counts = not getattr(scheduler, 'need_val_args', False)  # ReduceOnPlateau: validations
        if counts and scheduler.by_epoch and not is_by_epoch(loop):
            lines.append(
                f'param_scheduler: {type(scheduler).__name__} counts epochs, but train_cfg counts '
                'steps: it changes nothing; set by_epoch=False, and its numbers to steps'
            )
    return lines


def flat_schedulers(schedulers: Any) -> list[Any]:
    """Return MMEngine's schedulers of all optimizers as one list."""
    groups = [schedulers]
    if isinstance(schedulers, dict):
        groups = list(schedulers.values())
    return [scheduler for group in groups for scheduler in group or []]


def warm_up_advice(schedulers: Any, steps: int) -> str | None:
    """Warn if training ends within the warm-up of the learning rate.

    Args:
        schedulers: MMEngine's schedulers, a list, or a list for each of several optimizers.
        steps: of the whole run.
    """
    for scheduler in flat_schedulers(schedulers):
        is_warm_up = type(scheduler).__name__ in WARM_UPS and scheduler.begin == 0
        if is_warm_up and not scheduler.by_epoch and steps <= scheduler.end < INF:
            return (
                f'the warm-up of the learning rate takes {scheduler.end} steps, but the run '
                f'has {steps}: it ends before the learning rate reaches its value'
            )
    return None
