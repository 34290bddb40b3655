"""Checks of the objects and labels that a data set knows: labels, boxes, outlines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from mmpola.apps.data_checks.checks.files import other_names
from mmpola.apps.data_checks.read import INSTANCES, Data, loads_masks, steps_of
from mmpola.apps.data_checks.table import DATA, ERROR, IN_TRAINING, WARNING, check, some
from mmpola.messages import listed

ROUNDING = 1
"""Pixels by which a box may leave its image."""

MANY = 0.1
"""Something is wrong with all boxes if more than this share of them leaves its image."""

HALF = 0.5
"""Area that an outline and its box have at least in common, as a share of both together."""

FARTHEST = 10
"""Coordinates of polygons may be this many times the longer side of their image.

pycocotools stores an outline in steps of a fifth of a pixel: 1e9 would take all memory.
"""


@check('label-range', ERROR, DATA)
def label_range(data: Data) -> Iterator[str]:
    """Labels of objects, images or sequences are not those of the classes."""
    count = len(data.classes)
    wrong = sorted(label for label in data.labels.numbers if not 0 <= label < count)
    if wrong and count:
        yield (
            f'{data.place}: expected labels 0 … {count - 1} for {count} classes, got '
            f'{listed(wrong)}; number the classes from 0, or name one more in metainfo.classes'
        )


@check('no-objects', IN_TRAINING, DATA)
def no_objects(data: Data) -> Iterator[str]:
    """No object is left to learn from."""
    steps = [type(step).__name__ for step in steps_of(data.dataset)]
    labels = data.labels
    if labels.unit != INSTANCES or labels.total or 'LoadEmptyAnnotations' in steps:
        return
    reason = f'none of them is of {listed(data.classes)}{other_names(data)}'
    if data.seen.dropped:
        causes = Counter(dropped.cause for dropped in data.seen.dropped)
        found = listed(f'{cause}: {count}' for cause, count in causes.items())
        count = len(data.seen.dropped)
        reason = f'{count} of {data.seen.annotations} are dropped ({found}){other_names(data)}'
    if labels.ignored:
        reason = (
            f'all {labels.ignored} are ignored (iscrowd, ignore or difficult is 1); set it to 0 '
            'for those to learn from'
        )
    yield f'{data.place}: no annotations to train on: {reason}'


@check('boxes-finite', ERROR, DATA)
def boxes_finite(data: Data) -> Iterator[str]:
    """Boxes are not finite numbers."""
    objects = data.instances
    wrong = objects.has_box & ~np.isfinite(objects.box).all(1)
    yield from some(f'{data.place}: boxes that are not finite numbers', boxes(data, wrong))


@check('boxes-empty', WARNING, DATA)
def boxes_empty(data: Data) -> Iterator[str]:
    """Boxes to learn from have no width or height, which can make the loss NaN."""
    objects = data.instances
    left, top, right, bottom = objects.box.T
    empty = objects.has_box & ~objects.ignored & ((right <= left) | (bottom <= top))
    if data.is_trained:
        yield from some(
            f'{data.place}: boxes without width or height, which can make the loss NaN; correct '
            'them, or leave them out: filter_cfg=dict(bbox_min_size=1) in the data set',
            boxes(data, empty),
        )


@check('boxes-outside', WARNING, DATA)
def boxes_outside(data: Data) -> Iterator[str]:
    """Many boxes leave their image: they are written as x1, y1, x2, y2."""
    objects = data.instances
    finite = objects.has_box & np.isfinite(objects.box).all(1)
    box = objects.box[finite]
    beyond = np.maximum(-box[:, :2], box[:, 2:] - objects.size[finite])
    leaving = int((beyond > ROUNDING).any(1).sum())
    if leaving > MANY * len(box):
        yield (
            f'{data.place}: {leaving} of {len(box)} boxes leave their image: are they x1, y1, x2, '
            "y2? COCO's are x, y, width, height"
        )


@check('outlines-beside', WARNING, DATA)
def outlines_beside(data: Data) -> Iterator[str]:
    """Many outlines do not fit their boxes: x and y exchanged, or another resolution."""
    objects = data.instances
    chosen = objects.has_box & objects.outline.any(1)
    chosen &= np.isfinite(objects.outline).all(1) & np.isfinite(objects.box).all(1)
    box = objects.box[chosen]
    outline = objects.outline[chosen]
    first = np.maximum(box[:, :2], outline[:, :2])
    last = np.minimum(box[:, 2:], outline[:, 2:])
    shared = np.maximum(last - first, 0).prod(1)
    either = (box[:, 2:] - box[:, :2]).prod(1) + (outline[:, 2:] - outline[:, :2]).prod(1) - shared
    beside = shared < HALF * either
    if beside.sum() > MANY * len(box) and not any(boxes_outside(data)):
        yield (
            f'{data.place}: {beside.sum()} of {len(box)} outlines do not fit their boxes (less '
            'than half in common): are they y, x, or in pixels of another resolution? '
            'Outlines are x1, y1, x2, y2, …'
        )


@check('outlines-flat', ERROR, DATA)
def outlines_flat(data: Data) -> Iterator[str]:
    """Outlines are lists of numbers, instead of lists of polygons."""
    flat = []
    annotations = data.raw.anns.values() if data.raw is not None else ()
    for annotation in annotations if loads_masks(data.dataset) else ():
        polygons = annotation.get('segmentation')
        if isinstance(polygons, list) and not all(isinstance(one, list) for one in polygons):
            flat.append(annotation.get('id'))
    yield from some(
        f'{data.place}: ids of annotations whose segmentation is [x1, y1, …], but not [[x1, y1, '
        '…], …], a list of polygons',
        flat,
    )


@check('outlines-short', WARNING, DATA)
def outlines_short(data: Data) -> Iterator[str]:
    """Outlines have fewer than three points: training ignores their objects."""
    if data.is_trained and loads_masks(data.dataset):
        yield from some(
            f'{data.place}: ids of annotations with a polygon of fewer than three points, or an '
            'odd number of values; training ignores objects that have no other',
            short_outlines(data.raw),
        )


def short_outlines(coco: Any) -> list[Any]:
    """List the ids of annotations with a polygon that is none, in a file in COCO layout."""
    found = []
    for annotation in coco.anns.values() if coco is not None else ():
        polygons = annotation.get('segmentation')
        if not isinstance(polygons, list) or annotation.get('iscrowd'):
            continue
        sizes = [len(polygon) for polygon in polygons if isinstance(polygon, list)]
        if any(size < 6 or size % 2 for size in sizes):
            found.append(annotation.get('id'))
    return found


@check('masks-missing', ERROR, DATA)
def masks_missing(data: Data) -> Iterator[str]:
    """Masks are loaded, and an object has none."""
    yield from some(
        f'{data.place}: images with an object without a mask, but masks are loaded '
        '(with_mask=True); annotate them, or train a detector of boxes: with_mask=False, a model '
        "without mask_head, an evaluator with metric='bbox'",
        images(data, data.instances.lacks_mask),
    )


@check('outlines-far', ERROR, DATA)
def outlines_far(data: Data) -> Iterator[str]:
    """Outlines are not finite, or far outside of their image."""
    objects = data.instances
    limit = FARTHEST * objects.size.max(1, initial=0)
    is_near = (np.abs(objects.outline) <= limit[:, None]).all(1)
    yield from some(
        f'{data.place}: images with an outline whose coordinates are not finite, or farther away '
        f'than {FARTHEST} times the longer side of the image',
        images(data, ~is_near),
    )


def images(data: Data, chosen: Any) -> list[str]:
    """Name the images of chosen objects."""
    numbers = np.unique(data.instances.image[chosen])
    return [data.names[number] for number in numbers]


def boxes(data: Data, chosen: Any) -> list[str]:
    """Name the images of chosen objects, with their boxes."""
    objects = data.instances
    found = []
    for number, box in zip(objects.image[chosen], objects.box[chosen], strict=True):
        found.append(f'{data.names[number]} ({listed(f"{value:g}" for value in box)})')
    return found
