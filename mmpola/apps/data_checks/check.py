"""Check that the data of a config is valid: folders, annotations, classes, images and texts."""

from __future__ import annotations

import contextlib
import io
import math
from pathlib import Path
from typing import Any

from mmengine.config import Config
from mmengine.registry import DATASETS, init_default_scope

from mmpola.apps.data_checks.class_folders import check_class_folders
from mmpola.apps.data_checks.label_maps import check_label_maps
from mmpola.apps.data_checks.missing_files import beside, existing_folder
from mmpola.apps.data_checks.report import DatasetReport
from mmpola.apps.data_checks.sequences import check_sequences
from mmpola.config_tree import IMAGENET, class_count_problems, leaves, nodes, predicted_classes
from mmpola.engine.processes import place
from mmpola.messages import UsageError, first_line, listed

COCO = 'COCO'
LABEL_MAPS = 'label maps'
CLASS_FOLDERS = 'class folders'
SEQUENCES = 'sequences'

SEQUENCE_TYPES = ('ListOps', 'ByteText', 'Retrieval', 'Pathfinder', 'GreyCIFAR')

LAZY_ARGUMENTS = {'lazy_init': True, 'pipeline': []}
"""Arguments with which mmdet's and mmseg's data sets are built without reading annotations."""


def check_data(
    cfg: Config,
    splits: tuple[str, ...] = ('train', 'val', 'test'),
    *,
    whole: bool = False,
    strict: bool = False,
) -> list[DatasetReport]:
    """Check the data sets of `splits` and count what they hold.

    If a launcher starts several processes on a machine, only the first one opens the files.

    Args:
        cfg: its dataloaders, evaluators and model are read.
        splits: some of 'train', 'val' and 'test'.
        whole: read every image and label map, with a progress bar, and run one sample of each data
            set through its pipeline; else read only a sample of the label maps and masks.
        strict: treat what a loader drops as a problem.

    Raises:
        UsageError: files are missing or invalid, or a batch has more images than there are; the
            message lists every problem, and the expected paths if files are missing.
    """
    missing: list[str] = []
    problems: list[str] = []
    is_root_missing = False
    opens_files = place(cfg.get('launcher', 'none')).local_rank == 0
    datasets = different_datasets(cfg, splits)
    for dataset, report in datasets:
        loader = f'{report.splits[0]}_dataloader'
        root = dataset.get('data_root')
        absent = [path for path in report.paths if not path.exists()]
        for path in absent:
            missing.append(
                f'{loader}: {path}: not found (looked from {Path.cwd()}){beside(path, root)}'
            )
            if existing_folder(path, root) is None:
                is_root_missing = True
        if not absent and opens_files:
            problems += check_dataset(cfg, dataset, report, loader, whole)
            if strict:
                problems += report.warnings
    for split in splits:
        truth = (cfg.get(f'{split}_evaluator') or {}).get('ann_file')
        if truth and not Path(truth).is_file():
            end = beside(Path(truth))
            missing.append(f'{truth}: not found ({split}_evaluator.ann_file){end}')
    reports = [report for _, report in datasets]
    if 'train' in splits and not missing and not problems:
        problems += batch_problems(cfg, reports)
    if missing or problems:
        layout = []
        if is_root_missing:
            layout = [path for report in reports for path in report.paths]
        raise UsageError(refusal_text(missing, problems, layout))
    return reports


def different_datasets(
    cfg: Config, splits: tuple[str, ...]
) -> list[tuple[dict[str, Any], DatasetReport]]:
    """Return each data set of `splits` once, with a report that names all splits that use it."""
    found: dict[tuple[str, ...], tuple[dict[str, Any], DatasetReport]] = {}
    for split in splits:
        loader = cfg.get(f'{split}_dataloader')
        if not loader:
            continue
        for dataset in leaves(loader.dataset):
            new = empty_report(dataset)
            _, report = found.setdefault(new.identity, (dataset, new))
            if split not in report.splits:
                report.splits.append(split)
    return list(found.values())


def empty_report(dataset: dict[str, Any]) -> DatasetReport:
    """Return the report of a data set before it is opened: its kind, and the paths it names."""
    name = str(dataset.get('type')).removeprefix('mmpola.')
    if name == 'ClassFolders':
        kind = CLASS_FOLDERS
        paths = []
        if dataset.get('root'):
            paths.append(Path(dataset['root']))
        classes = dataset.get('classes')  # names, or a file or folder that has them
        if classes and classes != IMAGENET and not isinstance(classes, (list, tuple)):
            paths.append(Path(classes))
    elif name in SEQUENCE_TYPES:
        kind = SEQUENCES
        paths = [DATASETS.get(f'mmpola.{name}').folder(dataset['root'])]
    else:  # data sets of OpenMMLab
        kind = str(dataset.get('type'))
        root = Path(dataset.get('data_root') or '')
        annotations = dataset.get('ann_file')
        folders = dataset.get('data_prefix') or {}
        if not isinstance(folders, dict):
            folders = {'': folders}
        if 'img' in folders and str(annotations).endswith('.json'):
            kind = COCO
        elif 'img_path' in folders and 'seg_map_path' in folders:
            kind = LABEL_MAPS
        paths = [root / part for part in (annotations, *folders.values()) if part]
        if not paths:
            paths = [root]
    arguments = [dataset.get(argument) for argument in ('type', 'split', 'classes', 'indices')]
    identity = [str(value) for value in arguments + paths]
    return DatasetReport([], kind, paths, tuple(identity))


def check_dataset(
    cfg: Config, dataset: dict[str, Any], report: DatasetReport, loader: str, whole: bool
) -> list[str]:
    """Build and check a data set whose paths exist, fill in its report and return the problems.

    Args:
        cfg: the config.
        dataset: the part of it that describes the data set.
        report: filled in.
        loader: config key of the loader, such as 'train_dataloader'.
        whole: as in `check_data`.
    """
    if report.kind not in (COCO, LABEL_MAPS, CLASS_FOLDERS, SEQUENCES):
        return []
    init_default_scope(cfg.get('default_scope', 'mmengine'))
    arguments = dict(dataset)
    if report.kind in (COCO, LABEL_MAPS):
        arguments.update(LAZY_ARGUMENTS)
    try:
        built: Any = DATASETS.build(arguments)
    except UsageError as error:  # the constructors of class folders and sequences read the files
        return str(error).splitlines()
    except (KeyError, TypeError, ValueError, AssertionError) as error:
        reason = error.args[0] if error.args else error
        return [f'{loader}.dataset: {reason}']

    if report.kind == COCO:
        from mmpola.apps.data_checks.coco import check_coco  # needs pycocotools, which mmdet brings

        check_coco(built, report, whole)
    elif report.kind == LABEL_MAPS:
        check_label_maps(built, report, whole)
    elif report.kind == CLASS_FOLDERS:
        check_class_folders(built, report, whole)
    else:
        check_sequences(built, report)
    report.is_counted = True

    problems = list(report.problems)
    if report.classes:
        predicted = predicted_classes(cfg.get('model'))
        problems += class_count_problems(predicted, report.classes, loader)
    problems += mask_problems(cfg, report, loader)
    if whole and not problems and report.images:
        problems += sample_problems(dataset, loader)
    return problems


def mask_problems(cfg: Config, report: DatasetReport, loader: str) -> list[str]:
    """Describe what lacks masks: the loader of a model with a mask head, or annotations."""
    loads_masks = any(node.get('with_mask') for _, node in nodes(cfg[loader], loader))
    if loader == 'train_dataloader' and not loads_masks:
        for key, node in nodes(cfg.get('model'), 'model'):
            if key.endswith('roi_head') and node.get('mask_head'):
                return [
                    f'{loader}.dataset.pipeline: expected LoadAnnotations with with_mask=True, '
                    f'for {key}.mask_head, got none'
                ]
    if loads_masks and report.without_mask:
        number = len(report.without_mask)
        return [
            f'{loader}: expected a segmentation in every annotation, because masks are loaded '
            f'(with_mask=True), got {number} annotations without one: {listed(report.without_mask)}'
        ]
    return []


def sample_problems(dataset: dict[str, Any], loader: str) -> list[str]:
    """Run the first sample of a data set through its pipeline; describe what it raises."""
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # pycocotools prints that it reads
            DATASETS.build(dict(dataset))[0]
    except Exception as error:  # transforms of other packages raise exceptions of any type
        return [
            f'{loader}.dataset: expected a pipeline that the first sample passes, '
            f'got {first_line(error)}'
        ]
    return []


def batch_problems(cfg: Config, reports: list[DatasetReport]) -> list[str]:
    """Return a problem if a training batch has more images than a process gets in an epoch.

    An InfiniteSampler has no epochs and fits any batch.
    """
    loader = cfg.train_dataloader
    batch = loader.get('batch_size')
    sampler = str((loader.get('sampler') or {}).get('type'))
    images = training_images(cfg, reports)
    if batch is None or images == math.inf or 'Infinite' in sampler:
        return []
    processes = place(cfg.get('launcher', 'none')).processes
    share = math.ceil(images / processes)
    if batch <= share:
        return []
    reason = f'for {images} images'
    if processes > 1:
        reason += f', divided among {processes} processes'
    return [f'train_dataloader.batch_size: expected at most {share}, {reason}, got {batch}']


def training_images(cfg: Config, reports: list[DatasetReport]) -> float:
    """Return the number of training images in an epoch, infinity if it is unknown.

    Args:
        cfg: config of the run.
        reports: what `check_data` returned for it, 'train' among the splits.
    """
    by_identity = {report.identity: report for report in reports}
    return samples_in(cfg.train_dataloader.dataset, by_identity)


def samples_in(dataset: dict[str, Any], reports: dict[tuple[str, ...], DatasetReport]) -> float:
    """Return the number of samples of a data set or wrapper, infinity if it is unknown."""
    if 'oversample_thr' in dataset:  # ClassBalancedDataset repeats images of rare classes
        return math.inf
    length: float
    if 'dataset' in dataset:
        length = samples_in(dataset['dataset'], reports)
    elif dataset.get('datasets'):
        length = sum(samples_in(inner, reports) for inner in dataset['datasets'])
    else:
        report = reports[empty_report(dataset).identity]
        length = report.images if report.is_counted else math.inf
    if length == math.inf:  # then `indices` may name more samples than there are
        return math.inf
    indices = dataset.get('indices')
    if isinstance(indices, int):
        length = min(length, abs(indices))
    elif indices is not None:
        length = min(length, len(indices))
    return length * dataset.get('times', 1)


def refusal_text(missing: list[str], problems: list[str], layout: list[Path]) -> str:
    """List what is missing or invalid and, if data may be elsewhere, the expected `layout`."""
    headline = 'the data is not complete' if missing else 'the data is not valid'
    lines = [headline]
    lines += [f'  {line}' for line in dict.fromkeys(missing + problems)]
    if layout:
        lines.append('the config expects')
        lines += [f'  {path}' for path in dict.fromkeys(layout)]
        lines.append('data in another folder: link it (mkdir -p data; ln -s /path/to/it data/)')
    return '\n'.join(lines)
