"""Draw losses, learning rates and metrics of a training run from what MMEngine has logged."""

from __future__ import annotations

import contextlib
import io
import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from mmpola.files import write_atomically
from mmpola.messages import UsageError

CURVES = 'curves.png'
"""Name of the picture in the work dir."""

SCALARS = '*/vis_data/scalars.json'
"""MMEngine's files of scalars in a work dir, one for each start of a run."""

POINTS = 500
"""Largest number of points of a curve over training steps; more are averaged in groups."""

LOSSES_SHOWN = 12
"""Largest number of losses with a curve: the sum and the largest of the others."""

CLASSES_SHOWN = 10
"""Largest number of classes with a curve of their own: the worst ones of the last validation."""

DASHES = ('-', '--', ':', '-.')
"""Line styles; with ten colours, 20 curves in a row look different."""

NO_METRIC = ('time', 'data_time', 'memory', 'epoch', 'iter', 'step')

OF_A_CLASS = re.compile(r'(?:^|/)(?:IoU\.(?P<map>.+)|(?P<box>[^/]+)_precision)$')
"""A metric of one class: mmdet's `coco/NAME_precision`, and `IoU.NAME` of label maps."""

Series = dict[int, float]
"""Values by the training step."""


def draw_curves(work_dir: str | Path) -> Path:
    """Draw `curves.png` in a work dir: losses, learning rates, metrics, metrics of single classes.

    The step of a metric is the last one before it that MMEngine has logged.

    Returns:
        The path of the picture.

    Raises:
        UsageError: no training run has logged a value.
    """
    values = series(read_scalars(work_dir))
    if not values:
        raise UsageError(f'{work_dir}: expected {SCALARS} of a training run, found no value')
    path = Path(work_dir, CURVES)
    write_atomically(path, picture(values))
    return path


def read_scalars(work_dir: str | Path) -> list[dict[str, Any]]:
    """Return the lines that MMEngine has logged in training, over all starts of a run.

    A later start repeats some steps, or all of them: earlier lines are left out from its first
    step on. So is a line that a killed process has not written to its end.
    """
    starts = [(path, _lines_of(path)) for path in sorted(Path(work_dir).glob(SCALARS))]
    first = [_first_step(new) for _, new in starts if _first_step(new) < math.inf]
    if first and first[0] > min(first):
        # Folders have local times, which may go back; copied files have other times.
        starts.sort(key=lambda start: start[0].stat().st_mtime)
    lines: list[dict[str, Any]] = []
    for _, new in starts:
        lines = [*_lines_before(lines, _first_step(new)), *new]
    return lines


def _lines_of(path: Path) -> list[dict[str, Any]]:
    """Return the whole lines of a file of scalars."""
    lines = []
    for text in path.read_text().splitlines():
        with contextlib.suppress(ValueError):
            lines.append(json.loads(text))
    return lines


def _first_step(lines: list[dict[str, Any]]) -> float:
    """Return the first training step of some lines; infinity if they have none."""
    return next((line['iter'] for line in lines if 'iter' in line), math.inf)


def _lines_before(lines: list[dict[str, Any]], step: float) -> list[dict[str, Any]]:
    """Return the lines before the first one of this training step or a later one."""
    for number, line in enumerate(lines):
        if line.get('iter', 0) >= step:
            return lines[:number]
    return lines


def series(lines: list[dict[str, Any]]) -> dict[str, Series]:
    """Return the values by name, `train/loss` or `val/coco/bbox_mAP`, and by the training step."""
    values: dict[str, Series] = {}
    step = 0
    for line in lines:
        split = 'val'
        if 'iter' in line:  # MMEngine writes it in lines of training only
            split = 'train'
        step = max(step, line.get('iter', line['step']))  # `step` of a validation may be an epoch
        for name, value in line.items():
            name = name.removeprefix(f'{split}/')
            if name not in NO_METRIC:
                values.setdefault(f'{split}/{name}', {})[step] = value
    return values


def picture(values: dict[str, Series]) -> bytes:
    """Draw a panel each for losses, learning rates, metrics and metrics of single classes.

    Args:
        values: what `series` returns.

    Returns:
        The content of a PNG file.
    """
    panels = {title: curves for title, curves in grouped(values).items() if curves}
    last = max((step for points in values.values() for step in points), default=1)
    figure = Figure(figsize=(8, 3.2 * max(1, len(panels))), layout='constrained')
    FigureCanvasAgg(figure)
    for number, (title, curves) in enumerate(panels.items()):
        axes = figure.add_subplot(len(panels), 1, number + 1)
        axes.set_title(title, loc='left')
        for index, (label, points) in enumerate(curves.items()):
            x, y = averaged(points)
            marker = 'none'
            if 'loss' not in title and 'rate' not in title:
                marker = 'o'
            axes.plot(x, y, label=label, marker=marker, markersize=3, **look(index))
        axes.set_xlim(0, 1.02 * max(last, 1))  # with the whole marker of the last point
        highest = highest_value(curves)
        if 'loss' not in title and highest > 0:
            axes.set_ylim(0, 1.05 * highest)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(alpha=0.3)
        axes.legend(fontsize=7, loc='center left', bbox_to_anchor=(1, 0.5), handlelength=3.5)
        if number == len(panels) - 1:
            axes.set_xlabel('training step')
    content = io.BytesIO()
    figure.savefig(content, format='png', dpi=110)
    return content.getvalue()


def grouped(values: dict[str, Series]) -> dict[str, dict[str, Series]]:
    """Sort values into panels: title -> label of a curve -> values."""
    losses: dict[str, Series] = {}
    rates: dict[str, Series] = {}
    shares: dict[str, Series] = {}
    others: dict[str, Series] = {}
    classes: dict[str, Series] = {}
    for name, points in values.items():
        split, _, label = name.partition('/')
        if split == 'train' and 'loss' in label:
            losses[label] = points
        elif split == 'train' and label.rpartition('.')[2] in ('lr', 'base_lr'):
            rates[label] = points
        elif split == 'val' and class_of(label) is not None:
            classes[label] = points
        elif split == 'val' and highest_value({label: points}) > 1:
            others[label] = points
        elif split == 'val' and max(points.values()) > -1:  # -1: of an area without objects
            shares[label] = points
    for label in list(rates):  # the first parameters often learn at the base rate
        used = label.replace('base_lr', 'lr')
        if used != label and rates.get(used) == rates[label]:
            del rates[label]
    panels = {}
    title = 'losses'
    if len(losses) > LOSSES_SHOWN:
        title = f'the {LOSSES_SHOWN} largest of {len(losses)} losses'
    panels[title] = _first(losses, LOSSES_SHOWN, key=lambda x: (x != 'loss', -newest(losses[x])))
    panels['learning rate'] = rates
    panels['metrics'] = shares
    panels['metrics above 1'] = others
    title = 'single classes'
    if len(classes) > CLASSES_SHOWN:
        title = f'the {CLASSES_SHOWN} worst of {len(classes)} classes'
    panels[title] = _first(classes, CLASSES_SHOWN, key=lambda x: newest(classes[x]))
    return panels


def _first(curves: dict[str, Series], number: int, key: Any) -> dict[str, Series]:
    """Return at most `number` curves, the first ones in the order of a key."""
    names = sorted(curves, key=key)[:number]
    return {name: curves[name] for name in curves if name in names}


def class_of(metric: str) -> str | None:
    """Return the class whose metric this is; None for a metric of all classes."""
    found = OF_A_CLASS.search(metric)
    if found is None:
        return None
    return found['map'] or found['box']


def newest(points: Series) -> float:
    """Return the value of the last step; infinity for one that is not finite."""
    value = points[max(points)]
    if not math.isfinite(value):
        return math.inf
    return value


def highest_value(curves: dict[str, Series]) -> float:
    """Return the largest finite value of curves, at least 0."""
    values = [value for points in curves.values() for value in points.values()]
    return max((value for value in values if math.isfinite(value)), default=0.0)


def look(index: int) -> dict[str, Any]:
    """Return colour, dashes and width of a curve.

    Later curves are thinner, so that an equal one beneath is seen.
    """
    return {
        'color': colormaps['tab10'](index % 10),
        'linestyle': DASHES[index % len(DASHES)],
        'linewidth': max(1.2, 3.2 - 0.3 * index),
    }


def averaged(points: Series) -> tuple[np.ndarray, np.ndarray]:
    """Return x and y of a curve, as means of at most `POINTS` groups of steps."""
    steps = sorted(points)
    x = np.asarray(steps, float)
    y = np.asarray([points[step] for step in steps], float)
    if len(steps) <= POINTS:
        return x, y
    groups = np.array_split(np.arange(len(steps)), POINTS)
    means_x = np.array([x[group].mean() for group in groups])
    means_y = np.array([y[group].mean() for group in groups])
    return means_x, means_y
