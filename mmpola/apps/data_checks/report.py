"""What the checks find out about a data set, and how it is printed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from tqdm import tqdm

from mmpola.messages import listed

Item = TypeVar('Item')


@dataclass
class DatasetReport:
    """A data set of a config and what it holds.

    Attributes:
        config: the part of the config that describes it.
        kind: 'COCO', 'label maps', 'class folders' or 'sequences'; of any other type of data set,
            only the paths are checked.
        paths: its files and folders.
        splits: all splits that use it.
        is_counted: whether the files were opened, so that the counts are known.
        images: number of images or other samples that the files hold.
        annotations: number of annotations of the classes; as many as images without boxes.
        classes: names in the order of their labels; empty if unknown.
        problems: lines about what prevents training.
        warnings: lines about what is probably a mistake.
    """

    config: dict[str, Any]
    kind: str
    paths: list[Path]
    splits: list[str] = field(default_factory=list)
    is_counted: bool = False
    images: int = 0
    annotations: int = 0
    classes: Sequence[str] = ()
    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def add_line(lines: list[str], rule: str, items: Sequence[object]) -> None:
    """Add a line if something breaks a rule: the rule, how many break it, and the first of them."""
    if items:
        lines.append(f'{rule} ({len(items)}): {listed(items)}')


def check_files(
    report: DatasetReport,
    what: str,
    rule: str,
    files: Sequence[Item],
    broken: Callable[[Item], str | None],
) -> None:
    """Check files in several threads, with a progress bar, and add a problem if some are broken.

    Args:
        report: its `problems` are filled in.
        what: what the files are, for the progress bar.
        rule: the problem of files that are broken.
        files: what `broken` is called with.
        broken: returns the name of a file with what is wrong, None if nothing is.
    """
    title = f'reading {what} of {report.splits[0]}'
    with ThreadPoolExecutor() as threads:
        checked = threads.map(broken, files)
        found = list(tqdm(checked, title, total=len(files), leave=False, disable=None))
    add_line(report.problems, rule, [line for line in found if line is not None])


def print_table(reports: list[DatasetReport]) -> None:
    """Print a line for each data set with its counts and paths, and the warnings."""
    for report in reports:
        paths = ', '.join(str(path) for path in report.paths)
        counts = 'not counted'
        if report.is_counted:
            counts = (
                f'{report.images:,} images, {report.annotations:,} annotations, '
                f'{len(report.classes)} classes'
            )
        print(f'{", ".join(report.splits)}: {report.kind}: {counts} ({paths})')
    print_notes(reports)


def print_notes(reports: list[DatasetReport]) -> None:
    """Print the warnings of data sets."""
    for report in reports:
        for line in report.warnings:
            print(f'warning: {line}')
