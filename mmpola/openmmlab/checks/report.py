"""What the checks print: a line for each data set, the labels of each class, and what was found."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from mmpola.messages import UsageError, counted, listed
from mmpola.openmmlab.checks.read import INSTANCES, PIXELS, SAMPLES, Data, Labels, size_text
from mmpola.openmmlab.checks.table import ERROR, Finding

ALL_SHOWN = 20
"""The table has a row for every class if there are no more than these."""

MOST = 5
FEWEST = 10
"""Of more classes, the table has these with the most and with the fewest labels."""


class CheckReport(NamedTuple):
    """Data sets, what is probably a mistake in them, and the checks that were skipped.

    `measured` are other data sets; only the size of their images is known.
    """

    sets: list[Data]
    found: list[Finding]
    skipped: list[str]
    measured: Sequence[Data] = ()

    def lines(self) -> list[str]:
        """Return what a script prints."""
        lines = table_lines(self.sets)
        for data in self.measured:
            lines.append(f'{", ".join(data.splits)}: {read_at(data)}, not checked')
        lines += map(str, self.found)
        if self.skipped:
            lines.append(f'skipped checks: {", ".join(self.skipped)}')
        return lines


def refuse(found: Sequence[Finding], is_complete: bool) -> None:
    """Raise UsageError with a line for each error and, behind them, for each warning."""
    errors = [str(one) for one in found if one.level == ERROR]
    warnings = [str(one) for one in found if one.level != ERROR]
    text = f'the data is not valid: {errors[0]}'
    if not is_complete:
        headline = f'the data is not complete (looked from {Path.cwd()})'
        advice = 'data in another folder: correct its path, or link it (ln -s /path/to/it data/)'
        text = '\n  '.join([headline, *errors, advice])
    elif len(errors) > 1:
        text = '\n  '.join(['the data is not valid', *errors])
    raise UsageError('\n'.join([text, *warnings]))


def table_lines(sets: Sequence[Data]) -> list[str]:
    """Return a line for each data set, and the labels of each class."""
    lines = [summary(data) for data in sets]
    groups: dict[tuple[str, tuple[str, ...]], list[Data]] = {}
    for data in sets:
        if data.labels.unit and data.classes:
            groups.setdefault((data.labels.unit, tuple(data.labelled)), []).append(data)
    for (unit, classes), members in groups.items():
        lines += class_lines(unit, classes, members)
    return lines


def summary(data: Data) -> str:
    """Return the line of a data set: how much it holds, and where it is."""
    labels = data.labels
    parts = [counted(data.images, 'sample' if labels.unit == SAMPLES else 'image')]
    if data.images < data.images_before_filters:
        parts[0] += (
            f' of {data.images_before_filters:,} (the others are left out by filter_cfg or indices)'
        )
    if labels.unit == INSTANCES:
        parts += object_parts(data)
    if labels.unit == PIXELS and labels.ignored:
        share = labels.ignored / (labels.ignored + labels.total)
        parts.append(f'{share:.1%} of the pixels ignored')
    if data.images_counted < data.images:
        parts.append(f'counted in {data.images_counted} of them')
    parts.append('1 class' if len(data.classes) == 1 else f'{len(data.classes)} classes')
    if data.loaded.sizes:
        parts.append(read_at(data))
    if not data.is_read:
        parts = ['not counted']
    paths = ', '.join(str(path) for path in data.paths)
    return f'{", ".join(data.splits)}: {data.kind}: {", ".join(parts)} ({paths})'


def read_at(data: Data) -> str:
    """Return the size at which the network reads images, and of what it reads a crop."""
    text = f'read at {size_text(data.loaded.sizes)}'
    read = max(math.prod(size) for size in data.loaded.sizes)
    whole = max((round(height) * round(width) for height, width in data.loaded.scales), default=0)
    if whole > read:
        text += f', crops of images resized to {size_text(data.loaded.scales)}'
    return text


def object_parts(data: Data) -> list[str]:
    """Return how many objects there are, and which training does not learn from."""
    labels = data.labels
    parts = [counted(labels.total, 'instance')]
    if labels.ignored:
        parts.append(f'{labels.ignored:,} ignored')
    if data.dropped:
        parts.append(f'{data.dropped.total():,} dropped')
    if data.others:
        total = counted(data.others.total(), 'object')
        parts.append(f'{total} of other classes ({listed(data.others)})')
    if data.known.empty:
        parts.append(f'{counted(data.known.empty, "image")} without an object')
    return parts


def class_lines(unit: str, classes: Sequence[str], sets: Sequence[Data]) -> list[str]:
    """Return the labels of each class and split; of many classes the most and least frequent."""
    table = Table(box=None, pad_edge=False)
    table.add_column(unit)
    for data in sets:
        table.add_column(', '.join(data.splits), justify='right')
    order = list(range(len(classes)))
    hidden = range(0)
    if len(classes) > ALL_SHOWN:
        first = sets[0].labels.numbers
        order = sorted((label for label in order if first[label]), key=lambda label: -first[label])
        hidden = range(MOST, max(MOST, len(order) - FEWEST))
    for rank, label in enumerate(order):
        if rank not in hidden:
            table.add_row(str(classes[label]), *(label_count(data.labels, label) for data in sets))
        elif rank == MOST:
            table.add_row(f'… {len(hidden)} classes in between')
    lines = printed_lines(table)
    for data in sets:
        absent = [name for label, name in enumerate(classes) if not data.labels.numbers[label]]
        if absent:
            splits = ', '.join(data.splits)
            lines.append(f'{splits}: classes without {unit} ({len(absent)}): {listed(absent)}')
    return lines


def printed_lines(table: Table) -> list[str]:
    """Return the lines of a table as a terminal of any width prints them."""
    text = io.StringIO()
    Console(file=text, highlight=False, markup=False, soft_wrap=True).print(table)
    return [line.rstrip() for line in text.getvalue().splitlines()]


def label_count(labels: Labels, label: int) -> str:
    """Return the number of a label as it is printed: pixels as a share of all labelled pixels."""
    number = labels.numbers[label]
    if labels.unit != PIXELS:
        return f'{number:,}'
    share = number / max(1, labels.total)
    return f'{share:.2%}' if share >= 1e-4 or number == 0 else '< 0.01%'
