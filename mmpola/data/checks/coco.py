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

from mmpola.data.checks.contents import BrokenRule, Contents
from mmpola.data.checks.images import size_as_loaded, unreadable
from mmpola.messages import listed

TOLERATED = 1e-3
"""Share of boxes without area inside their image that is only noted: mmdet drops them, and COCO has a few."""

POLYGONS = re.compile(rb'"segmentation"\s*:\s*\[[\[\]\d\s.,eE+-]*\]')
"""Most of an annotation file, and not checked: without them COCO's parses in a quarter of the time and memory."""


def matches(dataset: dict[str, Any]) -> bool:
    """Whether a data set's config is of this kind: `ann_file` is a JSON file and `data_prefix` has the folder `img`."""
    prefix = dataset.get('data_prefix')
    return str(dataset.get('ann_file') or '').endswith('.json') and isinstance(prefix, dict) and 'img' in prefix


def inspect(dataset: Any) -> Contents:
    """Inspect mmdet's CocoDataset, or one like it, built with `lazy_init`. Opens no image."""
    path, folder = Path(dataset.ann_file), Path(dataset.data_prefix['img'])
    contents = Contents(classes=dataset.metainfo.get('classes') or ())
    try:
        content = json.loads(POLYGONS.sub(b'"segmentation":[]', path.read_bytes()))
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
    contents.images, contents.annotations = len(images), len(annotations)
    contents.unannotated = len(sizes.keys() - annotated)
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
    _check_categories(found, list(content['categories']), contents.classes, Counter(category_ids))
    if unknown := sorted(set(category_ids) - categories.keys(), key=str):
        found.problem(f'annotations have category ids that are not among its categories: {listed(unknown)}')
    if orphans := sorted(annotated - sizes.keys(), key=str):
        found.problem(f'annotations have image ids that are not among its images: {listed(orphans)}')
    _check_boxes(found, boxes, np.array([sizes.get(key, (np.inf, np.inf)) for key in image_ids], float), annotations)
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

    def note(self, text: str) -> None:
        self.contents.notes.append(f'{self.path}: {text}')


def _missing(folder: Path, names: list[str]) -> list[str]:
    """Return the names that are not files in the folder; only names in subfolders need a look-up each."""
    present = set(os.listdir(folder))
    return [name for name in names if name not in present and not (folder / name).is_file()]


def _check_categories(
    found: _Findings, categories: list[dict[str, Any]], classes: Any, annotations: Counter[Any]
) -> None:
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
    unused = {
        category['name']: annotations[category['id']] for category in categories if category['name'] not in classes
    }
    if not lacking and any(unused.values()):
        left_out = (f'{name} ({count})' for name, count in unused.items() if count)
        found.note(f'annotations of categories that are not classes of the config are ignored: {listed(left_out)}')


def _check_boxes(found: _Findings, boxes: Any, sizes: Any, annotations: list[dict[str, Any]]) -> None:
    """Check boxes [N, 5], as x, y, width, height and area in pixels, against their images' (width, height) [N, 2]."""
    if not len(boxes):
        return
    ids = np.array([annotation['id'] for annotation in annotations], object)
    low, high = boxes[:, :2], boxes[:, :2] + boxes[:, 2:4]
    finite = np.isfinite(boxes).all(1)
    degenerate = finite & ((boxes[:, 2:4] < 1).any(1) | (boxes[:, 4] <= 0))
    outside = finite & ~degenerate & ((high <= 0) | (low >= sizes)).any(1)
    inside = finite & ~degenerate & ~outside
    beyond = inside & ((low < -1) | (high > sizes + 1)).any(1)  # a pixel is tolerated for rounding
    if not finite.all():
        found.problem(f'boxes with NaN or infinite values ({(~finite).sum()}): annotations {listed(ids[~finite])}')
    report = found.problem if (degenerate | outside).mean() > TOLERATED else found.note
    if degenerate.any():
        report(
            f'boxes narrower than a pixel or without area, which mmdet drops ({degenerate.sum()}): '
            f'annotations {listed(ids[degenerate])}'
        )
    if outside.any():
        report(f'boxes outside their image ({outside.sum()}): annotations {listed(ids[outside])}')
    if beyond.any():
        found.note(f'boxes that extend beyond their image ({beyond.sum()}): annotations {listed(ids[beyond])}')


def _check_image(annotations: str, folder: Path, name: str, size: tuple[int, int]) -> list[BrokenRule]:
    """Check that an image can be read and has the (width, height) that its annotations refer to."""
    if reason := unreadable(folder / name):
        return [(f'{folder}: images that cannot be read', f'{name} ({reason})')]
    loaded = size_as_loaded(folder / name)
    if loaded is not None and loaded != tuple(size):
        sizes = f'{loaded[0]} x {loaded[1]}, not {size[0]} x {size[1]}'
        return [(f'{folder}: images whose size as loaded differs from {annotations}', f'{name} ({sizes})')]
    return []
