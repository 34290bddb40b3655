"""The validations of a training run as rows under one heading."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Real
from typing import Any

from mmpola.openmmlab.screen.curves import class_of

METRIC_COLUMNS = 4
"""Largest number of columns for metrics of all classes."""

CLASS_COLUMNS = 6
"""Metrics of single classes are columns if there are at most this many.

With boxes and masks, the boxes' metrics are counted then.
"""

NARROWEST = 7
"""Width of a column in characters, if its name is not longer."""

Cells = list[tuple[str, str]]
"""(name of the column, text) of a row."""


class ValidationTable:
    """Arranges rows under a heading, which comes again only if a row has other columns."""

    def __init__(self) -> None:
        self.heading = ''

    def lines(self, cells: Cells) -> list[str]:
        """Return the line of a row, after its heading unless the row before has the same."""
        names = []
        texts = []
        for name, text in cells:
            width = max(NARROWEST, len(name))
            names.append(name.rjust(width))
            texts.append(text.rjust(width))
        heading = '  '.join(names)
        line = '  '.join(texts).rstrip()
        if heading == self.heading:
            return [line]
        self.heading = heading
        return [heading, line]


def metric_cells(metrics: dict[str, Any], awaited: Sequence[str] = ()) -> Cells:
    """Return the cells of a validation's metrics: of all classes, then of single ones.

    A metric that narrows another down, as `bbox_mAP_50` does with `bbox_mAP`, is left out if it is
    not the first.

    Args:
        metrics: by MMEngine's names; what is no number is left out.
        awaited: metrics that hooks wait for, shown in any case.
    """
    numbers = {name: float(value) for name, value in metrics.items() if isinstance(value, Real)}
    overall = [name for name in numbers if class_of(name) is None]
    main = [name for name in overall if name in awaited]
    main += [name for name in overall if name not in main and not _is_detail(name, overall)]
    shown = [name for name in overall if name in main[:METRIC_COLUMNS]]
    labels = [name.rpartition('/')[2] for name in shown]
    if len(set(labels)) < len(labels):  # of several data sets
        labels = shown
    cells = [(label, value_text(numbers[name])) for label, name in zip(labels, shown, strict=True)]
    single = [(class_of(name), value_text(numbers[name])) for name in numbers]
    classes = [(label, text) for label, text in single if label is not None]
    if len(classes) > CLASS_COLUMNS:  # perhaps of boxes and of masks
        classes = [(label, text) for label, text in classes if label.startswith('bbox_')]
    if 1 < len(classes) <= CLASS_COLUMNS:  # a single class has the same AP as all
        cells += classes
    return cells


def _is_detail(name: str, names: list[str]) -> bool:
    """Whether a metric narrows another one of these down, and is not the first to do so."""
    for other in names:
        details = [detail for detail in names if detail.startswith(f'{other}_')]
        if name in details[1:]:
            return True
    return False


def value_text(value: float) -> str:
    """Return a metric to a hundredth of a percent: a share with 4 digits, percent with 2."""
    if abs(value) <= 1:
        return f'{value:.4f}'
    return f'{value:.2f}'
