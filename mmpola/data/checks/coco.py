"""Inspect data sets in COCO layout: an annotation file in JSON and the images that it lists."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from pycocotools import mask as run_lengths

from mmpola.data.checks.contents import Contents
from mmpola.data.checks.images import size_as_loaded, unreadable
from mmpola.messages import BrokenRule, listed

POLYGONS = re.compile(rb'"segmentation"\s*:\s*\[[\[\s]*\d[\[\]\d\s.,eE+-]*\]')
"""Numbers are not checked, but are most of a file: without them COCO's parses in a quarter of the time and memory. An
empty list of polygons does not match, and one with NaN neither."""

SOME_POLYGON = b'"segmentation":[0]'
"""Replaces them."""


def matches(dataset: dict[str, Any]) -> bool:
    """Whether a data set's config is of this kind: `ann_file` is a JSON file and `data_prefix` has the folder `img`."""
    prefix = dataset.get('data_prefix')
    return str(dataset.get('ann_file') or '').endswith('.json') and isinstance(prefix, dict) and 'img' in prefix


def inspect(dataset: Any) -> Contents:
    """Inspect mmdet's CocoDataset, or one like it, built with `lazy_init`. Opens no image."""
    path, folder = Path(dataset.ann_file), Path(dataset.data_prefix['img'])
    contents = Contents(classes=dataset.metainfo.get('classes') or ())
    try:
        content = json.loads(POLYGONS.sub(SOME_POLYGON, path.read_bytes()))
        images, categories = content['images'], {c['id']: c['name'] for c in content['categories']}
        annotations = content.get('annotations', []) if dataset.test_mode else content['annotations']
        sizes = {image['id']: (image['width'], image['height']) for image in images}
        names = [image['file_name'] for image in images]
        image_ids, category_ids = ([a[key] for a in annotations] for key in ('image_id', 'category_id'))
        boxes = np.array([[*a['bbox'], a['area']] for a in annotations], float).reshape(len(annotations), 5)
        repeated = len(annotations) - len({a['id'] for a in annotations})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        contents.problems.append(f'{path}: not a COCO annotation file ({error!r})')
        return contents
    annotated = set(image_ids)
    found = _Findings(path, contents)
    if not images:
        found.problem('lists no images')
    elif not dataset.test_mode and not annotations:
        found.problem('has no annotations to train on')
    if missing := _missing(folder, names):
        contents.problems.append(f'{path} lists images that are not in {folder}: {listed(missing)}')
    if len(sizes) < len(images):
        found.problem(f'{len(images) - len(sizes)} images have the same id as another one')
    if repeated:
        found.problem(f'{repeated} annotations have the same id as another one')
    _check_categories(found, list(content['categories']), contents.classes)
    if unknown := sorted(set(category_ids) - categories.keys(), key=str):
        found.problem(f'annotations have category ids that are not among its categories: {listed(unknown)}')
    if orphans := sorted(annotated - sizes.keys(), key=str):
        found.problem(f'annotations have image ids that are not among its images: {listed(orphans)}')
    image_sizes = np.array([sizes.get(key, (np.inf, np.inf)) for key in image_ids], float).reshape(-1, 2)
    valid = _check_boxes(found, boxes, image_sizes, [a['id'] for a in annotations])
    _count(found, dataset, content | {'annotations': annotations}, valid)
    masks = [a for a in annotations if a.get('segmentation')]
    if endless := [a['id'] for a in masks if isinstance(a['segmentation'], list) and not _finite(a['segmentation'])]:
        found.problem(f'polygons with NaN, infinite or no numbers ({len(endless)}): annotations {listed(endless)}')
    contents.label_files = [
        partial(_check_run_lengths, path, a, sizes[a['image_id']])
        for a in masks
        if not isinstance(a['segmentation'], list) and a['image_id'] in sizes
    ]
    absent = set(missing)
    contents.image_files = [
        partial(_check_image, path.name, folder, image['file_name'], sizes[image['id']])
        for image in images
        if image['file_name'] not in absent
    ]
    return contents


class _Findings:
    """Adds lines that begin with the annotation file to its contents."""

    def __init__(self, path: Path, contents: Contents) -> None:
        self.path, self.contents = path, contents

    def problem(self, text: str) -> None:
        self.contents.problems.append(f'{self.path}: {text}')

    def warning(self, text: str) -> None:
        self.contents.warnings.append(f'{self.path}: {text}')

    def note(self, text: str) -> None:
        self.contents.notes.append(f'{self.path}: {text}')


def _missing(folder: Path, names: list[str]) -> list[str]:
    """Return the names that are not files in the folder; only names in subfolders need a look-up each."""
    present = set(os.listdir(folder))
    return [name for name in names if name not in present and not (folder / name).is_file()]


def _check_categories(found: _Findings, categories: list[dict[str, Any]], classes: Any) -> None:
    """Check names and order: mmdet finds classes by name and numbers them in the file's order, not the config's."""
    names = [category['name'] for category in categories]
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        found.problem(f'several categories have the same name: {listed(twice)}')
    if lacking := [name for name in classes if name not in names]:
        found.problem(
            f'has no category for {len(lacking)} of the {len(classes)} classes of the config '
            f'({listed(lacking)}); it has {listed(names)}; set metainfo.classes of the data sets'
        )
    elif (in_file := [name for name in names if name in classes]) != list(classes):
        found.problem(
            f'metainfo.classes: expected the order of the file, by which mmdet numbers them ({listed(in_file)}), '
            f'got {listed(classes)}'
        )


def _check_boxes(found: _Findings, boxes: Any, sizes: Any, ids: list[Any]) -> Any:
    """Check boxes [N, 5], as x, y, width, height and area in pixels, against their images' (width, height) [N, 2].

    Returns:
        bool [N]: the boxes that mmdet does not drop.
    """
    names = np.array(ids, object)
    low, high = boxes[:, :2], boxes[:, :2] + boxes[:, 2:4]
    finite = np.isfinite(boxes).all(1)
    degenerate = finite & ((boxes[:, 2:4] < 1).any(1) | (boxes[:, 4] <= 0))
    outside = finite & ~degenerate & ((high <= 0) | (low >= sizes)).any(1)
    inside = finite & ~degenerate & ~outside
    beyond = inside & ((low < -1) | (high > sizes + 1)).any(1)  # a pixel is tolerated for rounding
    for report, which, text in (
        (found.problem, ~finite, 'boxes with NaN or infinite values'),
        (found.warning, degenerate, 'boxes narrower than a pixel or without area are dropped'),
        (found.warning, outside, 'boxes outside their image are dropped'),
        (found.note, beyond, 'boxes that extend beyond their image'),
    ):
        if which.any():
            report(f'{text} ({which.sum()}): annotations {listed(names[which])}')
    return inside


def _finite(polygons: list[Any]) -> bool:
    """Whether polygons consist of finite numbers."""
    if polygons == [0]:  # SOME_POLYGON
        return True
    try:
        return all(np.isfinite(np.array(polygon, float)).all() for polygon in polygons)
    except (TypeError, ValueError):
        return False


def _check_run_lengths(path: Path, annotation: dict[str, Any], size: tuple[int, int]) -> list[BrokenRule]:
    """Check that a mask in run lengths can be decoded, as mmdet does, and has the (width, height) of its image."""
    mask = annotation['segmentation']
    try:
        if isinstance(mask['counts'], list):
            mask = run_lengths.frPyObjects(mask, size[1], size[0])
        height, width = run_lengths.decode(mask).shape
    except Exception as error:  # ValueError, KeyError, TypeError, OverflowError …
        return [(f'{path}: masks that cannot be decoded', f'annotation {annotation["id"]} ({error!r})')]
    if (width, height) != tuple(size):
        sizes = f'{width} x {height}, image {size[0]} x {size[1]}'
        return [(f'{path}: masks whose size differs from their image', f'annotation {annotation["id"]} ({sizes})')]
    return []


def _count(found: _Findings, dataset: Any, content: dict[str, Any], valid: Any) -> None:
    """Count what mmdet's loader returns, by its rules and the data set's `filter_cfg`, and warn of what it drops.

    Args:
        found: gets counts, warnings and a problem if nothing is left.
        dataset: the data set.
        content: of the annotation file.
        valid: bool [N], the annotations whose boxes are not dropped.
    """
    contents, annotations = found.contents, content['annotations']
    categories = {category['id']: category['name'] for category in content['categories']}
    names, classes = [categories.get(annotation['category_id']) for annotation in annotations], set(contents.classes)
    known = np.array([name in classes for name in names], bool)
    ignored, crowd = (np.array([a.get(flag, False) for a in annotations], bool) for flag in ('ignore', 'iscrowd'))
    if others := Counter(name for name in names if name not in classes):
        entries = listed(f'{name} ({count})' for name, count in others.items())
        found.warning(f'annotations of categories that are not classes of the config are dropped: {entries}')
    if ignored.any():
        found.warning(f"annotations with 'ignore' are dropped ({ignored.sum()})")
    annotated = {annotations[i]['image_id'] for i in np.flatnonzero(known)}
    images = _filter_images(found, dataset, content['images'], annotated)
    kept = valid & known & ~ignored & np.array([a['image_id'] in images for a in annotations], bool)
    if (kept & crowd).any():
        found.note(f'annotations of crowds are ignored ({(kept & crowd).sum()})')
    trained = np.flatnonzero(kept & ~crowd)
    contents.images, contents.annotations = len(images), len(trained)
    contents.unannotated = len(images - {annotations[i]['image_id'] for i in trained})
    without_mask = (annotations[i]['id'] for i in np.flatnonzero(kept) if not annotations[i].get('segmentation'))
    contents.without_mask = [str(number) for number in without_mask]
    if not (contents.annotations or contents.problems or dataset.test_mode):
        found.problem(f'has no annotations to train on: none of {len(annotations)} is left by what the loader drops')


def _filter_images(found: _Findings, dataset: Any, images: list[dict[str, Any]], annotated: set[Any]) -> set[Any]:
    """Return the ids of the images that `filter_cfg` leaves of a data set for training, and warn of the others."""
    rules = {} if dataset.test_mode else dataset.filter_cfg or {}
    side = rules.get('min_size', 0)
    small = [image for image in images if min(image['width'], image['height']) < side]
    empty = [image for image in images if rules.get('filter_empty_gt', False) and image['id'] not in annotated]
    for dropped, text in (
        (small, f'images with a side of less than {side} pixels are dropped (filter_cfg.min_size)'),
        (empty, 'images without annotations are dropped (filter_cfg.filter_empty_gt)'),
    ):
        if dropped:
            found.warning(f'{text}: {len(dropped)}, {listed(image["file_name"] for image in dropped)}')
    return {image['id'] for image in images} - {image['id'] for image in small + empty}


def _check_image(annotations: str, folder: Path, name: str, size: tuple[int, int]) -> list[BrokenRule]:
    """Check that an image can be read and has the (width, height) that its annotations refer to."""
    if reason := unreadable(folder / name):
        return [(f'{folder}: images that cannot be read', f'{name} ({reason})')]
    loaded = size_as_loaded(folder / name)
    if loaded is not None and loaded != tuple(size):
        sizes = f'{loaded[0]} x {loaded[1]}, not {size[0]} x {size[1]}'
        return [(f'{folder}: images whose size as loaded differs from {annotations}', f'{name} ({sizes})')]
    return []
