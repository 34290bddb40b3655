"""Check that the data of a config is valid: folders, annotations, classes, images, label maps and texts."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mmengine.config import Config
from mmengine.registry import DATASETS, init_default_scope

from mmpola.config_tree import leaves, nodes, predicted_classes
from mmpola.data.checks.batch import batch_problems
from mmpola.data.checks.contents import Contents, FileCheck
from mmpola.data.checks.kinds import Kind, kind_of, openmmlab_paths
from mmpola.data.class_counts import class_count_problems
from mmpola.engine.progress import progress
from mmpola.messages import BrokenRule, UsageError, grouped, listed

SPLITS = ('train', 'val', 'test')

SAMPLE = 32
"""Label maps, or masks in run lengths, per data set that the fast check reads, evenly spread. A label out of range
crashes training on a GPU without naming its file, whereas the data loader names an image that cannot be read."""

LOCAL_RANK = {'pytorch': 'LOCAL_RANK', 'slurm': 'SLURM_LOCALID', 'mpi': 'OMPI_COMM_WORLD_LOCAL_RANK'}
"""Launcher -> environment variable with the rank of a process on its machine."""


@dataclass
class Checked:
    """A data set of the config; `splits` lists all that use it, `paths` are its files and folders."""

    splits: list[str]
    kind: Kind | None
    name: str
    paths: list[Path]
    contents: Contents = field(default_factory=Contents)

    @property
    def images(self) -> int | None:
        """Number of images that a loader returns, None if the kind is unknown."""
        return self.contents.images if self.kind else None


def check_data(
    cfg: Config, splits: tuple[str, ...] = SPLITS, *, whole: bool = False, strict: bool = False
) -> list[Checked]:
    """Check the data sets of `splits` and count what they hold.

    Where a launcher starts several processes on a machine, only the first one opens the files.

    Args:
        cfg: its dataloaders, evaluators and model are read.
        splits: some of 'train', 'val' and 'test'.
        whole: read every image and label map, with a progress bar; else only a sample of the label maps.
        strict: treat what a loader drops as a problem.

    Raises:
        UsageError: files are missing or invalid, or a batch has more images than there are; the message lists every
            problem, and the expected paths if files are missing.
    """
    checked: dict[tuple[str, ...], Checked] = {}
    missing: list[str] = []
    problems: list[str] = []
    for split, dataset in _data_sets(cfg, splits):
        data, key = _described(split, dataset), _key(dataset)
        if key in checked:
            checked[key].splits += [split] if split not in checked[key].splits else []
            continue
        checked[key] = data
        loader = f'{split}_dataloader'
        absent = [f'{loader}: {path}: not found (looked from {Path.cwd()})' for path in data.paths if not path.exists()]
        missing += absent
        if data.kind and not absent and _first_of_machine(cfg):
            problems += _inspect(cfg, data, dataset, loader)
            problems += data.contents.warnings if strict else []
    missing += _missing_truth(cfg, splits)
    if 'train' in splits and not missing and not problems and _first_of_machine(cfg):
        problems += batch_problems(cfg, lambda dataset: checked[_key(dataset)].images)
    problems += grouped(_broken_rules([data.contents for data in checked.values()], whole))
    if missing or problems:
        raise UsageError(_message(missing, problems, list(checked.values())))
    return list(checked.values())


def _data_sets(cfg: Config, splits: tuple[str, ...]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (split, config) of every data set, also those inside wrappers such as RepeatDataset."""
    for split in splits:
        loader = cfg.get(f'{split}_dataloader')
        for dataset in leaves(loader.dataset) if loader else ():
            yield split, dataset


def _described(split: str, dataset: dict[str, Any]) -> Checked:
    """Describe a data set from its config, without opening any file."""
    kind = kind_of(dataset)
    if kind is None:
        return Checked([split], None, str(dataset.get('type')), openmmlab_paths(dataset))
    return Checked([split], kind, kind.name, kind.paths(dataset))


def _key(dataset: dict[str, Any]) -> tuple[str, ...]:
    """Return what data sets have in common that are checked once: type, split, files and folders."""
    return (str(dataset.get('type')), str(dataset.get('split')), *map(str, _described('', dataset).paths))


def _first_of_machine(cfg: Config) -> bool:
    return os.environ.get(LOCAL_RANK.get(cfg.get('launcher', 'none'), ''), '0') == '0'


def _inspect(cfg: Config, data: Checked, dataset: dict[str, Any], dataloader: str) -> list[str]:
    """Build a data set, which knows its classes, suffixes and paths; fill in its contents and return the problems."""
    assert data.kind is not None
    init_default_scope(cfg.get('default_scope', 'mmengine'))
    try:
        built = DATASETS.build({**dataset, **data.kind.unloaded})
    except UsageError as error:  # of a data set whose constructor reads the files
        return str(error).splitlines()
    except (KeyError, TypeError, ValueError, AssertionError) as error:
        return [f'{dataloader}.dataset: {error.args[0] if error.args else error}']
    data.contents = data.kind.inspect(built)
    classes = data.contents.classes
    counts = class_count_problems(predicted_classes(cfg.get('model')), classes, dataloader) if classes else []
    return data.contents.problems + counts + _missing_masks(cfg, data.contents, dataloader)


def _missing_masks(cfg: Config, contents: Contents, dataloader: str) -> list[str]:
    """Describe the annotations without a mask where the model's losses or the loader's transforms need masks."""
    loading = any(node.get('with_mask') for _, node in nodes(cfg[dataloader], dataloader))
    heads = [
        f'{key}.mask_head'
        for key, node in nodes(cfg.get('model'), 'model')
        if key.endswith('roi_head') and node.get('mask_head')
    ]
    if heads and not loading and dataloader == 'train_dataloader':
        return [
            f'{dataloader}.dataset.pipeline: expected LoadAnnotations with with_mask=True, for {heads[0]}, got none'
        ]
    if not loading or not contents.without_mask:
        return []
    ids = listed(contents.without_mask)
    return [
        f'{dataloader}: expected a segmentation in every annotation, because masks are loaded (with_mask=True), got '
        f'{len(contents.without_mask)} annotations without one: {ids}'
    ]


def _missing_truth(cfg: Config, splits: tuple[str, ...]) -> list[str]:
    """Name the annotation files of evaluators that do not exist."""
    files = {split: (cfg.get(f'{split}_evaluator') or {}).get('ann_file') for split in splits}
    return [
        f'{path}: not found ({split}_evaluator.ann_file)'
        for split, path in files.items()
        if path and not Path(path).is_file()
    ]


def _broken_rules(found: list[Contents], whole: bool) -> list[BrokenRule]:
    """Run the checks of every file, or of a sample of the label maps and masks."""
    if not whole:
        sample = [check for contents in found for check in _evenly(contents.label_files)]
        return [rule for check in sample for rule in check()]
    checks = [check for contents in found for check in (*contents.image_files, *contents.label_files)]
    broken = []
    if checks:
        with progress('reading images and masks', len(checks)) as advance, ThreadPoolExecutor() as threads:
            for rules in threads.map(lambda check: check(), checks):
                broken += rules
                advance(1)
    return broken


def _evenly(checks: list[FileCheck]) -> list[FileCheck]:
    """Select at most SAMPLE of the checks, evenly spread."""
    return checks[:: max(1, -(-len(checks) // SAMPLE))]


def _message(missing: list[str], problems: list[str], checked: list[Checked]) -> str:
    lines = '\n'.join(f'  {line}' for line in dict.fromkeys((*missing, *problems)))
    if not missing:
        return f'the data is not valid\n{lines}'
    layout = '\n'.join(f'  {path}' for path in dict.fromkeys(path for data in checked for path in data.paths))
    return (
        f'the data is not complete\n{lines}\nthe config expects\n{layout}\n'
        'data in another folder: link it (mkdir -p data; ln -s /path/to/it data/)'
    )
