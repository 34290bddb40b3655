"""Checks of the data that a config names, before training: `check_data` is the entry.

`read.py` reads what a data set knows of its samples, `samples.py` what its pipeline loads.
`table.py` and the files in `checks/` are the table of all checks, `report.py` prints what the data
sets hold.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mmengine.config import Config
from mmengine.registry import init_default_scope
from torch import nn

from mmpola.apps.data_checks.checks.loaded import SIXTEEN_BITS
from mmpola.apps.data_checks.read import Data, different_datasets, read
from mmpola.apps.data_checks.report import table_lines
from mmpola.apps.data_checks.samples import load
from mmpola.apps.data_checks.table import (
    CONFIG,
    DATA,
    ERROR,
    EVALUATORS,
    FILES,
    READING,
    SAMPLE,
    SPLITS,
    Found,
    Run,
    ask,
    names_to_skip,
)
from mmpola.apps.image_reader import sixteen_bits_note
from mmpola.engine.processes import place
from mmpola.engine.types import scope
from mmpola.messages import UsageError

__all__ = ['Checked', 'Data', 'add_skip_argument', 'check_data', 'image_lines']


class Checked(NamedTuple):
    """Data sets, what is probably a mistake in them, and the checks that were skipped."""

    sets: list[Data]
    found: list[Found]
    skipped: list[str]

    def lines(self) -> list[str]:
        """Return what a script prints."""
        lines = [*table_lines(self.sets), *(f'warning: {one}' for one in self.found)]
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
        UsageError: files are missing or invalid, and the message lists every problem; or
            `data_checks.skip` has a name that no check has.
    """
    skip = names_to_skip(cfg)
    init_default_scope(scope(cfg))
    is_first = place(cfg.get('launcher', 'none')).local_rank == 0
    sets = [read(data, is_first) for data in different_datasets(cfg, splits)]
    run = Run(cfg, splits, whole, sets, model)
    found = ask(CONFIG, run, skip)
    missing = ask(FILES, run, skip)
    loaded = []
    for data in sets:
        own = ask(READING, data, skip)
        if data.is_read:
            own += ask(DATA, data, skip)
        if data.is_read and data.images > 0 and not errors(own):
            data = load(data, whole)
            own += ask(SAMPLE, data, skip)
        loaded.append(data)
        found += own
    run = run._replace(sets=loaded)
    if is_first and not missing:
        found += ask(SPLITS, run, skip)
        if not errors(found):
            found += ask(EVALUATORS, run, skip)
    found = list(dict.fromkeys(found))
    refuse(missing, errors(found))
    return Checked(loaded, found, skip)


def errors(found: Iterable[Found]) -> list[Found]:
    """Return what prevents training."""
    return [one for one in found if one.level == ERROR]


def refuse(missing: list[Found], invalid: list[Found]) -> None:
    """Raise UsageError if there is an error, with a line for each."""
    if missing:
        headline = f'the data is not complete (looked from {Path.cwd()})'
        advice = 'data in another folder: correct its path, or link it (ln -s /path/to/it data/)'
        raise UsageError('\n  '.join([headline, *map(str, missing + invalid), advice]))
    if len(invalid) == 1:
        raise UsageError(f'the data is not valid: {invalid[0]}')
    if invalid:
        raise UsageError('\n  '.join(['the data is not valid', *map(str, invalid)]))


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
