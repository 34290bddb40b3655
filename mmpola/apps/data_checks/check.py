"""Check that the data of a config is valid: folders, annotations, classes, images, label maps and texts."""

from __future__ import annotations

import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mmengine.config import Config
from mmengine.registry import DATASETS, init_default_scope
from rich.console import Console
from rich.table import Table

from mmpola.apps.data_checks.kinds import KINDS, Contents, FileCheck, Kind
from mmpola.config_tree import class_count_problems, leaves, nodes, predicted_classes
from mmpola.engine.config import SPLITS
from mmpola.engine.mistakes import wrong_name_in
from mmpola.engine.processes import place
from mmpola.messages import BrokenRule, UsageError, grouped, listed, printable, suggestion

SAMPLE = 32
"""Label maps, or masks in run lengths, per data set that the fast check reads, evenly spread. A label out of range
crashes training on a GPU without naming its file, whereas the data loader names an image that
cannot be read."""


@dataclass
class Checked:
    """A data set of the config.

    Attributes:
        splits: all that use it.
        paths: its files and folders.
        key: what is the same in the configs of all that use it.
    """

    splits: list[str]
    kind: Kind
    name: str
    paths: list[Path]
    contents: Contents = field(default_factory=Contents)
    key: tuple[str, ...] = ()


def check_data(
    cfg: Config, splits: tuple[str, ...] = SPLITS, *, whole: bool = False, strict: bool = False
) -> list[Checked]:
    """Check the data sets of `splits` and count what they hold.

    Where a launcher starts several processes on a machine, only the first one opens the files.

    Args:
        cfg: its dataloaders, evaluators and model are read.
        splits: some of 'train', 'val' and 'test'.
        whole: read every image and label map, with a progress bar; else only a sample of the label
            maps.
        strict: treat what a loader drops as a problem.

    Raises:
        UsageError: files are missing or invalid, or a batch has more images than there are; the
            message lists every problem, and the expected paths if files are missing.
    """
    checked: dict[tuple[str, ...], Checked] = {}
    missing: list[str] = []
    problems: list[str] = []
    linked = False  # whether the folder of a data set is missing, so that a link may help
    for split, dataset in _data_sets(cfg, splits):
        data, key = _described(split, dataset), _key(dataset)
        if key in checked:
            checked[key].splits += [split] if split not in checked[key].splits else []
            continue
        checked[key] = data
        data.key = key
        loader = f'{split}_dataloader'
        absent = [path for path in data.paths if not path.exists()]
        linked |= any(_present_folder(path, dataset.get('data_root')) is None for path in absent)
        missing += [
            f'{loader}: {path}: not found (looked from {Path.cwd()}){_beside(path, dataset.get("data_root"))}'
            for path in absent
        ]
        if data.kind.inspector and not absent and _first_of_machine(cfg):
            problems += _inspect(cfg, data, dataset, loader)
            problems += data.contents.warnings if strict else []
    missing += _missing_truth(cfg, splits)
    if 'train' in splits and not missing and not problems and _first_of_machine(cfg):
        problems += _batch_problems(cfg, checked)
    problems += grouped(_broken_rules([data.contents for data in checked.values()], whole))
    if missing or problems:
        raise UsageError(_message(missing, problems, list(checked.values()) if linked else []))
    return list(checked.values())


def _data_sets(cfg: Config, splits: tuple[str, ...]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (split, config) of every data set, also those inside wrappers such as RepeatDataset."""
    for split in splits:
        loader = cfg.get(f'{split}_dataloader')
        for dataset in leaves(loader.dataset) if loader else ():
            yield split, dataset


def _described(split: str, dataset: dict[str, Any]) -> Checked:
    """Describe a data set from its config, without opening any file."""
    kind = next(kind for kind in KINDS if kind.matches(dataset))
    return Checked([split], kind, kind.name or str(dataset.get('type')), kind.paths(dataset))


def _key(dataset: dict[str, Any]) -> tuple[str, ...]:
    """Return what data sets have in common that are checked once: type, split, classes, part, files and folders."""
    names = [str(dataset.get(name)) for name in ('type', 'split', 'classes', 'indices')]
    return (*names, *map(str, _described('', dataset).paths))


def _first_of_machine(cfg: Config) -> bool:
    return place(cfg.get('launcher', 'none')).local_rank == 0


def _inspect(cfg: Config, data: Checked, dataset: dict[str, Any], dataloader: str) -> list[str]:
    """Build a data set, which knows its classes, suffixes and paths; fill in its contents and return the problems."""
    init_default_scope(cfg.get('default_scope', 'mmengine'))
    try:
        built = DATASETS.build({**dataset, **data.kind.unloaded})
    except UsageError as error:  # of a data set whose constructor reads the files
        return str(error).splitlines()
    except (KeyError, TypeError, ValueError, AssertionError) as error:
        wrong_name = wrong_name_in(f'{dataloader}.dataset', dataset, DATASETS, error)
        return [wrong_name or f'{dataloader}.dataset: {error.args[0] if error.args else error}']
    data.contents = data.kind.inspect(built)
    classes = data.contents.classes
    counts = (
        class_count_problems(predicted_classes(cfg.get('model')), classes, dataloader)
        if classes
        else []
    )
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


def _batch_problems(cfg: Config, checked: dict[tuple[str, ...], Checked]) -> list[str]:
    """Return a problem if a training batch has more images than a process gets in an epoch.

    An InfiniteSampler has no epochs and fits any batch.
    """
    loader = cfg.train_dataloader
    batch, sampler = loader.get('batch_size'), str((loader.get('sampler') or {}).get('type'))
    images = _length(loader.dataset, checked)
    if batch is None or images == math.inf or 'Infinite' in sampler:
        return []
    processes = place(cfg.get('launcher', 'none')).processes
    share = math.ceil(images / processes)
    if batch <= share:
        return []
    split = f', divided among {processes} processes' if processes > 1 else ''
    return [
        f'train_dataloader.batch_size: expected at most {share}, for {images} images{split}, got {batch}'
    ]


def training_images(cfg: Config, checked: list[Checked]) -> float:
    """Return the number of training images in an epoch, infinity if it is unknown.

    Args:
        cfg: config of the run.
        checked: what `check_data` returned for it, 'train' among the splits.
    """
    if not _first_of_machine(cfg):  # it opened no file
        return math.inf
    return _length(cfg.train_dataloader.dataset, {data.key: data for data in checked})


def _length(dataset: dict[str, Any], checked: dict[tuple[str, ...], Checked]) -> float:
    """Return the number of samples of a data set or wrapper, infinity if it is unknown."""
    if (
        'oversample_thr' in dataset
    ):  # ClassBalancedDataset repeats images by the frequency of their classes
        return math.inf
    wrapped = [dataset['dataset']] if 'dataset' in dataset else dataset.get('datasets')
    if wrapped:
        length = sum(_length(inner, checked) for inner in wrapped)
    else:
        data = checked[_key(dataset)]
        length = data.contents.images if data.kind.inspector else math.inf
    indices = dataset.get('indices')
    if indices is not None:
        length = min(length, abs(indices) if isinstance(indices, int) else len(indices))
    return length * dataset.get('times', 1)


def _missing_truth(cfg: Config, splits: tuple[str, ...]) -> list[str]:
    """Name the annotation files of evaluators that do not exist."""
    files = {split: (cfg.get(f'{split}_evaluator') or {}).get('ann_file') for split in splits}
    return [
        f'{path}: not found ({split}_evaluator.ann_file){_beside(Path(path))}'
        for split, path in files.items()
        if path and not Path(path).is_file()
    ]


def _present_folder(path: Path, root: str | None = None) -> Path | None:
    """Return the innermost folder around a missing path that exists and belongs to its data set, if there is one.

    Args:
        path: of a file or folder.
        root: folder of the data set; without one, it is the one that the path is in.
    """
    if root and path == Path(root):
        return None
    top = Path(root) if root and Path(root) in path.parents else path.parent
    around = [folder for folder in path.parents if folder == top or top in folder.parents]
    return next((folder for folder in around if folder.is_dir()), None)


def _beside(path: Path, root: str | None = None) -> str:
    """Return the end of a message that says what there is where a path is missing; '' without its data set's folder."""
    folder = _present_folder(path, root)
    if folder is None:
        return ''
    names = sorted(entry.name for entry in folder.iterdir())
    missing = path.relative_to(folder).parts[0]
    return f'; {folder} has {listed(names) or "no files"}{suggestion(missing, names)}'


def _broken_rules(found: list[Contents], whole: bool) -> list[BrokenRule]:
    """Run the checks of every file, or of a sample of the label maps and masks."""
    if not whole:
        sample = [check for contents in found for check in _evenly(contents.label_files)]
        return [rule for check in sample for rule in check()]
    checks = [
        check for contents in found for check in (*contents.image_files, *contents.label_files)
    ]
    broken = []
    if checks:
        from mmpola.progress import progress

        with (
            progress('reading images and masks', len(checks)) as advance,
            ThreadPoolExecutor() as threads,
        ):
            for rules in threads.map(lambda check: check(), checks):
                broken += rules
                advance(1)
    return broken


def _evenly(checks: list[FileCheck]) -> list[FileCheck]:
    """Select at most SAMPLE of the checks, evenly spread."""
    return checks[:: max(1, -(-len(checks) // SAMPLE))]


def _message(missing: list[str], problems: list[str], to_link: list[Checked]) -> str:
    """List missing files and problems, and, if there are data sets `to_link`, the layout that the config expects."""
    lines = '\n'.join(f'  {line}' for line in dict.fromkeys((*missing, *problems)))
    if not missing:
        return f'the data is not valid\n{lines}'
    if not to_link:
        return f'the data is not complete\n{lines}'
    layout = '\n'.join(
        f'  {path}' for path in dict.fromkeys(path for data in to_link for path in data.paths)
    )
    return (
        f'the data is not complete\n{lines}\nthe config expects\n{layout}\n'
        'data in another folder: link it (mkdir -p data; ln -s /path/to/it data/)'
    )


def print_table(checked: list[Checked]) -> None:
    """Print the paths of each data set, then a table with a row of counts for each, then warnings and notes."""
    for data in checked:
        print(printable(f'{", ".join(data.splits)}: {", ".join(map(str, data.paths))}'))
    table = Table()
    for heading in ('split', 'kind', 'samples', 'annotations', 'unannotated', 'classes'):
        table.add_column(heading, justify='left' if heading in ('split', 'kind') else 'right')
    for data in checked:
        contents = data.contents
        counts = (
            contents.images,
            contents.annotations,
            contents.unannotated,
            len(contents.classes),
        )
        table.add_row(
            ', '.join(data.splits),
            data.name,
            *(f'{count:,}' if data.kind.inspector else '-' for count in counts),
        )
    Console().print(table)
    print_notes(checked)


def print_notes(checked: list[Checked]) -> None:
    """Print the warnings, about what loaders drop, and the notes, about what is unusual in the data."""
    for kind in ('warning', 'note'):
        for line in dict.fromkeys(
            line for data in checked for line in getattr(data.contents, f'{kind}s')
        ):
            print(printable(f'{kind}: {line}'))
