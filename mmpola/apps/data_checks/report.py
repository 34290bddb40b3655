"""What the checks find out about a data set, and how it is printed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from mmpola.messages import listed

if TYPE_CHECKING:
    from mmpola.apps.data_checks.samples import Labels

INSTANCES = 'instances'
PIXELS = 'pixels'
SAMPLES = 'samples'
"""Units of the labels: one per object, per pixel, or per image or sequence."""

ALL_SHOWN = 20
"""The table has a row for every class if there are no more than these."""

MOST = 5
FEWEST = 10
"""Of more classes, the table has these with the most and with the fewest labels."""


@dataclass
class DatasetReport:
    """A data set of a config and what it holds.

    Attributes:
        config: the part of the config that describes it.
        kind: name of its class.
        paths: its files and folders.
        splits: all splits that use it.
        is_counted: whether the files were opened, so that the counts are known.
        images: number of images or other samples that are left to learn from.
        listed: number of them before `filter_cfg` and `indices`.
        first: what the data set knows about the first of them.
        image_ids: what the data set calls its images.
        classes: names in the order of their labels; empty if unknown.
        things: number of them that a panoptic data set counts in instances.
        unit: of `numbers`, one of `INSTANCES`, `PIXELS` and `SAMPLES`; '' if unknown.
        numbers: how many there are of each label, without those that training ignores.
        ignored: how many training ignores.
        counted: number of samples in which labels were counted; the quick check loads a few of
            many, and finds pixels only there.
        raw: the annotation file as mmdet's COCO API has read it, None of other data sets.
        problems: lines about what prevents training.
        warnings: lines about what is probably a mistake.
    """

    config: dict[str, Any]
    kind: str
    paths: list[Path] = field(default_factory=list)
    splits: list[str] = field(default_factory=list)
    is_counted: bool = False
    images: int = 0
    listed: int = 0
    first: list[dict[str, Any]] = field(default_factory=list)
    image_ids: set[Any] = field(default_factory=set)
    classes: Sequence[str] = ()
    things: int = 0
    unit: str = ''
    numbers: Counter[int] = field(default_factory=Counter)
    ignored: int = 0
    counted: int = 0
    raw: Any = None
    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @property
    def loader(self) -> str:
        """Config key of its (first) data loader."""
        return f'{self.splits[0]}_dataloader'

    @property
    def place(self) -> str:
        """Its annotation file or first folder, for messages."""
        return str(self.paths[0]) if self.paths else f'{self.loader}.dataset'

    @property
    def labelled(self) -> Sequence[str]:
        """The classes that labels may have: in panoptic data only the things, which come first."""
        return self.classes[: self.things or None]

    @property
    def labels(self) -> int:
        """Number of labels that training does not ignore."""
        return sum(self.numbers.values())

    def add(self, labels: Labels | None) -> None:
        """Add the labels of a sample."""
        if labels is not None:
            self.unit = labels.unit
            self.numbers.update(labels.numbers)
            self.ignored += labels.ignored

    def share(self, number: int) -> str:
        """Return a number of labels as it is printed: pixels as a share of those of a class."""
        if self.unit != PIXELS:
            return f'{number:,}'
        share = number / max(1, self.labels)
        return f'{share:.2%}' if share >= 1e-4 or number == 0 else '< 0.01%'


def add_line(lines: list[str], rule: str, items: Sequence[object]) -> None:
    """Add a line if something breaks a rule: the rule, how many break it, and the first of them."""
    if items:
        lines.append(f'{rule} ({len(items)}): {listed(items)}')


def print_table(reports: list[DatasetReport]) -> None:
    """Print a line for each data set, the labels of each class, and the warnings."""
    for report in reports:
        print(summary(report))
    groups: dict[tuple[str, tuple[str, ...]], list[DatasetReport]] = {}
    for report in reports:
        if report.unit and report.classes:
            groups.setdefault((report.unit, tuple(report.labelled)), []).append(report)
    for (unit, classes), members in groups.items():
        print_classes(unit, classes, members)
    print_notes(reports)


def summary(report: DatasetReport) -> str:
    """Return the line of a data set: how much it holds, and where it is."""
    parts = [f'{report.images:,} images']
    if report.unit == SAMPLES:
        parts = [f'{report.images:,} samples']
    if report.images < report.listed:
        parts[0] += f' of {report.listed:,} (the others are left out by filter_cfg or indices)'
    if report.unit == INSTANCES:
        parts.append(f'{report.labels:,} instances')
        if report.ignored:
            parts.append(f'{report.ignored:,} ignored')
    if report.unit == PIXELS and report.ignored:
        share = report.ignored / (report.ignored + report.labels)
        parts.append(f'{share:.1%} of the pixels ignored')
    if report.counted < report.images:
        parts.append(f'counted in {report.counted} of them')
    parts.append(f'{len(report.classes)} classes')
    if not report.is_counted:
        parts = ['not counted']
    paths = ', '.join(str(path) for path in report.paths)
    return f'{", ".join(report.splits)}: {report.kind}: {", ".join(parts)} ({paths})'


def print_classes(unit: str, classes: Sequence[str], reports: list[DatasetReport]) -> None:
    """Print the labels of each class and split; of many classes the most and the least frequent."""
    table = Table(box=None, pad_edge=False)
    table.add_column(unit)
    for report in reports:
        table.add_column(', '.join(report.splits), justify='right')
    order = list(range(len(classes)))
    hidden = range(0)
    if len(classes) > ALL_SHOWN:
        first = reports[0].numbers
        order = sorted((label for label in order if first[label]), key=lambda label: -first[label])
        hidden = range(MOST, max(MOST, len(order) - FEWEST))
    for rank, label in enumerate(order):
        if rank in hidden:
            if rank == MOST:
                table.add_row(f'… {len(hidden)} classes in between')
            continue
        table.add_row(classes[label], *(one.share(one.numbers[label]) for one in reports))
    Console(highlight=False, markup=False, soft_wrap=True).print(table)
    lines: list[str] = []
    for report in reports:
        absent = [name for label, name in enumerate(classes) if not report.numbers[label]]
        add_line(lines, f'{", ".join(report.splits)}: classes without {unit}', absent)
    for line in lines:
        print(line)


def print_notes(reports: list[DatasetReport]) -> None:
    """Print the warnings of data sets."""
    for report in reports:
        for line in report.warnings:
            print(f'warning: {line}')
