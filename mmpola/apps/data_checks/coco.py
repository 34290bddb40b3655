"""Inspect data sets in COCO layout: an annotation file in JSON and the images that it lists."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from pycocotools import mask as run_lengths

from mmpola.apps.data_checks.coco_structure import is_finite, structure_problems
from mmpola.apps.data_checks.kinds import Contents, apply, check_image
from mmpola.messages import BrokenRule, listed
from mmpola.read_image import size_as_loaded

POLYGONS = re.compile(rb'"segmentation"\s*:\s*\[\s*(?:\[\s*[\d.+-][\d\s.,eE+-]*\][\s,]*)+\]')
"""Lists of lists of numbers. The numbers are not checked, but are most of a file: without them COCO's
parses in a quarter of the time and memory. An empty list of polygons does not match; nor does a
flat one, or one with NaN."""

SOME_POLYGON = b'"segmentation":[[]]'
"""Replaces them."""


class _File(NamedTuple):
    """An annotation file; the last five fields have an entry for each of its N annotations.

    Attributes:
        images, categories, annotations: as in the file.
        sizes: image id -> (width, height) in pixels.
        ids, image_ids, category_ids: N each.
        boxes: x, y, width, height and area in pixels [N, 5].
    """

    images: list[dict[str, Any]]
    categories: list[dict[str, Any]]
    annotations: list[dict[str, Any]]
    sizes: dict[Any, tuple[int, int]]
    ids: list[Any]
    image_ids: list[Any]
    category_ids: list[Any]
    boxes: Any


def inspect(dataset: Any) -> Contents:
    """Inspect mmdet's CocoDataset, or one like it, built with `lazy_init`. Opens no image."""
    path, folder = Path(dataset.ann_file), Path(dataset.data_prefix['img'])
    contents = Contents(classes=dataset.metainfo.get('classes') or ())
    try:
        content = json.loads(POLYGONS.sub(SOME_POLYGON, path.read_bytes()))
    except (ValueError, RecursionError) as error:
        contents.problems.append(f'{path}: not a COCO annotation file ({error!r})')
        return contents
    contents.problems += structure_problems(path, content, dataset.test_mode)
    if contents.problems:
        return contents
    file = _parsed(content)
    present = set(os.listdir(folder))  # only names in subfolders need a look-up each
    names = [image['file_name'] for image in file.images]
    unlisted = dict.fromkeys(name for name in names if name not in present)
    absent = dict.fromkeys(name for name in unlisted if not os.path.isfile(folder / name))
    apply([(contents.problems, f'{path} lists images that are not in {folder}', absent)])
    _check_entries(path, file, contents, dataset.test_mode)
    _count(path, file, contents, dataset)
    contents.label_files = [
        partial(_check_run_lengths, path, a, file.sizes[a['image_id']])
        for a in file.annotations
        if a.get('segmentation')
        and not isinstance(a['segmentation'], list)
        and a['image_id'] in file.sizes
    ]
    contents.image_files = [
        partial(_check_image, path.name, folder, image['file_name'], file.sizes[image['id']])
        for image in file.images
        if image['file_name'] not in absent
    ]
    return contents


def _parsed(content: dict[str, Any]) -> _File:
    """Return the content of an annotation file, without annotations if it has none."""
    images = content['images']
    annotations = content.get('annotations', [])
    boxes = np.array([[*a['bbox'], a['area']] for a in annotations], float)
    return _File(
        images,
        [{'id': category['id'], 'name': category['name']} for category in content['categories']],
        annotations,
        {image['id']: (image['width'], image['height']) for image in images},
        [a['id'] for a in annotations],
        [a['image_id'] for a in annotations],
        [a['category_id'] for a in annotations],
        boxes.reshape(len(annotations), 5),
    )


def _check_entries(path: Path, file: _File, contents: Contents, test_mode: bool) -> None:
    """Check ids and names, the order of the classes, and the numbers of polygons."""
    problems, classes = contents.problems, contents.classes
    if not file.images:
        problems.append(f'{path}: lists no images')
    elif not test_mode and not file.annotations:
        problems.append(f'{path}: has no annotations to train on')
    names = [category['name'] for category in file.categories]
    order = [name for name in names if name in classes]
    lacking = [name for name in classes if name not in names]
    if not lacking and order != list(classes):
        problems.append(
            f'{path}: metainfo.classes: expected the order of the file, by which mmdet numbers them ({listed(order)}), '
            f'got {listed(classes)}'
        )
    rule = f'classes of the config without a category; set metainfo.classes, the file has {listed(names)}'
    polygons = [(a['id'], a.get('segmentation')) for a in file.annotations]
    endless = [key for key, shape in polygons if isinstance(shape, list) and not is_finite(shape)]
    orphans = sorted(set(file.image_ids) - file.sizes.keys(), key=str)
    unknown = sorted(
        set(file.category_ids) - {category['id'] for category in file.categories}, key=str
    )
    apply(
        (
            (
                problems,
                f'{path}: ids of several images',
                _repeated(image['id'] for image in file.images),
            ),
            (problems, f'{path}: ids of several annotations', _repeated(file.ids)),
            (problems, f'{path}: names of several categories', _repeated(names)),
            (problems, f'{path}: {rule}', lacking),
            (problems, f'{path}: category ids of annotations that no category has', unknown),
            (problems, f'{path}: image ids of annotations that no image has', orphans),
            (problems, f'{path}: polygons with NaN, infinite or no numbers, annotations', endless),
        )
    )


def _count(path: Path, file: _File, contents: Contents, dataset: Any) -> None:
    """Count what mmdet's loader returns, by its rules and the data set's `filter_cfg`, and warn of what it drops."""
    names = {category['id']: category['name'] for category in file.categories}
    classes, ids = set(contents.classes), np.array(file.ids, object)
    known = np.array([names.get(key) in classes for key in file.category_ids], bool)
    ignored = np.array([bool(a.get('ignore')) for a in file.annotations], bool)
    crowd = np.array([bool(a.get('iscrowd')) for a in file.annotations], bool)
    others = Counter(
        names[key] for key in file.category_ids if key in names and names[key] not in classes
    )
    sizes = np.array(
        [file.sizes.get(key, (np.inf, np.inf)) for key in file.image_ids], float
    ).reshape(-1, 2)
    low, high = file.boxes[:, :2], file.boxes[:, :2] + file.boxes[:, 2:4]
    finite = np.isfinite(file.boxes).all(1)
    degenerate = finite & ((file.boxes[:, 2:4] < 1).any(1) | (file.boxes[:, 4] <= 0))
    outside = finite & ~degenerate & ((high <= 0) | (low >= sizes)).any(1)
    inside = finite & ~degenerate & ~outside
    beyond = inside & ((low < -1) | (high > sizes + 1)).any(1)  # a pixel is tolerated for rounding
    rules = {} if dataset.test_mode else dataset.filter_cfg or {}
    side, annotated = rules.get('min_size', 0), {file.image_ids[i] for i in np.flatnonzero(known)}
    small = [image for image in file.images if min(image['width'], image['height']) < side]
    empty = [
        image
        for image in file.images
        if rules.get('filter_empty_gt', False) and image['id'] not in annotated
    ]
    images = file.sizes.keys() - {image['id'] for image in small + empty}
    kept = inside & known & ~ignored & np.array([key in images for key in file.image_ids], bool)
    warnings, categories = (
        contents.warnings,
        (f'{name} ({count})' for name, count in others.items()),
    )
    apply(
        (
            (
                contents.problems,
                f'{path}: boxes with NaN or infinite values, annotations',
                ids[~finite],
            ),
            (
                warnings,
                f'{path}: dropped boxes narrower than a pixel or without area, annotations',
                ids[degenerate],
            ),
            (warnings, f'{path}: dropped boxes outside their image, annotations', ids[outside]),
            (
                warnings,
                f'{path}: dropped categories that are not classes of the config',
                categories,
            ),
            (warnings, f"{path}: dropped annotations with 'ignore'", ids[ignored]),
            (
                warnings,
                f'{path}: dropped images with a side of less than {side} pixels (filter_cfg.min_size)',
                (image['file_name'] for image in small),
            ),
            (
                warnings,
                f'{path}: dropped images without annotations (filter_cfg.filter_empty_gt)',
                (image['file_name'] for image in empty),
            ),
            (
                contents.notes,
                f'{path}: boxes that extend beyond their image, annotations',
                ids[beyond],
            ),
            (
                contents.notes,
                f'{path}: annotations of crowds, which are ignored',
                ids[kept & crowd],
            ),
        )
    )
    trained = np.flatnonzero(kept & ~crowd)
    contents.images, contents.annotations = len(images), len(trained)
    contents.unannotated = len(images - {file.image_ids[i] for i in trained})
    contents.without_mask = [
        str(ids[i]) for i in np.flatnonzero(kept) if not file.annotations[i].get('segmentation')
    ]
    if not (contents.annotations or contents.problems or dataset.test_mode):
        number = len(file.annotations)
        contents.problems.append(
            f'{path}: has no annotations to train on: none of {number} is left by what the loader drops'
        )


def _repeated(values: Iterable[Any]) -> list[Any]:
    return [value for value, count in Counter(values).items() if count > 1]


def _check_run_lengths(
    path: Path, annotation: dict[str, Any], size: tuple[int, int]
) -> list[BrokenRule]:
    """Check that a mask in run lengths can be decoded, as mmdet does, and has the (width, height) of its image."""
    mask = annotation['segmentation']
    try:
        if isinstance(mask['counts'], list):
            mask = run_lengths.frPyObjects(mask, size[1], size[0])
        height, width = run_lengths.decode(mask).shape
    except Exception as error:  # ValueError, KeyError, TypeError, OverflowError …
        return [
            (f'{path}: masks that cannot be decoded', f'annotation {annotation["id"]} ({error!r})')
        ]
    if (width, height) != tuple(size):
        sizes = f'{width} x {height}, image {size[0]} x {size[1]}'
        return [
            (
                f'{path}: masks whose size differs from their image',
                f'annotation {annotation["id"]} ({sizes})',
            )
        ]
    return []


def _check_image(
    annotations: str, folder: Path, name: str, size: tuple[int, int]
) -> list[BrokenRule]:
    """Check that an image can be read and has the (width, height) that its annotations refer to."""
    if broken := check_image(folder, folder / name):
        return broken
    loaded = size_as_loaded(folder / name)
    if loaded is not None and loaded != tuple(size):
        sizes = f'{loaded[0]} x {loaded[1]}, not {size[0]} x {size[1]}'
        return [
            (
                f'{folder}: images whose size as loaded differs from {annotations}',
                f'{name} ({sizes})',
            )
        ]
    return []
