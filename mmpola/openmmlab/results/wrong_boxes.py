"""Which mistakes of a detector cost how much AP, and which boxes they are.

Kinds of mistakes, thresholds and costs are as in section 2 of 'TIDE: A General Toolbox for
Identifying Object Detection Errors' (Bolya et al., ECCV 2020).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pycocotools import mask as coco_masks

FOREGROUND = 0.5
"""Least IoU of a detection that finds an object."""

BACKGROUND = 0.1
"""Largest IoU with any object of a detection of nothing."""

RECALLS = np.linspace(0, 1, 101)
"""Recalls at which COCO's AP takes the precision."""

HIT = 'hit'
IGNORED = 'ignored'
WRONG = ('wrong class', 'wrong place', 'wrong class and place', 'twice', 'background')
WRONG_CLASS, WRONG_PLACE, BOTH, TWICE, NOTHING = WRONG
MISSED = 'missed'
"""Kinds of detections, and of objects that no detection hits or almost hits."""


@dataclass
class Boxes:
    """Detections and objects of all images; boxes are x1, y1, x2, y2 in pixels of the file.

    Attributes:
        paths: of the images.
        images: index of each detection's image, [D].
        boxes: of the detections, [D, 4].
        scores: [D].
        labels: [D].
        kinds: `HIT`, `IGNORED` or one of `WRONG`, [D].
        targets: the object that a detection hits or almost hits, [D]; -1 without one.
        true_images: index of each object's image, [G].
        true_boxes: [G, 4].
        true_labels: [G].
    """

    paths: list[str]
    images: NDArray[Any]
    boxes: NDArray[Any]
    scores: NDArray[Any]
    labels: NDArray[Any]
    kinds: NDArray[Any]
    targets: NDArray[Any]
    true_images: NDArray[Any]
    true_boxes: NDArray[Any]
    true_labels: NDArray[Any]


def detections_of(sample: Any) -> tuple[str, NDArray[Any], NDArray[Any], NDArray[Any]] | None:
    """Return path, boxes, scores and labels of mmdet's data sample, best first; None without."""
    if 'img_path' not in sample or 'bboxes' not in sample.get('pred_instances', ()):
        return None
    found = sample.pred_instances
    scores = found.scores.cpu().numpy()
    order = np.argsort(-scores, kind='stable')
    boxes = found.bboxes.cpu().numpy()
    return sample.img_path, boxes[order], scores[order], found.labels.cpu().numpy()[order]


def compare_boxes(found: Sequence[Any], dataset: Any) -> Boxes:
    """Compare the detections of images with the objects of mmdet's data set.

    Args:
        found: what `detections_of` returned for each image.
        dataset: lists `img_path` and `instances` of each image.
    """
    infos = [dataset.get_data_info(index) for index in range(len(dataset))]
    known = {info.get('img_path'): info.get('instances') or () for info in infos}
    rows = []
    true_rows = []
    objects = 0
    for image, (path, boxes, scores, labels) in enumerate(found):
        instances = known.get(path, ())
        true_boxes, true_labels = _arrays([x for x in instances if not x.get('ignore_flag')])
        kinds, targets = _kinds(boxes, labels, true_boxes, true_labels)
        crowds, crowd_labels = _arrays([x for x in instances if x.get('ignore_flag')])
        inside = overlaps(boxes, crowds, crowd=True) >= FOREGROUND
        inside &= labels[:, None] == crowd_labels
        kinds[inside.any(1) & (kinds != HIT)] = IGNORED
        targets = np.where((targets >= 0) & (kinds != IGNORED), targets + objects, -1)
        rows.append((np.full(len(boxes), image), boxes, scores, labels, kinds, targets))
        true_rows.append((np.full(len(true_boxes), image), true_boxes, true_labels))
        objects += len(true_boxes)
    columns = [np.concatenate(column) for column in zip(*rows, strict=True)]
    columns += [np.concatenate(column) for column in zip(*true_rows, strict=True)]
    return Boxes([str(one[0]) for one in found], *columns)


def _arrays(instances: Sequence[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    boxes = np.array([x['bbox'] for x in instances], dtype=np.float64)
    return boxes.reshape(-1, 4), np.array([x['bbox_label'] for x in instances], dtype=np.int64)


def overlaps(boxes: NDArray[Any], others: NDArray[Any], crowd: bool = False) -> NDArray[Any]:
    """Return the IoU [A, B] of boxes; of crowds the share of a box that lies in them."""
    if not len(boxes) or not len(others):
        return np.zeros((len(boxes), len(others)))
    sides = []
    for corners in (boxes.astype(np.float64), others):
        sides.append(np.concatenate([corners[:, :2], corners[:, 2:] - corners[:, :2]], 1))
    return coco_masks.iou(*sides, [crowd] * len(others))


def _kinds(
    boxes: NDArray[Any], labels: NDArray[Any], true_boxes: NDArray[Any], true_labels: NDArray[Any]
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return kinds and targets of an image's detections; hits are those of COCO's AP50."""
    kinds = np.full(len(boxes), NOTHING, dtype='<U24')
    targets = np.full(len(boxes), -1)
    if not len(boxes) or not len(true_boxes):
        return kinds, targets
    ious = overlaps(boxes, true_boxes)
    is_same = labels[:, None] == true_labels
    own = np.where(is_same, ious, 0)
    other = np.where(is_same, 0, ious)
    best = own.max(1)
    is_wrong_class = other.max(1) >= FOREGROUND
    is_wrong_place = (best >= BACKGROUND) & (best <= FOREGROUND)
    kinds[ious.max(1) > BACKGROUND] = BOTH
    kinds[best > FOREGROUND] = TWICE
    kinds[is_wrong_class] = WRONG_CLASS
    kinds[is_wrong_place] = WRONG_PLACE
    targets[is_wrong_class] = other.argmax(1)[is_wrong_class]
    targets[is_wrong_place] = own.argmax(1)[is_wrong_place]
    for index in np.flatnonzero(best >= FOREGROUND):
        target = own[index].argmax()
        if own[index, target] >= FOREGROUND:
            kinds[index] = HIT
            targets[index] = target
            own[:, target] = 0
    return kinds, targets


def precisions(
    labels: NDArray[Any], scores: NDArray[Any], hits: NDArray[Any], objects: NDArray[Any]
) -> NDArray[Any]:
    """Return the precision of each class at `RECALLS` as COCO's AP takes it; its mean is the AP.

    Args:
        labels: classes of the detections, [D].
        scores: of the detections, [D].
        hits: whether they find an object, bool [D].
        objects: number of each class, [C].

    Returns:
        [C, 101]; NaN of classes without objects.
    """
    order = np.argsort(-scores, kind='stable')
    result = np.full((len(objects), len(RECALLS)), np.nan)
    for label in np.flatnonzero(objects):
        hit = hits[order][labels[order] == label]
        found = hit.cumsum()
        precision = found / np.arange(1, len(hit) + 1)
        precision = np.maximum.accumulate(precision[::-1])[::-1]  # at this recall or a larger one
        places = np.searchsorted(found / objects[label], RECALLS)
        result[label] = np.append(precision, 0.0)[places]
    return result


def costs(found: Boxes, classes: int) -> tuple[NDArray[Any], dict[str, NDArray[Any]]]:
    """Return the curves of `precisions`, and how AP50 grows if the mistakes of a kind are mended.

    Of detections of the wrong class or in the wrong place, the best one of each object that is not
    found otherwise finds it; the rest, and the other wrong detections, are removed. Missed objects
    are not counted. A class whose objects all are missed has 1 then, where TIDE has no value.

    Returns:
        Curves [classes, 101], and kind -> growth of each class, [classes]; NaN without objects.
    """
    objects = np.bincount(found.true_labels, minlength=classes)
    hits = found.kinds == HIT
    counted = found.kinds != IGNORED

    def curves(labels: Any, hit: Any, kept: Any, of: Any = objects) -> NDArray[Any]:
        return precisions(labels[kept], found.scores[kept], hit[kept], of)

    before = curves(found.labels, hits, counted)
    growth = {}
    for kind in WRONG:
        labels = found.labels.copy()
        mended = hits.copy()
        near = np.flatnonzero((found.kinds == kind) & (found.targets >= 0))
        near = near[np.argsort(-found.scores[near], kind='stable')]
        targets, first = np.unique(found.targets[near], return_index=True)
        moved = near[first[~np.isin(targets, found.targets[hits])]]
        labels[moved] = found.true_labels[found.targets[moved]]
        mended[moved] = True
        kept = counted & (mended | (found.kinds != kind))
        growth[kind] = (curves(labels, mended, kept) - before).mean(1)
    near = np.unique(found.targets[found.targets >= 0])
    left = np.bincount(found.true_labels[near], minlength=classes)
    after = curves(found.labels, hits, counted, left)
    after[(left == 0) & (objects > 0)] = 1
    growth[MISSED] = (after - before).mean(1)
    return before, growth


def best_score(found: Boxes) -> float:
    """Return the score from which on the detections of all classes have their best F1."""
    counted = found.kinds != IGNORED
    scores = found.scores[counted]
    order = np.argsort(-scores, kind='stable')
    hits = (found.kinds[counted] == HIT)[order].cumsum()
    f1 = 2 * hits / (np.arange(1, len(hits) + 1) + len(found.true_labels))
    return float(scores[order][f1.argmax()]) if len(f1) else 1.0


def partners(found: Boxes, score: float) -> NDArray[Any]:
    """Return the object that each detection of at least a score finds or calls something else.

    An object is called something else by the best detection of the kind `WRONG_CLASS`, if none
    finds it.

    Returns:
        [D]; -1 of detections that have invented an object, -2 of those below the score.
    """
    shown = (found.scores >= score) & (found.kinds != IGNORED)
    result = np.where(shown, -1, -2)
    for kind in (HIT, WRONG_CLASS):
        rows = np.flatnonzero(shown & (found.kinds == kind))
        rows = rows[np.argsort(-found.scores[rows], kind='stable')]
        targets, first = np.unique(found.targets[rows], return_index=True)
        is_free = ~np.isin(targets, result)
        result[rows[first[is_free]]] = targets[is_free]
    return result


def confusion(found: Boxes, partner: NDArray[Any], classes: int) -> NDArray[Any]:
    """Count (true class, detected class), [classes + 1, classes + 1]; the last is the background.

    Args:
        found: the boxes.
        partner: what `partners` returned for them.
        classes: their number.
    """
    matrix = np.zeros((classes + 1, classes + 1), dtype=np.int64)
    pair = partner >= 0
    np.add.at(matrix, (found.true_labels[partner[pair]], found.labels[pair]), 1)
    np.add.at(matrix[classes], found.labels[partner == -1], 1)
    missed = np.setdiff1d(np.arange(len(found.true_labels)), partner)
    np.add.at(matrix[:, classes], found.true_labels[missed], 1)
    return matrix


def cost_line(
    missing: float,
    growth: dict[str, NDArray[Any]],
    matrix: NDArray[Any],
    classes: Sequence[str],
) -> str:
    """Say how many points of AP50 each kind of mistakes costs, the worst one first.

    Args:
        missing: points up to an AP50 of 100.
        growth: of each kind and class, as `costs` returns it.
        matrix: (true class, detected class), [C + 1, C + 1].
        classes: their names, [C].
    """
    points = {kind: 100 * float(np.nanmean(growth[kind])) for kind in growth}
    texts: list[str] = []
    for kind in sorted(points, key=lambda kind: -points[kind]):
        if points[kind] < 0.05:
            break
        text = f'{kind} {points[kind]:.1f}'
        if not texts and kind == WRONG_CLASS:
            others = matrix[:-1, :-1] * ~np.eye(len(classes), dtype=bool)
            true, called = divmod(int(others.argmax()), len(classes))
            text += f' (most often {classes[true]} called {classes[called]})'
        elif not texts and len(classes) > 1:
            text += f' (most of it {classes[int(np.nanargmax(growth[kind]))]})'
        texts.append(text)
    return f'of {missing:.1f} missing points of AP50: {", ".join(texts) or "none of one kind"}'
