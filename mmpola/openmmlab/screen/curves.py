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
"""Largest number of points of a curve; more are averaged in groups."""

MOST_CURVES = 10
"""Largest number of losses and of classes with a curve: the largest losses, the worst classes."""

DASHES = ('-', '--', ':', '-.')
"""Line styles; with ten colours, 20 curves in a row look different."""

NO_METRIC = ('time', 'data_time', 'memory', 'epoch', 'iter', 'step')

METRIC_OF_A_CLASS = re.compile(r'(?:^|/)(?:IoU\.(?P<map>.+)|(?P<box>[^/]+)_precision)$')
"""A metric of one class: mmdet's `coco/NAME_precision`, and `IoU.NAME` of label maps."""

Series = dict[int, float]
"""Training step -> value."""


def draw_curves(work_dir: str | Path) -> Path:
    """Draw `curves.png` in a work dir: losses, learning rates, metrics, metrics of single classes.

    A metric stands at the last training step that MMEngine has logged before it.

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

    A later start repeats some steps, or all of them: lines of earlier starts are left out from its
    first step on. So is a line that a killed process has not written to its end.
    """
    starts = []
    for path in sorted(Path(work_dir).glob(SCALARS)):
        new = []
        for text in path.read_text().splitlines():
            with contextlib.suppress(ValueError):
                new.append(json.loads(text))
        first = min((line['iter'] for line in new if 'iter' in line), default=math.inf)
        starts.append((path, first, new))
    begun = [first for _, first, _ in starts if first < math.inf]
    if begun and begun[0] > min(begun):
        # Folders have local times, which may go back; copied files have other times.
        starts.sort(key=lambda start: start[0].stat().st_mtime)
    lines: list[dict[str, Any]] = []
    for _, first, new in starts:
        kept = 0
        while kept < len(lines) and lines[kept].get('iter', 0) < first:
            kept += 1
        lines = [*lines[:kept], *new]
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
    largest = sorted(losses, key=lambda label: -newest(losses[label]))[:MOST_CURVES]
    worst = sorted(classes, key=lambda label: newest(classes[label]))[:MOST_CURVES]
    loss_title = 'losses'
    if len(losses) > MOST_CURVES:
        loss_title = f'the {MOST_CURVES} largest of {len(losses)} losses'
    class_title = 'single classes'
    if len(classes) > MOST_CURVES:
        class_title = f'the {MOST_CURVES} worst of {len(classes)} classes'
    return {
        loss_title: {label: losses[label] for label in losses if label in largest},
        'learning rate': rates,
        'metrics': shares,
        'metrics above 1': others,
        class_title: {label: classes[label] for label in classes if label in worst},
    }


def class_of(metric: str) -> str | None:
    """Return the class whose metric this is; None for a metric of all classes."""
    found = METRIC_OF_A_CLASS.search(metric)
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
    values = [points[step] for step in steps]
    groups = min(POINTS, len(steps))
    x = np.array([group.mean() for group in np.array_split(steps, groups)])
    y = np.array([group.mean() for group in np.array_split(values, groups)])
    return x, y
