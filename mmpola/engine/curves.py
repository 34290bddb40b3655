"""Draw losses, learning rates and metrics over the steps of a training run."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

POINTS = 500
"""Largest number of points of a curve over training steps; more are averaged in groups."""

CLASSES_SHOWN = 10
"""Largest number of classes with a curve of their own: the worst ones of the last validation."""

NO_METRIC = ('time', 'data_time', 'memory')


def draw_curves(
    histories: Mapping[str, Sequence[float]],
    validated: Sequence[float],
    steps: int,
    classes: Sequence[str],
) -> bytes:
    """Draw a panel each for losses, learning rates, metrics and metrics of single classes.

    Args:
        histories: values by MMEngine's name, `train/loss` or `val/coco/bbox_mAP`; those of training
            are one per step, the last one of step `steps`.
        validated: the step of each validation.
        steps: number of training steps that were done.
        classes: names of the classes.

    Returns:
        The content of a PNG file.
    """
    panels = grouped(histories, classes)
    panels = {title: curves for title, curves in panels.items() if curves}
    figure = Figure(figsize=(8, 3.2 * max(1, len(panels))), layout='constrained')
    FigureCanvasAgg(figure)
    for number, (title, curves) in enumerate(panels.items()):
        axes = figure.add_subplot(len(panels), 1, number + 1)
        axes.set_title(title, loc='left')
        for name, values in curves.items():
            if name.startswith('val/'):
                x, y = metric_points(values, validated)
                axes.plot(x, y, marker='o', markersize=3, label=label_of(name))
            else:
                x, y = training_points(values, steps)
                width = 2.0 if name == 'train/loss' else 1.0
                axes.plot(x, y, linewidth=width, label=label_of(name))
        axes.set_xlim(0, max(steps, 1))
        if title != 'losses':
            axes.set_ylim(bottom=0)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(alpha=0.3)
        axes.legend(fontsize=7, loc='center left', bbox_to_anchor=(1, 0.5))
        if number == len(panels) - 1:
            axes.set_xlabel('training step')
    content = io.BytesIO()
    figure.savefig(content, format='png', dpi=110)
    return content.getvalue()


def grouped(
    histories: Mapping[str, Sequence[float]], classes: Sequence[str]
) -> dict[str, dict[str, Any]]:
    """Sort histories into panels: title -> name -> values."""
    panels: dict[str, dict[str, Any]] = {'losses': {}, 'learning rate': {}}
    metrics: dict[str, Any] = {}
    of_classes: dict[str, Any] = {}
    for name, values in histories.items():
        split, _, tail = name.partition('/')
        if split == 'train' and 'loss' in tail:
            panels['losses'][name] = values
        elif name == 'train/lr':
            panels['learning rate'][name] = values
        elif split == 'val' and tail not in NO_METRIC:
            if is_of_a_class(tail, classes):
                of_classes[name] = values
            elif max(values) > -1:  # -1: of an area without objects
                metrics[name] = values
    shares = {name: values for name, values in metrics.items() if max(values) <= 1}
    panels['metrics'] = shares
    panels['metrics above 1'] = {n: v for n, v in metrics.items() if n not in shares}
    title = 'single classes'
    if len(of_classes) > CLASSES_SHOWN:
        title = f'the {CLASSES_SHOWN} worst of {len(of_classes)} classes'
    worst = sorted(of_classes, key=lambda name: of_classes[name][-1])[:CLASSES_SHOWN]
    panels[title] = {name: of_classes[name] for name in worst}
    return panels


def is_of_a_class(metric: str, classes: Sequence[str]) -> bool:
    """Whether a metric, such as `coco/cat_precision` or `IoU.cat`, is that of a single class."""
    for name in classes:
        for form in (f'/{name}_precision', f'/{name}', f'.{name}'):
            if f'/{metric}'.endswith(form):
                return True
    return False


def label_of(name: str) -> str:
    """Return the name of a curve without `train/` and `val/`, for the legend."""
    label = name.partition('/')[2]
    if label.startswith('_'):  # matplotlib leaves such names out
        label = f' {label}'
    return label


def metric_points(
    values: Sequence[float], validated: Sequence[float]
) -> tuple[np.ndarray, np.ndarray]:
    """Return x and y of a metric; if their numbers differ, the last ones belong together."""
    number = min(len(values), len(validated))
    x = np.asarray(validated, float)[len(validated) - number :]
    y = np.asarray(values, float)[len(values) - number :]
    return x, y


def training_points(values: Sequence[float], steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Return x and y of a value of every step, as means of at most `POINTS` groups of steps."""
    y = np.asarray(values, float)
    x = np.arange(steps - len(y) + 1, steps + 1, dtype=float)
    if len(y) <= POINTS:
        return x, y
    groups = np.array_split(np.arange(len(y)), POINTS)
    means_x = np.array([x[group].mean() for group in groups])
    means_y = np.array([y[group].mean() for group in groups])
    return means_x, means_y
