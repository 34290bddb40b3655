"""What runs change in evaluators: metrics of single classes, more digits, names of files.

Methods of evaluators and metrics are replaced here only:

- `compute_metrics` of CocoMetric, and COCOeval in its module while it runs: AP has five digits and
  classes have their own names (`_return_precisions`);
- `compute_metrics` of IoUMetric: it returns the IoU of each class (`_return_ious`);
- `process` of metrics that write a file for each image: no two images share one (`write_apart`);
- `evaluate` of an evaluator: what it prints goes to the log file (`log_prints`).
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from mmengine.logging import MMLogger

from mmpola.openmmlab.config.contents import nodes
from mmpola.openmmlab.results.names import image_names
from mmpola.openmmlab.screen.screen import prints_logged

MOST_CLASSES = 20
"""Data with more classes have no metrics of single ones: they would fill the log."""

DIGITS = 5
"""Decimal places of AP as a share."""

ITEMS = ('mAP', 'mAP_50', 'mAP_75', 'mAP_s', 'mAP_m', 'mAP_l')
"""mmdet's names of the first numbers that pycocotools summarises, in its order."""

WRITE_BY_STEM = {'IoUMetric', 'DepthMetric', 'SemSegMetric', 'CityscapesMetric'}
"""Metrics of mmseg and mmdet that write `output_dir`/STEM.png, and use an image's path for that.

mmdet's CityScapesMetric and CocoPanopticMetric also find the annotations by it.
"""


def add_classes(loop: Any, config: Any) -> None:
    """Let the metrics of a validation or test return the values of single classes too.

    mmdet's CocoMetric computes `NAME_precision` with `classwise=True`, which is set if the config
    does not say otherwise. With boxes and masks, the names are `bbox_NAME_precision` and
    `segm_NAME_precision`. mmseg's IoUMetric also returns the IoU of each class, as `IoU.NAME` in
    percent. Data of more than `MOST_CLASSES` classes, several data sets and other metrics have no
    values of single classes.

    Args:
        loop: MMEngine's ValLoop or TestLoop; its metrics are changed.
        config: of its evaluator.
    """
    says_so = any('classwise' in node for _, node in nodes(config, ''))
    for metric in getattr(loop.evaluator, 'metrics', ()):
        kinds = [kind.__name__ for kind in type(metric).__mro__]
        if 'CocoMetric' in kinds:
            _return_precisions(metric)
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


def _return_precisions(metric: Any) -> None:
    """Let a CocoMetric return AP with `DIGITS`, of each class by its own name if `classwise`.

    mmdet rounds to three digits, keeps the last of boxes and masks for each class, and names
    classes in the order of the data set, while pycocotools sorts them by their ids.
    """
    from mmdet.evaluation.metrics import coco_metric

    original = coco_metric.COCOeval
    compute = metric.compute_metrics

    def compute_metrics(results: Any) -> Any:
        evaluations: list[Any] = []

        class RecordedEval(original):  # type: ignore[misc, valid-type]
            def summarize(self) -> None:
                super().summarize()
                if self.params.useCats:
                    order = [self.params.catIds.index(number) for number in metric.cat_ids]
                    self.eval['precision'] = self.eval['precision'][:, :, order]
                    evaluations.append(self)

        coco_metric.COCOeval = RecordedEval
        try:
            metrics = compute(results)
        finally:
            coco_metric.COCOeval = original
        if metric.classwise and evaluations:
            metrics = {key: x for key, x in metrics.items() if not key.endswith('_precision')}
        for evaluation in evaluations:
            kind = evaluation.params.iouType
            for item, value in zip(ITEMS, evaluation.stats, strict=False):
                if f'{kind}_{item}' in metrics:
                    metrics[f'{kind}_{item}'] = round(float(value), DIGITS)
            prefix = f'{kind}_' if len(evaluations) > 1 else ''
            if metric.classwise:
                for name, value in _class_precisions(evaluation, metric.cat_ids).items():
                    metrics[f'{prefix}{name}_precision'] = value
        return metrics

    metric.compute_metrics = compute_metrics


def _class_precisions(evaluation: Any, ids: list[int]) -> dict[str, float]:
    """Return the AP of each class by name, over all areas; NaN for a class without objects.

    Args:
        evaluation: a COCOeval whose precisions [IoU, recall, class, area, detections] are in the
            order of `ids`.
        ids: the classes' ids in the annotation file.
    """
    values = {}
    for index, category in enumerate(evaluation.cocoGt.loadCats(ids)):
        precision = evaluation.eval['precision'][:, :, index, 0, -1]
        known = precision[precision > -1]
        values[category['name']] = round(float(known.mean()), DIGITS) if known.size else math.nan
    return values


def _return_ious(metric: Any, classes: Any) -> None:
    """Let an IoUMetric that returns mIoU return the IoU of each class too; NaN without pixels."""
    compute = metric.compute_metrics

    def compute_metrics(results: Any) -> Any:
        metrics = compute(results)
        if 'mIoU' in metrics:
            intersection: Any = sum(areas[0] for areas in results)
            union: Any = sum(areas[1] for areas in results)
            for name, value in zip(classes, intersection / union, strict=False):
                metrics[f'IoU.{name}'] = round(100 * float(value), 2)
        return metrics

    metric.compute_metrics = compute_metrics


def write_apart(loop: Any) -> None:
    """Let the metrics of a loop write files of their own for images that share a stem.

    The files are then below `output_dir` in the folders that the images have below their common
    one. Without such images they keep their names, which test servers expect.
    """
    for metric in loop.evaluator.metrics:
        kinds = {kind.__name__ for kind in type(metric).__mro__}
        if not kinds & WRITE_BY_STEM or not metric.output_dir:
            continue
        names = image_names(loop.dataloader.dataset)
        stems = {Path(image).stem for image in names}
        if len(stems) < len(names):
            _write_as(metric, names)


def _write_as(metric: Any, names: dict[str, Path]) -> None:
    """Give the images that a metric processes other paths, and each folder its own output."""
    process = metric.process

    def process_apart(data_batch: Any, data_samples: Any) -> None:
        folder = metric.output_dir  # of the run, or of its trial
        for sample in data_samples:
            name = names[sample['img_path']]
            output = Path(folder, name.parent)
            output.mkdir(parents=True, exist_ok=True)
            metric.output_dir = str(output)
            # The metric drops a suffix, and a name may end with the name of its image.
            process(data_batch, [{**sample, 'img_path': f'{name}.image'}])
        metric.output_dir = folder

    metric.process = process_apart


def log_prints(evaluator: Any, logger: MMLogger) -> None:
    """Let an evaluator print into the log file; its validation is a row on the screen."""
    evaluate = evaluator.evaluate

    def evaluate_quietly(size: int) -> Any:
        with prints_logged(logger):
            return evaluate(size)

    evaluator.evaluate = evaluate_quietly
