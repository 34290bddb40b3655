"""Checks of the data that a config names, before training: `check_data` is the entry.

`read.py` reads what a data set knows of its samples, `samples.py` what its pipeline loads.
`table.py` is the table of checks, which `of_data.py` and `of_run.py` fill. What is printed is here.
"""

from __future__ import annotations

import argparse
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mmengine.config import Config
from mmengine.registry import init_default_scope
from rich.console import Console
from rich.table import Table
from torch import nn

from mmpola.apps.data_checks.of_data import SIXTEEN_BITS
from mmpola.apps.data_checks.of_run import FILES_MISSING
from mmpola.apps.data_checks.read import (
    INSTANCES,
    PIXELS,
    SAMPLES,
    Data,
    Labels,
    different_datasets,
    read,
    size_text,
)
from mmpola.apps.data_checks.samples import load
from mmpola.apps.data_checks.table import (
    DATA,
    ERROR,
    FIRST,
    SAMPLE,
    TOGETHER,
    Found,
    Run,
    ask,
    names_to_skip,
)
from mmpola.apps.image_reader import sixteen_bits_note
from mmpola.engine.processes import place
from mmpola.engine.types import scope
from mmpola.messages import UsageError, listed

__all__ = ['Checked', 'Data', 'add_skip_argument', 'check_data', 'image_lines']

ALL_SHOWN = 20
"""The table has a row for every class if there are no more than these."""

MOST = 5
FEWEST = 10
"""Of more classes, the table has these with the most and with the fewest labels."""


class Checked(NamedTuple):
    """Data sets, what is probably a mistake in them, and the checks that were skipped."""

    sets: list[Data]
    found: list[Found]
    skipped: list[str]

    def lines(self) -> list[str]:
        """Return what a script prints."""
        lines = [*table_lines(self.sets), *map(str, self.found)]
        if self.skipped:
            lines.append(f'skipped checks: {", ".join(self.skipped)}')
        return lines


def add_skip_argument(parser: argparse.ArgumentParser) -> None:
    """Add --skip-checks, for a script that checks data; `load_config` puts it into the config."""
    parser.add_argument(
        '--skip-checks',
        nargs='+',
        default=[],
        metavar='NAME',
        help='checks of config and data to leave out, by the names at the end of their lines',
    )


def check_data(
    cfg: Config,
    splits: tuple[str, ...] = ('train', 'val', 'test'),
    *,
    whole: bool = False,
    model: nn.Module | None = None,
) -> Checked:
    """Check the data sets of `splits`, as they are built, and count what they hold.

    If a launcher starts several processes on a machine, only the first one opens the files.

    Args:
        cfg: its dataloaders, evaluators and model are read; `data_checks.skip` names checks to
            leave out.
        splits: some of 'train', 'val' and 'test'.
        whole: load every sample, with a progress bar; else `FEW` of each data set, so that pixels
            are counted in a few label maps.
        model: the config's model, on any device, to compare neck and backbone.

    Raises:
        UsageError: files are missing or invalid, and the message lists everything that was found;
            or `data_checks.skip` has a name that no check has.
    """
    skip = names_to_skip(cfg)
    init_default_scope(scope(cfg))
    is_first = place(cfg.get('launcher', 'none')).local_rank == 0
    sets = different_datasets(cfg, splits)
    for data in sets:
        read(data, is_first)
    run = Run(cfg, splits, whole, sets, model)
    found = ask(FIRST, run, skip)
    is_complete = all(one.name != FILES_MISSING for one in found)
    for data in sets:
        if not data.is_read:
            continue
        own = ask(DATA, data, skip)
        if data.images > 0 and all(one.level != ERROR for one in own):
            load(data, whole)
            own += ask(SAMPLE, data, skip)
        found += own
    if is_first and is_complete:
        found += ask(TOGETHER, run, skip)
    found = list(dict.fromkeys(found))
    if any(one.level == ERROR for one in found):
        refuse(found, is_complete)
    return Checked(sets, found, skip)


def refuse(found: Sequence[Found], is_complete: bool) -> None:
    """Raise UsageError with a line for each error and, behind them, for each warning."""
    lines = [str(one) for one in sorted(found, key=lambda one: one.level != ERROR)]
    if not is_complete:
        headline = f'the data is not complete (looked from {Path.cwd()})'
        advice = 'data in another folder: correct its path, or link it (ln -s /path/to/it data/)'
        raise UsageError('\n  '.join([headline, *lines, advice]))
    if len(lines) == 1:
        raise UsageError(f'the data is not valid: {lines[0]}')
    raise UsageError('\n  '.join(['the data is not valid', *lines]))


def image_lines(cfg: Config, images: Sequence[tuple[str | Path, Any]]) -> list[str]:
    """Return what a script that reads single images prints about the first ones, as loaded.

    Args:
        cfg: its `data_checks.skip` is read.
        images: (file, pixels [H, W] or [H, W, C]).
    """
    note = sixteen_bits_note(images)
    if note is None or SIXTEEN_BITS in names_to_skip(cfg):
        return []
    return [f'warning: {note} [{SIXTEEN_BITS}]']


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
    parts = [f'{data.images:,} {"samples" if labels.unit == SAMPLES else "images"}']
    if data.images < data.listed:
        parts[0] += f' of {data.listed:,} (the others are left out by filter_cfg or indices)'
    if labels.unit == INSTANCES:
        parts += object_parts(data)
    if labels.unit == PIXELS and labels.ignored:
        share = labels.ignored / (labels.ignored + labels.total)
        parts.append(f'{share:.1%} of the pixels ignored')
    if data.counted < data.images:
        parts.append(f'counted in {data.counted} of them')
    parts.append(f'{len(data.classes)} classes')
    if data.loaded.sizes:
        parts.append(f'read at {size_text(data.loaded.sizes)}')
    if not data.is_read:
        parts = ['not counted']
    paths = ', '.join(str(path) for path in data.paths)
    return f'{", ".join(data.splits)}: {data.kind}: {", ".join(parts)} ({paths})'


def object_parts(data: Data) -> list[str]:
    """Return how many objects there are, and which training does not learn from."""
    labels = data.labels
    parts = [f'{labels.total:,} instances']
    if labels.ignored:
        parts.append(f'{labels.ignored:,} ignored')
    if data.dropped:
        parts.append(f'{sum(map(len, data.dropped.values())):,} dropped')
    if data.others:
        parts.append(f'{data.others.total():,} objects of other classes ({listed(data.others)})')
    if data.known.empty:
        parts.append(f'{data.known.empty:,} images without an object')
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
            table.add_row(classes[label], *(shown(data.labels, label) for data in sets))
        elif rank == MOST:
            table.add_row(f'… {len(hidden)} classes in between')
    text = io.StringIO()
    Console(file=text, highlight=False, markup=False, soft_wrap=True).print(table)
    lines = [line.rstrip() for line in text.getvalue().splitlines()]
    for data in sets:
        absent = [name for label, name in enumerate(classes) if not data.labels.numbers[label]]
        if absent:
            splits = ', '.join(data.splits)
            lines.append(f'{splits}: classes without {unit} ({len(absent)}): {listed(absent)}')
    return lines


def shown(labels: Labels, label: int) -> str:
    """Return the number of a label as it is printed: pixels as a share of those of a class."""
    number = labels.numbers[label]
    if labels.unit != PIXELS:
        return f'{number:,}'
    share = number / max(1, labels.total)
    return f'{share:.2%}' if share >= 1e-4 or number == 0 else '< 0.01%'
