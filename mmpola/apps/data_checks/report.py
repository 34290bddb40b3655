"""What the checks find out about a data set, and how it is printed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from rich.console import Console
from rich.table import Table

from mmpola.messages import BrokenRule, grouped, printable
from mmpola.progress import progress

Item = TypeVar('Item')


@dataclass
class DatasetReport:
    """A data set of a config and what it holds.

    Attributes:
        splits: all splits that use the data set.
        kind: 'COCO', 'label maps', 'class folders' or 'sequences'; the type of any other data set,
            of which only the paths are checked.
        paths: its files and folders.
        identity: the same for all configs that mean this data set.
        is_counted: whether the files were opened, so that the counts are known.
        images: number of samples that a loader returns, after everything that it drops.
        annotations: number of annotations that a loader returns.
        unannotated: number of these images without any annotation.
        classes: names in the order of their labels; empty if unknown.
        problems: lines about what prevents training.
        warnings: lines about what a loader drops; training runs without it.
        notes: lines about what is unusual, but does not prevent training.
        without_mask: ids of annotations that a loader keeps although they have no segmentation.
    """

    splits: list[str]
    kind: str
    paths: list[Path]
    identity: tuple[str, ...]
    is_counted: bool = False
    images: int = 0
    annotations: int = 0
    unannotated: int = 0
    classes: Sequence[str] = ()
    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    without_mask: list[str] = field(default_factory=list)


def add_line(lines: list[str], rule: str, items: Iterable[object]) -> None:
    """Add a line if something breaks a rule: the rule, how many break it, and the first of them."""
    lines += grouped((rule, str(item)) for item in items)


def check_files(
    report: DatasetReport,
    what: str,
    files: Sequence[Item],
    check: Callable[[Item], list[BrokenRule]],
) -> None:
    """Check files in several threads, with a progress bar, and add a problem per broken rule.

    Args:
        report: its `problems` are filled in.
        what: what the files are, for the progress bar.
        files: what `check` is called with.
        check: reads a file and returns the rules that it breaks.
    """
    if not files:
        return
    broken: list[BrokenRule] = []
    title = f'reading {what} of {report.splits[0]}'
    with progress(title, len(files)) as advance, ThreadPoolExecutor() as threads:
        for rules in threads.map(check, files):
            broken += rules
            advance(1)
    report.problems += grouped(broken)


def check_sample(
    report: DatasetReport,
    files: Sequence[Item],
    number: int,
    check: Callable[[Item], list[BrokenRule]],
) -> None:
    """Check at most `number` of the files, evenly spaced, as `check_files` does."""
    step = max(1, math.ceil(len(files) / number))
    broken: list[BrokenRule] = []
    for file in files[::step]:
        broken += check(file)
    report.problems += grouped(broken)


def print_table(reports: list[DatasetReport]) -> None:
    """Print the paths of each data set, a table with a row of counts for each, warnings, notes."""
    table = Table()
    table.add_column('split')
    table.add_column('kind')
    for heading in ('samples', 'annotations', 'unannotated', 'classes'):
        table.add_column(heading, justify='right')
    for report in reports:
        splits = ', '.join(report.splits)
        paths = ', '.join(str(path) for path in report.paths)
        print(printable(f'{splits}: {paths}'))
        counts = ['-', '-', '-', '-']
        if report.is_counted:
            numbers = (
                report.images,
                report.annotations,
                report.unannotated,
                len(report.classes),
            )
            counts = [f'{number:,}' for number in numbers]
        table.add_row(splits, report.kind, *counts)
    Console().print(table)
    print_notes(reports)


def print_notes(reports: list[DatasetReport]) -> None:
    """Print the warnings, about what loaders drop, then the notes, about what is unusual."""
    warnings = [f'warning: {line}' for report in reports for line in report.warnings]
    notes = [f'note: {line}' for report in reports for line in report.notes]
    for line in dict.fromkeys(warnings + notes):
        print(printable(line))
