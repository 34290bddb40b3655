"""Check that the data of a config is valid: folders, annotations, classes, images and texts."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import Any

from mmengine.config import Config
from mmengine.registry import DATASETS, init_default_scope

from mmpola.apps.data_checks.class_folders import check_class_folders
from mmpola.apps.data_checks.label_maps import check_label_maps
from mmpola.apps.data_checks.report import DatasetReport
from mmpola.config_contents import (
    IMAGENET,
    class_count_problems,
    inner_datasets,
    nodes,
    predicted_classes,
)
from mmpola.engine.processes import place
from mmpola.messages import UsageError, first_line

COCO = 'COCO'
LABEL_MAPS = 'label maps'
CLASS_FOLDERS = 'class folders'
SEQUENCES = 'sequences'

SEQUENCE_TYPES = ('ListOps', 'ByteText', 'Retrieval', 'Pathfinder', 'GreyCIFAR')

LAZY_ARGUMENTS = {'lazy_init': True, 'pipeline': []}
"""Arguments with which mmdet's and mmseg's data sets are built without reading annotations."""


def check_data(
    cfg: Config, splits: tuple[str, ...] = ('train', 'val', 'test'), *, whole: bool = False
) -> list[DatasetReport]:
    """Check the data sets of `splits` and count what they hold.

    If a launcher starts several processes on a machine, only the first one opens the files.

    Args:
        cfg: its dataloaders, evaluators and model are read.
        splits: some of 'train', 'val' and 'test'.
        whole: read every image and label map, with a progress bar, and run one sample of each data
            set through its pipeline; else read only a sample of the label maps.

    Raises:
        UsageError: files are missing or invalid; the message lists every problem.
    """
    missing: list[str] = []
    problems: list[str] = []
    opens_files = place(cfg.get('launcher', 'none')).local_rank == 0
    reports = different_datasets(cfg, splits)
    for report in reports:
        loader = f'{report.splits[0]}_dataloader'
        absent = [path for path in report.paths if not path.exists()]
        missing += [f'{loader}: {path}: not found' for path in absent]
        if not absent and opens_files:
            problems += check_dataset(cfg, report, loader, whole)
    for split in splits:
        evaluator = f'{split}_evaluator'
        for key, node in nodes(cfg.get(evaluator), evaluator):
            truth = node.get('ann_file')
            if truth and not Path(truth).exists():
                missing.append(f'{key}.ann_file: {truth}: not found')
    if missing:
        headline = f'the data is not complete (looked from {Path.cwd()})'
        advice = 'data in another folder: correct its path, or link it (ln -s /path/to/it data/)'
        raise UsageError('\n  '.join([headline, *missing, *problems, advice]))
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
            report = reports.setdefault(str(sorted(others)), empty_report(dataset))
            if split not in report.splits:
                report.splits.append(split)
    return list(reports.values())


def empty_report(dataset: dict[str, Any]) -> DatasetReport:
    """Return the report of a data set before it is opened: its kind, and the paths it names."""
    name = str(dataset.get('type')).removeprefix('mmpola.')
    if name in SEQUENCE_TYPES:  # their constructors look for the files
        return DatasetReport(dataset, SEQUENCES, [])
    if name == 'ClassFolders':
        paths = [Path(dataset['root'])]
        classes = dataset.get('classes')  # names, or a file or folder that has them
        if classes and classes != IMAGENET and not isinstance(classes, (list, tuple)):
            paths.append(Path(classes))
        return DatasetReport(dataset, CLASS_FOLDERS, paths)
    # data sets of OpenMMLab
    root = Path(dataset.get('data_root') or '')
    annotations = dataset.get('ann_file')
    folders = dataset.get('data_prefix') or {}
    if not isinstance(folders, dict):
        folders = {'': folders}
    kind = name
    if 'img' in folders and str(annotations).endswith('.json'):
        kind = COCO
    elif 'img_path' in folders and 'seg_map_path' in folders:
        kind = LABEL_MAPS
    paths = [root / part for part in (annotations, *folders.values()) if part]
    return DatasetReport(dataset, kind, paths or [root])


def check_dataset(cfg: Config, report: DatasetReport, loader: str, whole: bool) -> list[str]:
    """Build and check a data set whose paths exist, fill in its report and return the problems.

    Args:
        cfg: the config.
        report: filled in.
        loader: config key of the loader, such as 'train_dataloader'.
        whole: as in `check_data`.
    """
    if report.kind not in (COCO, LABEL_MAPS, CLASS_FOLDERS, SEQUENCES):
        return []
    init_default_scope(cfg.get('default_scope', 'mmengine'))
    arguments = dict(report.config)
    if report.kind in (COCO, LABEL_MAPS):
        arguments.update(LAZY_ARGUMENTS)
    try:
        built: Any = DATASETS.build(arguments)
    except UsageError as error:  # the constructors of sequences read the files
        return str(error).splitlines()
    except (KeyError, TypeError, ValueError) as error:
        return [f'{loader}.dataset: {error.args[0]}']

    if report.kind == COCO:
        from mmpola.apps.data_checks.coco import check_coco  # needs pycocotools, which mmdet brings

        if not reads_as_coco(built):
            return []
        with_mask = any(node.get('with_mask') for _, node in nodes(cfg[loader], loader))
        check_coco(built, report, with_mask, whole)
    elif report.kind == LABEL_MAPS:
        check_label_maps(built, report, whole)
    elif report.kind == CLASS_FOLDERS:
        check_class_folders(built, report, whole)
    else:
        report.paths.append(built.root)
        report.classes = built.metainfo['classes']
        report.images = len(built)
        report.annotations = len(built)
        report.warnings += built.notes
    report.is_counted = True

    problems = list(report.problems)
    if report.classes:
        predicted = predicted_classes(cfg.get('model'))
        problems += class_count_problems(predicted, report.classes, loader)
    if whole and not problems:
        try:
            with contextlib.redirect_stdout(io.StringIO()):  # pycocotools prints that it reads
                DATASETS.build(dict(report.config))[0]
        except Exception as error:  # transforms of other packages raise exceptions of any type
            problems.append(f'{loader}.dataset: its first sample fails: {first_line(error)}')
    return problems


def reads_as_coco(dataset: Any) -> bool:
    """Whether a data set reads its annotations as mmdet's CocoDataset; LVIS and others do not."""
    coco = DATASETS.get('mmdet.CocoDataset')
    reads_file = type(dataset).load_data_list is coco.load_data_list
    return bool(reads_file and type(dataset).parse_data_info is coco.parse_data_info)
