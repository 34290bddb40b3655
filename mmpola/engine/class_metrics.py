"""Metrics of single classes in validation, beside the means that mmdet and mmseg return."""

from __future__ import annotations

from typing import Any

from mmpola.config_contents import nodes

MOST_CLASSES = 20
"""Data with more classes have no metrics of single ones: they would fill the log."""


def add_classes(loop: Any, config: Any) -> None:
    """Let the metrics of a validation loop return the values of single classes too.

    mmdet's CocoMetric computes `NAME_precision` with `classwise=True`, which is set if the config
    does not say otherwise. mmseg's IoUMetric prints the IoU of each class in its log; here it also
    returns them, as `IoU.NAME` in percent. Data of more than `MOST_CLASSES` classes, several data
    sets and other metrics are left as they are.

    Args:
        loop: MMEngine's ValLoop; its metrics are changed.
        config: of its evaluator.
    """
    says_so = any('classwise' in node for _, node in nodes(config, ''))
    for metric in getattr(loop.evaluator, 'metrics', ()):
        kinds = [kind.__name__ for kind in type(metric).__mro__]
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
