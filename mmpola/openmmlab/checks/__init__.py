"""Checks of the data that a config names, before training: `check_data` is the entry.

read.py opens the data sets, and samples.py runs their pipelines. table.py lists the checks, which
stand in data.py, run.py and, for a run that is built, built.py and trial.py. report.py prints what
they find.
"""

from __future__ import annotations

import argparse
import contextlib

from mmengine.config import Config
from mmengine.registry import init_default_scope
from torch import nn

import mmpola.openmmlab.checks.built
import mmpola.openmmlab.checks.trial  # noqa: F401  these fill the table
from mmpola.openmmlab.checks.data import EXIF, SIXTEEN_BITS
from mmpola.openmmlab.checks.read import Data, different_datasets, read_dataset
from mmpola.openmmlab.checks.report import CheckReport, refuse
from mmpola.openmmlab.checks.run import FILES_MISSING
from mmpola.openmmlab.checks.samples import load, measure
from mmpola.openmmlab.checks.table import (
    DATA,
    ERROR,
    FIRST,
    SAMPLE,
    TOGETHER,
    WARNING,
    Finding,
    Run,
    names_to_skip,
    run_checks,
)
from mmpola.openmmlab.config.contents import skipped_checks
from mmpola.openmmlab.config.types import scope
from mmpola.openmmlab.predict.reader import ImageReader, sixteen_bits_note, turned_note
from mmpola.openmmlab.processes import place

__all__ = ['CheckReport', 'Data', 'add_skip_argument', 'check_data', 'image_lines', 'names_to_skip']


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
    measured: tuple[str, ...] = (),
) -> CheckReport:
    """Check the data sets of `splits`, as they are built, and count what they hold.

    If a launcher starts several processes on a machine, only the first one opens the files.

    Args:
        cfg: its dataloaders, evaluators and model are read; `data_checks.skip` names checks to
            leave out.
        splits: some of 'train', 'val' and 'test'.
        whole: load every sample, with a progress bar; else `FEW` of each data set, so that pixels
            are counted in a few label maps.
        model: the config's model, on any device, to compare neck and backbone.
        measured: other splits, whose data may be missing or wrong; the size of their images is
            compared with the size of images in `splits`.

    Raises:
        UsageError: files are missing or invalid, and the message lists everything that was found;
            or `data_checks.skip` has a name that no check has.
    """
    skip = names_to_skip(cfg)
    init_default_scope(scope(cfg))
    is_first = place(cfg.get('launcher', 'none')).local_rank == 0
    sets = different_datasets(cfg, splits)
    for data in sets:
        read_dataset(data, is_first)
    run = Run(cfg, splits, whole, sets, model)
    found = run_checks(FIRST, run, skip)
    is_complete = all(one.name != FILES_MISSING for one in found)
    for data in sets:
        if not data.is_read:
            continue
        own = run_checks(DATA, data, skip)
        if data.images > 0 and all(one.level != ERROR for one in own):
            load(data, whole)
            own += run_checks(SAMPLE, data, skip)
        found += own
    if is_first and is_complete:
        run = run._replace(measured=measured_datasets(cfg, measured, sets))
        found += run_checks(TOGETHER, run, skip)
    found = list(dict.fromkeys(found))
    if any(one.level == ERROR for one in found):
        refuse(found, is_complete)
    return CheckReport(sets, found, skip, run.measured)


def measured_datasets(cfg: Config, splits: tuple[str, ...], loaded: list[Data]) -> list[Data]:
    """Return the data sets of `splits` that can be read, with the sizes of a few images.

    Args:
        cfg: the config.
        splits: whose data sets are not checked.
        loaded: data sets that are; one of them with the same config is not read again.
    """
    sets = []
    for data in different_datasets(cfg, splits):
        same = [other for other in loaded if other.config == data.config]
        if same:
            data.loaded = same[0].loaded
        else:
            with contextlib.suppress(Exception):  # they are checked where they are used
                read_dataset(data, is_first=True)
                measure(data)
        if data.loaded.sizes:
            sets.append(data)
    return sets


def image_lines(cfg: Config, reader: ImageReader) -> list[str]:
    """Return what a script that reads single images prints about those it has read.

    Args:
        cfg: its `data_checks.skip` is read.
        reader: has read them.
    """
    notes = {
        SIXTEEN_BITS: sixteen_bits_note(reader.first),
        EXIF: turned_note(reader.turned, reader.count),
    }
    skip = skipped_checks(cfg)
    found = [Finding(name, WARNING, note) for name, note in notes.items() if note]
    return [str(one) for one in found if one.name not in skip]
