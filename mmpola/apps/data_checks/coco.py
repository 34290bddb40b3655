"""Check data sets in COCO layout: an annotation file in JSON and the images that it lists."""

from __future__ import annotations

import json
import math
import os
import re
import reprlib
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pycocotools import mask as run_lengths

from mmpola.apps.data_checks.report import DatasetReport, add_line, check_files
from mmpola.messages import BrokenRule, grouped, listed
from mmpola.read_image import size_as_loaded, unreadable

POLYGONS = re.compile(rb'"segmentation"\s*:\s*\[\s*(?:\[\s*[\d.+-][\d\s.,eE+-]*\][\s,]*)+\]')
"""Lists of lists of numbers. The numbers are not checked, but are most of a file: without them
COCO's file parses in a quarter of the time and memory. An empty list of polygons does not match;
nor does a flat one, or one with NaN."""

SOME_POLYGON = b'"segmentation":[[]]'
"""Replaces polygons."""

SAMPLED_MASKS = 32
"""Masks in run lengths that the fast check decodes."""

ROUNDING = 1
"""Pixels by which a box may extend beyond its image without a note."""

NO_VALUE = object()
"""Stands for the value of a field that an entry does not have."""

LARGEST_EXACT_INTEGER = 2**53
"""Integers up to this are exact as floating-point numbers, which is what boxes and sizes become."""


def check_coco(dataset: Any, report: DatasetReport, whole: bool) -> None:
    """Fill in the report of mmdet's CocoDataset, or one like it, built with `lazy_init`.

    Args:
        dataset: the data set.
        report: filled in.
        whole: read every image and every mask in run lengths; else no image and `SAMPLED_MASKS`
            masks.
    """
    path = Path(dataset.ann_file)
    folder = Path(dataset.data_prefix['img'])
    report.classes = dataset.metainfo.get('classes') or ()
    try:
        content = json.loads(POLYGONS.sub(SOME_POLYGON, path.read_bytes()))
    except (ValueError, RecursionError) as error:
        report.problems.append(f'{path}: not a COCO annotation file ({error!r})')
        return
    check_structure(path, content, dataset.test_mode, report)
    if report.problems:
        return
    content.setdefault('annotations', [])
    present = check_image_names(path, folder, content, report)
    check_ids_and_names(path, content, dataset.test_mode, report)
    count_what_is_loaded(path, content, dataset, report)
    check_masks(path, content, report, whole)
    if whole:
        images = [image for image in content['images'] if image['file_name'] in present]
        check_images(path, folder, images, report)


# The structure of the file: lists, fields and types of values.


def check_structure(path: Path, content: Any, test_mode: bool, report: DatasetReport) -> None:
    """Add a line for every rule of COCO's structure that an annotation file breaks.

    Args:
        path: path of the file.
        content: its decoded content.
        test_mode: whether the file may lack annotations.
        report: its `problems` are filled in.
    """
    if not isinstance(content, dict):
        report.problems.append(
            f'{path}: expected an object with {", ".join(COCO_FIELDS)}, got {shortened(content)}'
        )
        return
    for section, fields in COCO_FIELDS.items():
        entries = content.get(section, NO_VALUE)
        if entries is NO_VALUE and section == 'annotations' and test_mode:
            continue
        if not isinstance(entries, list):
            report.problems.append(f'{path}: {section}: expected a list, got {shortened(entries)}')
            continue
        others = [shortened(entry) for entry in entries if not isinstance(entry, dict)]
        if others:
            add_line(report.problems, f'{path}: {section}: expected objects, got others', others)
            continue
        for name, rule, is_valid in fields:
            wrong = []
            for number, entry in enumerate(entries):
                value = entry.get(name, NO_VALUE)
                if not is_valid(value):
                    key = entry.get('id')
                    place = f'id {key}' if is_id(key) else f'entry {number}'
                    wrong.append(f'{shortened(value)} ({place})')
            add_line(
                report.problems,
                f'{path}: {section}: expected {rule} as {name}, got others',
                wrong,
            )


def shortened(value: Any) -> str:
    """Return a value as Python writes it, shortened."""
    return 'none' if value is NO_VALUE else reprlib.repr(value)


def is_id(value: Any) -> bool:
    return isinstance(value, int | float | str)


def is_text(value: Any) -> bool:
    return isinstance(value, str)


def is_number(value: Any) -> bool:
    return isinstance(value, float) or (
        isinstance(value, int) and abs(value) <= LARGEST_EXACT_INTEGER
    )


def is_box(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 4 and all(map(is_number, value))


def is_segmentation(value: Any) -> bool:
    """Whether mmdet takes a value for polygons, run lengths or none, whatever its numbers are."""
    if isinstance(value, list):
        return all(is_polygon(polygon) for polygon in value)
    return not value or value is NO_VALUE or isinstance(value, dict)


def is_polygon(value: Any) -> bool:
    if not isinstance(value, list):
        return False
    return not any(isinstance(number, list | dict) for number in value)


COCO_FIELDS = {
    'images': (
        ('id', 'a number or a text', is_id),
        ('file_name', 'a text', is_text),
        ('width', 'a number', is_number),
        ('height', 'a number', is_number),
    ),
    'annotations': (
        ('id', 'a number or a text', is_id),
        ('image_id', 'a number or a text', is_id),
        ('category_id', 'a number or a text', is_id),
        ('bbox', '4 numbers', is_box),
        ('area', 'a number', is_number),
        ('segmentation', 'polygons [[x, y, …], …] or run lengths', is_segmentation),
    ),
    'categories': (
        ('id', 'a number or a text', is_id),
        ('name', 'a text', is_text),
    ),
}
"""The lists of an annotation file; the name, rule and test of each field of their entries."""


# What the file says: image files, ids, names and classes.


def check_image_names(
    path: Path, folder: Path, content: dict[str, Any], report: DatasetReport
) -> set[str]:
    """Check that the listed images exist, and return the names of those that do."""
    in_folder = set(os.listdir(folder))  # only names in subfolders need a look-up each
    present = set()
    absent = []
    for name in dict.fromkeys(image['file_name'] for image in content['images']):
        if name in in_folder or os.path.isfile(folder / name):
            present.add(name)
        else:
            absent.append(name)
    add_line(report.problems, f'{path} lists images that are not in {folder}', absent)
    return present


def check_ids_and_names(
    path: Path, content: dict[str, Any], test_mode: bool, report: DatasetReport
) -> None:
    """Check ids, names, the order of the classes, and the numbers of polygons."""
    problems = report.problems
    classes = report.classes
    images = content['images']
    annotations = content['annotations']
    categories = content['categories']

    if not images:
        problems.append(f'{path}: lists no images')
    elif not test_mode and not annotations:
        problems.append(f'{path}: has no annotations to train on')

    names = [category['name'] for category in categories]
    order = [name for name in names if name in classes]
    lacking = [name for name in classes if name not in names]
    if not lacking and order != list(classes):
        problems.append(
            f'{path}: metainfo.classes: expected the order of the file, by which mmdet numbers '
            f'them ({listed(order)}), got {listed(classes)}'
        )
    add_line(problems, f'{path}: ids of several images', repeated(image['id'] for image in images))
    add_line(
        problems,
        f'{path}: ids of several annotations',
        repeated(annotation['id'] for annotation in annotations),
    )
    add_line(problems, f'{path}: names of several categories', repeated(names))
    add_line(
        problems,
        f'{path}: classes of the config without a category; set metainfo.classes, '
        f'the file has {listed(names)}',
        lacking,
    )
    category_ids = {category['id'] for category in categories}
    used_category_ids = {annotation['category_id'] for annotation in annotations}
    add_line(
        problems,
        f'{path}: category ids of annotations that no category has',
        sorted(used_category_ids - category_ids, key=str),
    )
    image_ids = {image['id'] for image in images}
    used_image_ids = {annotation['image_id'] for annotation in annotations}
    add_line(
        problems,
        f'{path}: image ids of annotations that no image has',
        sorted(used_image_ids - image_ids, key=str),
    )
    not_finite = []
    for annotation in annotations:
        segmentation = annotation.get('segmentation')
        if isinstance(segmentation, list):
            numbers = [number for polygon in segmentation for number in polygon]
            if not all(is_number(number) and math.isfinite(number) for number in numbers):
                not_finite.append(annotation['id'])
    add_line(
        problems, f'{path}: polygons with NaN, infinite or no numbers, annotations', not_finite
    )


def repeated(values: Iterable[Any]) -> list[Any]:
    return [value for value, count in Counter(values).items() if count > 1]


# What mmdet's loader returns and drops.


def count_what_is_loaded(
    path: Path, content: dict[str, Any], dataset: Any, report: DatasetReport
) -> None:
    """Count images and annotations by the rules of mmdet's loader, and warn of what it drops."""
    images = content['images']
    annotations = content['annotations']
    classes = set(report.classes)
    category_names = {category['id']: category['name'] for category in content['categories']}
    sizes = {image['id']: (image['width'], image['height']) for image in images}

    infinite = []
    without_area = []
    outside = []
    beyond = []
    ignored = []
    other_categories: Counter[str] = Counter()
    annotated = set()  # ids of images with an annotation of any class of the config
    loadable = []
    for annotation in annotations:
        key = annotation['id']
        category = category_names.get(annotation['category_id'])
        if category in classes:
            annotated.add(annotation['image_id'])
        elif category is not None:
            other_categories[category] += 1
        if annotation.get('ignore'):
            ignored.append(key)

        area = annotation['area']
        left, top, width, height = annotation['bbox']
        right = left + width
        bottom = top + height
        image_width, image_height = sizes.get(annotation['image_id'], (math.inf, math.inf))
        if not all(math.isfinite(value) for value in (left, top, width, height, area)):
            infinite.append(key)
            continue
        if width < 1 or height < 1 or area <= 0:
            without_area.append(key)
            continue
        if right <= 0 or bottom <= 0 or left >= image_width or top >= image_height:
            outside.append(key)
            continue
        if (
            min(left, top) < -ROUNDING
            or right > image_width + ROUNDING
            or bottom > image_height + ROUNDING
        ):
            beyond.append(key)
        if category in classes and not annotation.get('ignore'):
            loadable.append(annotation)

    # In training, the loader also drops images.
    filters = {}
    if dataset.filter_cfg and not dataset.test_mode:
        filters = dataset.filter_cfg
    min_size = filters.get('min_size', 0)
    small = []
    empty = []
    image_ids = set()
    for image in images:
        is_small = min(image['width'], image['height']) < min_size
        is_empty = filters.get('filter_empty_gt', False) and image['id'] not in annotated
        if is_small:
            small.append(image['file_name'])
        if is_empty:
            empty.append(image['file_name'])
        if not is_small and not is_empty:
            image_ids.add(image['id'])

    kept = [annotation for annotation in loadable if annotation['image_id'] in image_ids]
    crowds = [annotation['id'] for annotation in kept if annotation.get('iscrowd')]
    trained = [annotation for annotation in kept if not annotation.get('iscrowd')]
    report.images = len(image_ids)
    report.annotations = len(trained)
    report.unannotated = len(image_ids - {annotation['image_id'] for annotation in trained})
    report.without_mask = [str(a['id']) for a in kept if not a.get('segmentation')]

    add_line(report.problems, f'{path}: boxes with NaN or infinite values, annotations', infinite)
    add_line(
        report.warnings,
        f'{path}: dropped boxes narrower than a pixel or without area, annotations',
        without_area,
    )
    add_line(report.warnings, f'{path}: dropped boxes outside their image, annotations', outside)
    add_line(
        report.warnings,
        f'{path}: dropped categories that are not classes of the config',
        [f'{name} ({count})' for name, count in other_categories.items()],
    )
    add_line(report.warnings, f"{path}: dropped annotations with 'ignore'", ignored)
    add_line(
        report.warnings,
        f'{path}: dropped images with a side of less than {min_size} pixels (filter_cfg.min_size)',
        small,
    )
    add_line(
        report.warnings,
        f'{path}: dropped images without annotations (filter_cfg.filter_empty_gt)',
        empty,
    )
    add_line(report.notes, f'{path}: boxes that extend beyond their image, annotations', beyond)
    add_line(report.notes, f'{path}: annotations of crowds, which are ignored', crowds)
    if not trained and not report.problems and not dataset.test_mode:
        report.problems.append(
            f'{path}: has no annotations to train on: none of {len(annotations)} is left by what '
            'the loader drops'
        )


# Masks in run lengths, and images.


def check_masks(path: Path, content: dict[str, Any], report: DatasetReport, whole: bool) -> None:
    """Check that masks in run lengths can be decoded, as mmdet does, and fit their images."""
    sizes = {image['id']: (image['width'], image['height']) for image in content['images']}

    def check_mask(annotation: dict[str, Any]) -> list[BrokenRule]:
        name = f'annotation {annotation["id"]}'
        mask = annotation['segmentation']
        image_width, image_height = sizes[annotation['image_id']]
        try:
            if isinstance(mask['counts'], list):
                mask = run_lengths.frPyObjects(mask, image_height, image_width)
            height, width = run_lengths.decode(mask).shape
        except Exception as error:  # ValueError, KeyError, TypeError, OverflowError …
            return [(f'{path}: masks that cannot be decoded', f'{name} ({error!r})')]
        if (width, height) != (image_width, image_height):
            rule = f'{path}: masks whose size differs from their image'
            return [(rule, f'{name} ({width} x {height}, image {image_width} x {image_height})')]
        return []

    annotations = []
    for annotation in content['annotations']:
        segmentation = annotation.get('segmentation')
        is_polygons = isinstance(segmentation, list)
        if segmentation and not is_polygons and annotation['image_id'] in sizes:
            annotations.append(annotation)
    if whole:
        check_files(report, 'masks in run lengths', annotations, check_mask)
        return
    step = max(1, math.ceil(len(annotations) / SAMPLED_MASKS))
    broken = []
    for annotation in annotations[::step]:
        broken += check_mask(annotation)
    report.problems += grouped(broken)


def check_images(
    path: Path, folder: Path, images: list[dict[str, Any]], report: DatasetReport
) -> None:
    """Check that images can be read and have the sizes that their annotations refer to."""

    def check_image(image: dict[str, Any]) -> list[BrokenRule]:
        name = image['file_name']
        reason = unreadable(folder / name)
        if reason is not None:
            return [(f'{folder}: images that cannot be read', f'{name} ({reason})')]
        loaded = size_as_loaded(folder / name)
        if loaded is not None and loaded != (image['width'], image['height']):
            rule = f'{folder}: images whose size as loaded differs from {path.name}'
            sizes = f'{loaded[0]} x {loaded[1]}, not {image["width"]} x {image["height"]}'
            return [(rule, f'{name} ({sizes})')]
        return []

    check_files(report, 'images', images, check_image)
