"""Lines to print when the schedule of a run does not fit its length."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from mmengine.config import Config
from mmengine.optim.scheduler.param_scheduler import INF
from mmengine.runner import EpochBasedTrainLoop

from mmpola.messages import listed
from mmpola.openmmlab.config.contents import nodes, type_name

WARM_UPS = ('LinearLR', 'ConstantLR', 'QuadraticWarmupLR')
"""Schedules that start below the learning rate."""

FROM_BEGIN = ('warmup', 'step_size', 'milestones')
"""Arguments of schedules that count from the beginning of their part."""


def length_advice(cfg: Config, steps: int | None = None) -> list[str]:
    """Warn of parts of the schedule with numbers that do not fit the length of the training run.

    Args:
        cfg: of a run.
        steps: the length of a run that counts epochs, to compare the parts that count steps; None:
            compare the parts that count what the run counts.
    """
    by_epoch = 'max_epochs' in cfg.train_cfg
    key = 'train_cfg.max_epochs' if by_epoch else 'train_cfg.max_iters'
    length = steps or cfg.train_cfg.get(key.partition('.')[2])
    if not isinstance(length, int):
        return []
    end_of_run = f'step {steps}' if steps else f'{key}={length}'
    parts = {}
    for place, part in nodes(cfg.get('param_scheduler'), 'param_scheduler'):
        if 'type' in part and part.get('by_epoch', True) == (by_epoch and steps is None):
            parts[place] = part
    problems = [(place, _misfits(part, length)) for place, part in parts.items()]
    ends = [part.get('end', INF) for part in parts.values()]
    if steps is None and _numbers(ends) == ends and max(ends, default=length) < length:
        problems.append(('param_scheduler', [f'ends at {max(ends)}']))
    remedy = 'change them together'
    if cfg.get('resume'):
        remedy = 'a resumed run keeps the schedule of its checkpoint'
    return [
        f'{place}: {", ".join(found)}, but training ends at {end_of_run}; {remedy}'
        for place, found in problems
        if found
    ]


def _misfits(part: dict[str, Any], length: int) -> list[str]:
    """Describe the numbers of a part of a schedule that do not fit a run.

    Args:
        part: of the config.
        length: of the run, in what the part counts.
    """
    found = []
    name_of_type = type_name(part.get('type'))
    begin = part.get('begin', 0)
    end = part.get('end', INF)
    period = part.get('T_max', INF)
    if _numbers([begin, end, period]) != [begin, end, period]:
        return []  # MMEngine refuses it
    is_warm_up = name_of_type in WARM_UPS and begin == 0
    if is_warm_up and length <= end < INF:
        found.append(f'end={end} of the warm-up')
    elif length < end < INF:
        found.append(f'end={end}')
    if begin >= length:
        found.append(f'begin={begin}')
    for name in FROM_BEGIN:
        values = part.get(name)
        if not isinstance(values, (list, tuple)):
            values = [values]
        late = [value for value in _numbers(values) if begin + value >= length]
        if late:
            found.append(f'{name} {listed(late)} never reached')
    lasts = min(end, length) - begin
    if length < period < INF:
        found.append(f'T_max={period}')
    elif name_of_type.startswith('Cosine') and period < lasts:
        found.append(f'T_max={period}, after which the rate rises again until {begin + lasts}')
    return found


def _numbers(values: Iterable[Any]) -> list[Any]:
    """Return the values that are whole numbers."""
    return [value for value in values if isinstance(value, int)]


def is_by_epoch(loop: Any) -> bool:
    """Whether a training loop counts epochs; else it counts steps."""
    return isinstance(loop, EpochBasedTrainLoop) and not getattr(loop, 'endless', False)


def flat_schedulers(schedulers: Any) -> list[Any]:
    """Return MMEngine's schedulers of all optimizers as one list.

    Args:
        schedulers: a list, a list for each of several optimizers by its name, or None.
    """
    groups = [schedulers]
    if isinstance(schedulers, dict):
        groups = list(schedulers.values())
    return [scheduler for group in groups for scheduler in group or []]
