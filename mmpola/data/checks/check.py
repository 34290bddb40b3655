"""Whether the data of a config is there and right: folders, annotations, classes, images and label maps."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mmengine.config import Config
from mmengine.registry import DATASETS, init_default_scope
from rich.console import Console
from rich.table import Table

from mmpola.data.checks.contents import Contents, Reading, grouped
from mmpola.data.checks.kinds import KINDS, kind_of, openmmlab_places
from mmpola.engine.config import leaves, nodes
from mmpola.engine.progress import progress
from mmpola.messages import UsageError, listed

SPLITS = ('train', 'val', 'test')

SAMPLE = 32
"""How many label maps of a data set the fast part reads, spread evenly: a label out of range ends a training on a GPU
without a word about its file, whereas an image that cannot be read is named by the loader."""

LOCAL_RANK = {'pytorch': 'LOCAL_RANK', 'slurm': 'SLURM_LOCALID', 'mpi': 'OMPI_COMM_WORLD_LOCAL_RANK'}
"""Launcher -> the variable with a process's number on its machine."""


@dataclass
class Checked:
    """A data set of the config; `splits` name all uses of it."""

    splits: list[str]
    kind: str
    places: list[Path]
    contents: Contents = field(default_factory=Contents)


def check_data(cfg: Config, splits: tuple[str, ...] = SPLITS, *, whole: bool = False) -> list[Checked]:
    """What the data sets of `splits` hold; with `whole` every image and label map is read, with a progress bar.

    Where a launcher starts several processes on a machine, the first one looks into the files for all of them.

    Raises:
        UsageError: something is missing or wrong; names all of it, and the layout if files are missing.
    """
    checked: dict[tuple[str, ...], Checked] = {}
    missing: list[str] = []
    problems: list[str] = []
    for split, dataset in _data_sets(cfg, splits):
        kind = kind_of(dataset)
        places = kind.places(dataset) if kind else openmmlab_places(dataset)
        key = (str(dataset.get('type')), *map(str, places))
        if key in checked:
            checked[key].splits += [split] if split not in checked[key].splits else []
            continue
        data = checked[key] = Checked([split], kind.name if kind else str(dataset.get('type')), places)
        absent = [f'{path}: not found (looked from {Path.cwd()})' for path in places if not path.exists()]
        missing += [line for line in absent if line not in missing]
        if kind and not absent and _first_of_machine(cfg):
            try:
                data.contents = kind.inspect(_build(cfg, {**dataset, **kind.unloaded}))
            except _NotBuiltError as error:
                problems.append(f'{split}_dataloader.dataset: {error}')
            problems += data.contents.problems + _class_mismatch(cfg.get('model'), split, data.contents)
    for split in splits:
        truth = (cfg.get(f'{split}_evaluator') or {}).get('ann_file')
        if truth and not Path(truth).is_file():
            missing.append(f'{truth}: not found ({split}_evaluator.ann_file)')
    problems += grouped(_read([data.contents for data in checked.values()], whole))
    if missing or problems:
        raise UsageError(_message(missing, problems, list(checked.values())))
    return list(checked.values())


def _data_sets(cfg: Config, splits: tuple[str, ...]) -> Iterator[tuple[str, dict[str, Any]]]:
    """(split, config) of every data set, inside RepeatDataset, ConcatDataset, MultiImageMixDataset and so on."""
    for split in splits:
        loader = cfg.get(f'{split}_dataloader')
        for dataset in leaves(loader.dataset) if loader else ():
            yield split, dataset


def _first_of_machine(cfg: Config) -> bool:
    return os.environ.get(LOCAL_RANK.get(cfg.get('launcher', 'none'), ''), '0') == '0'


class _NotBuiltError(Exception):
    """A data set's config is wrong."""


def _build(cfg: Config, dataset: dict[str, Any]) -> Any:
    """The data set itself, which knows its classes, suffixes and paths."""
    init_default_scope(cfg.get('default_scope', 'mmengine'))
    try:
        return DATASETS.build(dataset)
    except (KeyError, TypeError, ValueError, AssertionError) as error:
        raise _NotBuiltError(error.args[0] if error.args else error) from None


def _class_mismatch(model: dict[str, Any] | None, split: str, contents: Contents) -> list[str]:
    """Heads of the model, or a classifier itself, that predict another number of classes than the data set has."""
    expected = len(contents.classes)
    return [
        f'{key} is {count}, but the data set of {split}_dataloader has {expected} classes: {listed(contents.classes)}'
        for key, count in _numbers_of_classes(model)
        if expected and count != expected
    ]


def _numbers_of_classes(model: Any) -> list[tuple[str, int]]:
    """(config key, num_classes) of a classifier and of every head but an RPN, which tells objects from background."""
    return [
        (f'{key}.num_classes', node['num_classes'])
        for key, node in nodes(model, 'model')
        if 'num_classes' in node and (key == 'model' or 'head' in key) and 'rpn_head' not in key.split('.')
    ]


def _read(found: list[Contents], whole: bool) -> list[tuple[str, str]]:
    """The rules that files break: every file's, or those of a sample of the label maps."""
    if not whole:
        sample = [reading for contents in found for reading in _spread(contents.label_files)]
        return [rule for reading in sample for rule in reading()]
    readings = [reading for contents in found for reading in (*contents.image_files, *contents.label_files)]
    broken = []
    if readings:
        with progress('reading files', len(readings)) as advance, ThreadPoolExecutor() as threads:
            for rules in threads.map(lambda reading: reading(), readings):
                broken += rules
                advance(1)
    return broken


def _spread(readings: list[Reading]) -> list[Reading]:
    """At most SAMPLE of them, at even distances."""
    return readings[:: max(1, -(-len(readings) // SAMPLE))]


def _message(missing: list[str], problems: list[str], checked: list[Checked]) -> str:
    lines = '\n'.join(f'  {line}' for line in dict.fromkeys((*missing, *problems)))
    if not missing:
        return f'the data is not right\n{lines}'
    layout = '\n'.join(f'  {path}' for path in dict.fromkeys(path for data in checked for path in data.places))
    return (
        f'the data is not complete\n{lines}\nthe config expects\n{layout}\n'
        'data elsewhere: link its folder to this place (mkdir -p data; ln -s /path/to/it data/)'
    )


def print_table(checked: list[Checked]) -> None:
    """Places, then a row of counts for each data set, then what is worth knowing."""
    for data in checked:
        print(f'{", ".join(data.splits)}: {", ".join(map(str, data.places))}')
    table = Table()
    for heading in ('split', 'kind', 'images', 'annotations', 'unannotated', 'classes'):
        table.add_column(heading, justify='left' if heading in ('split', 'kind') else 'right')
    for data in checked:
        contents = data.contents
        counts = (contents.images, contents.annotations, contents.without, len(contents.classes))
        known = data.kind in {kind.name for kind in KINDS}
        table.add_row(', '.join(data.splits), data.kind, *(f'{count:,}' if known else '-' for count in counts))
    Console().print(table)
    print_notes(checked)


def print_notes(checked: list[Checked]) -> None:
    """What does not hinder a training."""
    for note in dict.fromkeys(note for data in checked for note in data.contents.notes):
        print(f'note: {note}')
