"""Check that the data of a config is valid: folders, annotations, classes, images and texts."""

from __future__ import annotations

import contextlib
import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mmengine.config import Config
from mmengine.dataset import BaseDataset
from mmengine.registry import DATASETS, init_default_scope

from mmpola.apps.data_checks.coco import check_file, kept_file, unreadable_annotations
from mmpola.apps.data_checks.evaluators import check_evaluators, evaluators, head_ignore_index
from mmpola.apps.data_checks.infos import check_infos
from mmpola.apps.data_checks.report import DatasetReport
from mmpola.apps.data_checks.samples import FEW, Loader, load_samples
from mmpola.apps.data_checks.verdicts import (
    check_files,
    check_labels,
    check_loaded,
    check_padding,
    is_inconclusive,
)
from mmpola.apps.image_reader import FIRST_IMAGES, loading_notes
from mmpola.config_contents import (
    class_count_problems,
    class_list_problem,
    inner_datasets,
    input_channels,
    nodes,
    predicted_classes,
)
from mmpola.engine.processes import place
from mmpola.messages import UsageError, first_line, listed


def check_data(
    cfg: Config, splits: tuple[str, ...] = ('train', 'val', 'test'), *, whole: bool = False
) -> list[DatasetReport]:
    """Check the data sets of `splits`, as they are built, and count what they hold.

    If a launcher starts several processes on a machine, only the first one opens the files.

    Args:
        cfg: its dataloaders, evaluators and model are read.
        splits: some of 'train', 'val' and 'test'.
        whole: load every sample, with a progress bar; else `FEW` of each data set, so that pixels
            are counted in a few label maps.

    Raises:
        UsageError: files are missing or invalid; the message lists every problem.
    """
    init_default_scope(cfg.get('default_scope', 'mmengine'))
    reports = different_datasets(cfg, splits)
    missing: list[str] = []
    is_first = place(cfg.get('launcher', 'none')).local_rank == 0
    for report in reports:
        with contextlib.redirect_stdout(io.StringIO()):  # pycocotools prints that it reads
            absent = check_dataset(cfg, report, whole, is_first)
        missing += [f'{report.loader}: {path}: not found' for path in absent]
    for split in splits:
        for key, node in evaluators(cfg, split):
            truth = node.get('ann_file')
            if truth and not Path(truth).exists():
                missing.append(f'{key}.ann_file: {truth}: not found')
    if is_first and not missing:
        check_together(cfg, splits, reports, whole)
    problems = list(dict.fromkeys(line for report in reports for line in report.problems))
    if missing:
        headline = f'the data is not complete (looked from {Path.cwd()})'
        advice = 'data in another folder: correct its path, or link it (ln -s /path/to/it data/)'
        raise UsageError('\n  '.join([headline, *missing, *problems, advice]))
    if len(problems) == 1:
        raise UsageError(f'the data is not valid: {problems[0]}')
    if problems:
        raise UsageError('\n  '.join(['the data is not valid', *problems]))
    return reports


def different_datasets(cfg: Config, splits: tuple[str, ...]) -> list[DatasetReport]:
    """Return an empty report of each data set of `splits`; those with equal files are one."""
    reports: dict[str, DatasetReport] = {}
    for split in splits:
        loader = cfg.get(f'{split}_dataloader')
        if not loader:
            continue
        for dataset in inner_datasets(loader.dataset):
            others = [(key, value) for key, value in dataset.items() if key != 'pipeline']
            kind = str(dataset.get('type')).split('.')[-1]
            report = reports.setdefault(str(sorted(others)), DatasetReport(dataset, kind))
            if split not in report.splits:
                report.splits.append(split)
    return list(reports.values())


def check_dataset(cfg: Config, report: DatasetReport, whole: bool, is_first: bool) -> list[Path]:
    """Build, read and check a data set, fill in its report and return paths that do not exist."""
    root = report.config.get('root')  # of class folders and sequences
    if root and not Path(root).expanduser().exists():
        return [Path(root)]
    try:
        dataset = build(report.config)
        report.paths = paths_of(dataset)
        is_local = getattr(dataset, 'backend_args', None) is None
        absent = [path for path in report.paths if is_local and not path.exists()]
        if absent or not is_first:
            return absent
        read(dataset, report)
    except UsageError as error:  # of the constructors of sequences
        report.problems += str(error).splitlines()
        return []
    except Exception as error:  # data sets raise exceptions of any type
        wrong = []
        if report.raw is not None:
            wrong = unreadable_annotations(dataset, report.raw)
        message = '; '.join(str(error).strip().splitlines())
        reason = f'{report.kind} cannot read it ({type(error).__name__}: {message})'
        if wrong:
            reason = f'annotations that training cannot read ({len(wrong)}): {listed(wrong)}'
        where = report.place if report.paths else f'{report.loader}.dataset'
        report.problems.append(f'{where}: {reason}')
        return []
    report.is_counted = True
    check_content(cfg, dataset, report, whole)
    return []


def build(config: dict[str, Any]) -> Any:
    """Build a data set; OpenMMLab's without reading its annotations yet."""
    kind = config.get('type')
    if isinstance(kind, str):
        with DATASETS.switch_scope_and_registry(None) as registry:
            kind = registry.get(kind)
    arguments = dict(config)
    if isinstance(kind, type) and issubclass(kind, BaseDataset):
        arguments['lazy_init'] = True
    return DATASETS.build(arguments)


def paths_of(dataset: Any) -> list[Path]:
    """List the annotation file and the folders of a built data set."""
    folders = getattr(dataset, 'data_prefix', None) or {'': getattr(dataset, 'root', '')}
    names = [getattr(dataset, 'ann_file', ''), *folders.values()]
    return [Path(name) for name in dict.fromkeys(names) if name]


def read(dataset: Any, report: DatasetReport) -> None:
    """Read the annotations, and note how many samples there are, before and after `filter_cfg`."""
    report.warnings += getattr(dataset, 'notes', [])
    report.listed = -1  # not read yet
    if hasattr(dataset, 'filter_data'):
        keep = dataset.filter_data

        def note_and_keep() -> Any:
            report.listed = len(dataset.data_list)
            report.first = dataset.data_list[:FEW]
            return keep()

        dataset.filter_data = note_and_keep
    try:
        if hasattr(dataset, 'full_init'):
            with kept_file(dataset, report):
                dataset.full_init()
        report.images = len(dataset)
    except ValueError:  # MMEngine cannot store an empty list
        if report.listed < 0 or dataset.data_list:
            raise
    report.listed = max(report.listed, report.images)
    info = getattr(dataset, 'metainfo', {})
    report.classes = tuple(info.get('classes') or ())
    report.things = len(info.get('thing_classes') or ())


def check_content(cfg: Config, dataset: Any, report: DatasetReport, whole: bool) -> None:
    """Check and count the samples of a data set that has been read."""
    names = dataset.metainfo.get('classes') if hasattr(dataset, 'metainfo') else None
    if isinstance(names, str):  # MMEngine takes its letters for the classes
        report.problems.append(
            f'{report.loader}.dataset.metainfo.classes: expected several names or one with a '
            f"comma, ('{names}',), got '{names}'"
        )
        return
    if report.raw is not None:
        check_file(dataset, report)
    check_files(dataset, report)
    if report.images > 0 and hasattr(dataset, 'get_data_info'):
        check_infos(dataset, report)
    check_labels(dataset, report)
    if report.problems:
        return
    every = range(report.images)
    few = every[:: math.ceil(report.images / FEW)]
    load = Loader(dataset, few)
    if load.error is not None:
        report.problems.append(f'{report.loader}.dataset: its first sample fails: {load.error}')
        if not load.steps:
            return
    ignored = head_ignore_index(cfg)
    known = report.labels
    loaded = load_samples(load, every if whole else few, report, ignored)
    if loaded.samples < report.images and is_inconclusive(loaded, report):
        loaded = load_samples(load, every, report, ignored)
    report.counted = report.images
    if loaded.unit and (loaded.samples == report.images or not known):
        report.counted = loaded.samples
        report.unit = loaded.unit
        report.numbers = loaded.numbers
        report.ignored = loaded.ignored
    check_loaded(dataset, report)
    check_padding(cfg, dataset, report, load)
    channels = input_channels(cfg.model)
    report.warnings += loading_notes(loaded.images[:FIRST_IMAGES], channels)


def check_together(
    cfg: Config, splits: Sequence[str], reports: list[DatasetReport], whole: bool
) -> None:
    """Check the data sets against each other, the model and the evaluators."""
    predicted = predicted_classes(cfg.get('model'))
    known = [report for report in reports if report.classes]
    for report in known:
        # In panoptic data, heads of instances predict only the things among the classes.
        heads = [(key, count) for key, count in predicted if count != report.things]
        if not report.config.get('return_classes'):  # to models that read the names as a text
            report.problems += class_count_problems(heads, report.classes, report.loader)
        first = known[0]
        where = f'{report.loader}.dataset'
        problem = class_list_problem(first.classes, first.loader, report.classes, where)
        if problem is not None:
            report.problems.append(problem)
    if any(report.problems for report in reports):
        return
    for split in splits:
        of_split = [report for report in reports if split in report.splits]
        if of_split:
            check_evaluators(cfg, split, of_split)
            if whole:
                check_outer_pipeline(cfg, split, of_split[0])


def check_outer_pipeline(cfg: Config, split: str, report: DatasetReport) -> None:
    """Run one sample through the pipelines of wrappers, such as that of MultiImageMixDataset."""
    dataset = cfg[f'{split}_dataloader'].dataset
    wrappers = [node for _, node in nodes(dataset, '') if {'dataset', 'datasets'} & set(node)]
    try:
        if any('pipeline' in wrapper for wrapper in wrappers):
            with contextlib.redirect_stdout(io.StringIO()):
                DATASETS.build(dict(dataset))[0]
    except Exception as error:  # transforms raise exceptions of any type
        reason = f'its first sample fails: {first_line(error)}'
        report.problems.append(f'{split}_dataloader.dataset: {reason}')
