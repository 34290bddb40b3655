"""Checks whether evaluators judge predictions by the annotations of the data they are made for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mmpola.apps.data_checks.checks.objects import short_outlines
from mmpola.apps.data_checks.read import PIXELS, Data
from mmpola.apps.data_checks.table import ERROR, EVALUATORS, WARNING, Run, check, some
from mmpola.config_contents import evaluators, head_ignore_index, type_name
from mmpola.messages import listed


def judged(run: Run) -> Iterator[tuple[str, dict[str, Any], list[Data]]]:
    """Yield (config key, dict, data sets of its split) of every dict in an evaluator."""
    for split in run.splits:
        of_split = [data for data in run.sets if split in data.splits]
        for key, evaluator in evaluators(run.cfg, split):
            if of_split:
                yield key, evaluator, of_split


def with_file(run: Run) -> Iterator[tuple[str, dict[str, Any], list[Data], Any]]:
    """Yield what `judged` does, and the file that evaluator and data set read as mmdet reads it."""
    for key, evaluator, sets in judged(run):
        truth = Path(evaluator.get('ann_file') or '').resolve()
        for data in sets:
            if data.raw is not None and truth in [path.resolve() for path in data.paths]:
                yield key, evaluator, sets, data.raw
                break


@check('evaluator-file', WARNING, EVALUATORS)
def evaluator_file(run: Run) -> Iterator[str]:
    """An evaluator reads a file that is not the one of its split."""
    for key, evaluator, sets in judged(run):
        truth = evaluator.get('ann_file')
        files = [path.resolve() for data in sets for path in data.paths]
        if truth and Path(truth).resolve() not in files:
            own = listed(data.place for data in sets)
            loader = f'{key.partition("_")[0]}_dataloader'
            yield (
                f'{key}.ann_file: expected an annotation file of '
                f'{loader} ({own}), got {truth}: predictions are compared with other images'
            )


@check('evaluator-sets', WARNING, EVALUATORS)
def evaluator_sets(run: Run) -> Iterator[str]:
    """A metric reads the file of one of several data sets, or their images share ids."""
    for split in run.splits:
        of_split = [data for data in run.sets if split in data.splits]
        whole = run.cfg.get(f'{split}_evaluator')
        kind = type_name(whole.get('type')) if isinstance(whole, dict) else ''
        if len(of_split) < 2 or kind == 'MultiDatasetsEvaluator':
            continue
        ids: Counter[Any] = Counter()
        for data in of_split:
            ids.update(data.ids - {None})
        shared = sum(count > 1 for count in ids.values())
        for key, evaluator in evaluators(run.cfg, split):
            reads_ids = 'Coco' in type_name(evaluator.get('type'))
            if evaluator.get('ann_file') or (reads_ids and shared):
                yield (
                    f'{key}: {len(of_split)} data sets in {split}_dataloader, of which {shared} '
                    f'images share an id with another, and ann_file={evaluator.get("ann_file")}: '
                    "predictions for one are compared with another's annotations; use type="
                    "'MultiDatasetsEvaluator' with a metric and a prefix for each"
                )


@check('evaluator-outlines', ERROR, EVALUATORS)
def evaluator_outlines(run: Run) -> Iterator[str]:
    """Outlines have fewer than three points, of which pycocotools makes an error after an epoch."""
    for _, evaluator, _, coco in with_file(run):
        if 'segm' in metrics_of(evaluator):
            yield from some(
                f'{evaluator["ann_file"]}: ids of annotations with a polygon of fewer than three '
                'points, or an odd number of values, with which the evaluation of masks fails or '
                'counts less',
                short_outlines(coco),
            )


def metrics_of(evaluator: dict[str, Any]) -> list[str]:
    """List the metrics of an evaluator in COCO's way; none of others."""
    if not type_name(evaluator.get('type')).endswith('CocoMetric'):
        return []
    metrics = evaluator.get('metric') or 'bbox'
    return [metrics] if isinstance(metrics, str) else list(metrics)


@check('evaluator-fields', ERROR, EVALUATORS)
def evaluator_fields(run: Run) -> Iterator[str]:
    """Annotations have no field that pycocotools reads in an evaluation."""
    for _, evaluator, _, coco in with_file(run):
        metrics = metrics_of(evaluator)
        if not metrics:
            continue
        fields = {'iscrowd': 0, 'area': 'width times height of the box'}
        if 'segm' in metrics:
            fields['segmentation'] = "the outline, or leave 'segm' out of the evaluator's metric"
        for field, remedy in fields.items():
            count = sum(field not in annotation for annotation in coco.anns.values())
            if count:
                yield (
                    f'{evaluator["ann_file"]}: {count} of {len(coco.anns)} annotations have no '
                    f'{field!r}, without which evaluation fails; write {remedy}'
                )


@check('annotation-id-0', WARNING, EVALUATORS)
def annotation_id_0(run: Run) -> Iterator[str]:
    """An annotation has the id 0, which pycocotools takes for no match."""
    for _, evaluator, _, coco in with_file(run):
        if 0 in coco.anns:
            yield (
                f'{evaluator["ann_file"]}: an annotation has the id 0 and counts as never found; '
                'number them from 1'
            )


@check('evaluator-images', WARNING, EVALUATORS)
def evaluator_images(run: Run) -> Iterator[str]:
    """The file of an evaluator has annotated images that are not evaluated."""
    for key, _, sets, coco in with_file(run):
        annotated = {image for image, found in coco.imgToAnns.items() if found}
        known: set[Any] = set()
        for data in sets:
            known |= data.ids
        if not annotated <= known:
            yield (
                f'{key}.ann_file: {len(known & set(coco.imgs))} of {len(coco.imgs)} images are '
                'evaluated, AP counts the others as missed; give evaluator and data set a file of '
                'these images only, instead of indices or filter_cfg'
            )


@check('evaluator-ignore-index', WARNING, EVALUATORS)
def evaluator_ignore_index(run: Run) -> Iterator[str]:
    """IoUMetric ignores another label than the heads."""
    for key, evaluator, sets in judged(run):
        is_iou = type_name(evaluator.get('type')).endswith('IoUMetric')
        ignored = evaluator.get('ignore_index', 255)
        head = head_ignore_index(run.cfg.get('model'))
        if is_iou and ignored != head and any(data.labels.unit == PIXELS for data in sets):
            yield (
                f'{key}.ignore_index: expected {head} as in model.decode_head, got {ignored}: '
                'pixels without a label count as wrong'
            )


@check('trial', ERROR, EVALUATORS)
def trial(run: Run) -> Iterator[str]:
    """The model, an evaluator or the drawing of predictions fails for the first two images."""
    return iter(())  # TrialHook asks this, when everything is built


@check('metric-names', ERROR, EVALUATORS)
def metric_names(run: Run) -> Iterator[str]:
    """A hook or schedule waits for a metric that validation does not return."""
    return iter(())  # so does TrialHook
