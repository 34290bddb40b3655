"""Whether evaluators judge the predictions by the annotations of the data they are made for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mmengine.config import Config

from mmpola.apps.data_checks.report import PIXELS, DatasetReport
from mmpola.config_contents import nodes
from mmpola.messages import listed


def evaluators(cfg: Config, split: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (config key, dict) of every dict in the evaluator of a split."""
    yield from nodes(cfg.get(f'{split}_evaluator'), f'{split}_evaluator')


def check_evaluators(cfg: Config, split: str, reports: list[DatasetReport]) -> None:
    """Compare the evaluator of a split with the split's data sets.

    Args:
        cfg: the config.
        split: 'val' or 'test'.
        reports: of the data sets of this split, which have been read; filled in.
    """
    files = {path.resolve(): report for report in reports for path in report.paths}
    warnings = reports[0].warnings
    for key, evaluator in evaluators(cfg, split):
        truth = evaluator.get('ann_file')
        report = files.get(Path(truth or '').resolve())
        if truth and report is None:
            own = listed(report.place for report in reports)
            warnings.append(
                f'{key}.ann_file: expected an annotation file of {split}_dataloader ({own}), got '
                f'{truth}: predictions are compared with other images'
            )
        elif truth and report is not None and report.raw is not None:
            report.problems += lacking_fields(report.raw, truth, evaluator)
            line = (
                f'{truth}: an annotation has the id 0 and counts as never found; number them from 1'
            )
            if 0 in report.raw.anns and line not in report.warnings:  # taken for no match
                report.warnings.append(line)
            report.warnings += missed_images(report.raw, key, reports)
        ignored = evaluator.get('ignore_index', 255)
        head = head_ignore_index(cfg)
        is_iou = str(evaluator.get('type')).endswith('IoUMetric')
        if is_iou and ignored != head and any(report.unit == PIXELS for report in reports):
            warnings.append(
                f'{key}.ignore_index: expected {head} as in model.decode_head, got {ignored}: '
                'pixels without a label count as wrong'
            )


def lacking_fields(coco: Any, path: str, evaluator: dict[str, Any]) -> list[str]:
    """Describe the fields that pycocotools reads in an evaluation, but some annotations lack."""
    if not str(evaluator.get('type')).endswith('CocoMetric'):
        return []
    fields = {'iscrowd': 0, 'area': 'width times height of the box'}
    metrics = evaluator.get('metric') or 'bbox'
    if 'segm' in ([metrics] if isinstance(metrics, str) else metrics):
        fields['segmentation'] = "the outline, or leave 'segm' out of the evaluator's metric"
    lines = []
    for field, remedy in fields.items():
        count = sum(field not in annotation for annotation in coco.anns.values())
        if count:
            lines.append(
                f'{path}: {count} of {len(coco.anns)} annotations have no {field!r}, without which '
                f'evaluation fails; write {remedy}'
            )
    return lines


def missed_images(coco: Any, key: str, reports: list[DatasetReport]) -> list[str]:
    """Warn if the evaluator's file has annotated images that are not among the data."""
    annotated = {image for image, found in coco.imgToAnns.items() if found}
    known: set[Any] = set()
    for report in reports:
        known |= report.image_ids
    if annotated <= known:
        return []
    total = len(coco.imgs)
    count = len(known & set(coco.imgs))
    return [
        f'{key}.ann_file: {count} of {total} images are evaluated, AP counts the others as missed; '
        'give evaluator and data set a file of these images only, instead of indices or filter_cfg'
    ]


def head_ignore_index(cfg: Config) -> int | None:
    """Return the label that the segmentation heads of a model ignore; None if they differ."""
    found = set()
    for key, node in nodes(cfg.get('model'), 'model'):
        name = key.rstrip('.0123456789').split('.')[-1]  # there may be several
        if name in ('decode_head', 'auxiliary_head') and 'num_classes' in node:
            found.add(node.get('ignore_index', 255))
    if len(found) > 1:
        return None
    return int(next(iter(found), 255))
