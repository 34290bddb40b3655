"""Metrics of single classes, and AP with more digits, beside what mmdet and mmseg return."""

from __future__ import annotations

import math
from typing import Any

from mmpola.openmmlab.config.contents import nodes

MOST_CLASSES = 20
"""Data with more classes have no metrics of single ones: they would fill the log."""

DIGITS = 5
"""Decimal places of AP as a share."""

ITEMS = ('mAP', 'mAP_50', 'mAP_75', 'mAP_s', 'mAP_m', 'mAP_l')
"""mmdet's names of the first numbers that pycocotools summarises, in its order."""


def add_classes(loop: Any, config: Any) -> None:
    """Let the metrics of a validation or test return the values of single classes too.

    mmdet's CocoMetric computes `NAME_precision` with `classwise=True`, which is set if the config
    does not say otherwise. It keeps three digits, and of boxes and masks only the masks' values;
    here it returns `DIGITS` and `bbox_NAME_precision` and `segm_NAME_precision`. mmseg's IoUMetric
    prints the IoU of each class in its log; here it also returns them, as `IoU.NAME` in percent.
    Data of more than `MOST_CLASSES` classes, several data sets and other metrics have no values of
    single classes.

    Args:
        loop: MMEngine's ValLoop or TestLoop; its metrics are changed.
        config: of its evaluator.
    """
    says_so = any('classwise' in node for _, node in nodes(config, ''))
    for metric in getattr(loop.evaluator, 'metrics', ()):
        kinds = [kind.__name__ for kind in type(metric).__mro__]
        if 'CocoMetric' in kinds:
            _return_digits(metric)
        meta = metric.dataset_meta
        if not isinstance(meta, dict):  # of several data sets it is a list
            continue
        classes = meta.get('classes') or ()
        if len(classes) > MOST_CLASSES:
            continue
        if 'CocoMetric' in kinds and not says_so:
            metric.classwise = True
        elif 'IoUMetric' in kinds:
            _return_ious(metric, classes)


def _return_digits(metric: Any) -> None:
    """Let a CocoMetric return what pycocotools has computed, each class by its own name.

    mmdet rounds to three digits, and takes the classes of pycocotools for those of the file, which
    pycocotools has sorted by their ids.
    """
    from mmdet.evaluation.metrics import coco_metric

    original = coco_metric.COCOeval
    compute = metric.compute_metrics

    def compute_metrics(results: Any) -> Any:
        evaluations: list[Any] = []

        class Noted(original):  # type: ignore[misc, valid-type]
            def summarize(self) -> None:
                super().summarize()
                if self.params.useCats:
                    order = [self.params.catIds.index(number) for number in metric.cat_ids]
                    self.eval['precision'] = self.eval['precision'][:, :, order]
                    evaluations.append(self)

        coco_metric.COCOeval = Noted
        try:
            metrics = compute(results)
        finally:
            coco_metric.COCOeval = original
        for evaluation in evaluations:
            _add_digits(metrics, evaluation)
        if metric.classwise and evaluations:
            _name_classes(metric.cat_ids, metrics, evaluations)
        return metrics

    metric.compute_metrics = compute_metrics


def _add_digits(metrics: dict[str, Any], evaluation: Any) -> None:
    """Replace AP over all classes, which mmdet has rounded, by that of one evaluation."""
    for item, value in zip(ITEMS, evaluation.stats, strict=False):
        name = f'{evaluation.params.iouType}_{item}'
        if name in metrics:
            metrics[name] = round(float(value), DIGITS)


def _name_classes(ids: list[int], metrics: dict[str, Any], evaluations: list[Any]) -> None:
    """Put the AP of each class among the metrics, of boxes and masks apart if there are both."""
    names = [category['name'] for category in evaluations[0].cocoGt.loadCats(ids)]
    has_both = len(evaluations) > 1
    if has_both:
        for name in names:
            metrics.pop(f'{name}_precision', None)  # of the last evaluation
    for evaluation in evaluations:
        prefix = ''
        if has_both:
            prefix = f'{evaluation.params.iouType}_'
        for index, name in enumerate(names):
            precision = evaluation.eval['precision'][:, :, index, 0, -1]  # any area, most boxes
            known = precision[precision > -1]
            value = round(float(known.mean()), DIGITS) if known.size else math.nan
            metrics[f'{prefix}{name}_precision'] = value


def _return_ious(metric: Any, classes: Any) -> None:
    """Let an IoUMetric return what it knows of single classes."""
    of_classes = metric.total_area_to_metrics
    compute = metric.compute_metrics
    known: dict[str, Any] = {}

    def total_area_to_metrics(*arguments: Any, **options: Any) -> Any:
        found = of_classes(*arguments, **options)
        known.update(found)
        return found

    def compute_metrics(results: Any) -> Any:
        metrics = compute(results)
        for name, value in zip(classes, known.get('IoU', ()), strict=False):
            metrics[f'IoU.{name}'] = round(100 * float(value), 2)
        return metrics

    metric.total_area_to_metrics = total_area_to_metrics
    metric.compute_metrics = compute_metrics
