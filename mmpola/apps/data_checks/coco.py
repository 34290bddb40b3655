"""The rules that a data set in COCO layout is checked by: an annotation file, and its images.

`coco_file.py` reads the annotation file and checks its structure first.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pycocotools import mask as run_lengths

from mmpola.apps.data_checks.coco_file import CocoFile, read_coco_file
from mmpola.apps.data_checks.report import DatasetReport, add_line, check_files, check_sample
from mmpola.messages import BrokenRule, listed
from mmpola.read_image import size_as_loaded, unreadable

SAMPLED_MASKS = 32
"""Masks in run lengths that the fast check decodes."""

ROUNDING = 1
"""Pixels by which a box may extend beyond its image without a note."""

Entry = dict[str, Any]
"""An image or an annotation of the file."""


def check_coco(dataset: Any, report: DatasetReport, whole: bool) -> None:
    """Fill in the report of mmdet's CocoDataset, or one like it, built with `lazy_init`.

    Args:
        dataset: the data set.
        report: filled in.
        whole: read every image and every mask in run lengths; else no image and `SAMPLED_MASKS`
            masks.
    """
    folder = Path(dataset.data_prefix['img'])
    report.classes = dataset.metainfo.get('classes') or ()
    file = read_coco_file(Path(dataset.ann_file), dataset.test_mode, report)
    if file is None:
        return

    # What prevents training.
    present = check_images_exist(file, folder, report)
    check_not_empty(file, dataset.test_mode, report)
    check_ids(file, report)
    check_classes(file, report)
    check_references(file, report)

    # What mmdet's loader drops, and how much it returns.
    usable = check_boxes(file, report)
    check_dropped_annotations(file, report)
    images = check_dropped_images(file, dataset, report)
    count_what_is_returned(file, images, usable, report)
    if not report.annotations and not report.problems and not dataset.test_mode:
        report.problems.append(
            f'{file.path}: has no annotations to train on: none of {len(file.annotations)} is left '
            'by what the loader drops'
        )

    # What can only be seen by decoding it.
    check_masks(file, report, whole)
    if whole:
        check_images(file, folder, present, report)


# What prevents training.


def check_images_exist(file: CocoFile, folder: Path, report: DatasetReport) -> set[str]:
    """Every image is in the folder. Returns the names of those that are."""
    in_folder = set(os.listdir(folder))  # only names in subfolders need a look-up each
    present = set()
    absent = []
    for name in dict.fromkeys(image['file_name'] for image in file.images):
        if name in in_folder or os.path.isfile(folder / name):
            present.add(name)
        else:
            absent.append(name)
    add_line(report.problems, f'{file.path} lists images that are not in {folder}', absent)
    return present


def check_not_empty(file: CocoFile, test_mode: bool, report: DatasetReport) -> None:
    """The file lists images and, for training, annotations."""
    if not file.images:
        report.problems.append(f'{file.path}: lists no images')
    elif not file.annotations and not test_mode:
        report.problems.append(f'{file.path}: has no annotations to train on')


def check_ids(file: CocoFile, report: DatasetReport) -> None:
    """No two images and no two annotations have one id; no two categories have one name."""
    images = repeated(image['id'] for image in file.images)
    add_line(report.problems, f'{file.path}: ids of several images', images)
    annotations = repeated(annotation['id'] for annotation in file.annotations)
    add_line(report.problems, f'{file.path}: ids of several annotations', annotations)
    names = repeated(category['name'] for category in file.categories)
    add_line(report.problems, f'{file.path}: names of several categories', names)


def repeated(values: Iterable[Any]) -> list[Any]:
    return [value for value, count in Counter(values).items() if count > 1]


def check_classes(file: CocoFile, report: DatasetReport) -> None:
    """Every class of the config is a category; the classes have the order of the file."""
    names = [category['name'] for category in file.categories]
    lacking = [name for name in report.classes if name not in names]
    add_line(
        report.problems,
        f'{file.path}: classes of the config without a category; set metainfo.classes, '
        f'the file has {listed(names)}',
        lacking,
    )
    order = [name for name in names if name in report.classes]
    if not lacking and order != list(report.classes):
        report.problems.append(
            f'{file.path}: metainfo.classes: expected the order of the file, by which mmdet '
            f'numbers them ({listed(order)}), got {listed(report.classes)}'
        )


def check_references(file: CocoFile, report: DatasetReport) -> None:
    """The category and the image of every annotation exist."""
    category_ids = {annotation['category_id'] for annotation in file.annotations}
    unknown = category_ids - file.name_of_category.keys()
    rule = f'{file.path}: category ids of annotations that no category has'
    add_line(report.problems, rule, sorted(unknown, key=str))

    image_ids = {annotation['image_id'] for annotation in file.annotations}
    unknown = image_ids - file.size_of_image.keys()
    rule = f'{file.path}: image ids of annotations that no image has'
    add_line(report.problems, rule, sorted(unknown, key=str))


# What mmdet's loader drops, and how much it returns: see `CocoDataset.parse_data_info` and
# `CocoDataset.filter_data`.


def check_boxes(file: CocoFile, report: DatasetReport) -> list[Entry]:
    """Boxes without area or outside of their image are dropped.

    Returns:
        The annotations whose boxes the loader takes.
    """
    without_area = []
    outside = []
    beyond = []
    usable = []
    for annotation in file.annotations:
        key = annotation['id']
        area = annotation['area']
        left, top, width, height = annotation['bbox']
        if width < 1 or height < 1 or area <= 0:
            without_area.append(key)
            continue
        right = left + width
        bottom = top + height
        unknown = (math.inf, math.inf)
        image_width, image_height = file.size_of_image.get(annotation['image_id'], unknown)
        if right <= 0 or bottom <= 0 or left >= image_width or top >= image_height:
            outside.append(key)
            continue
        begins_before = min(left, top) < -ROUNDING
        ends_after = right > image_width + ROUNDING or bottom > image_height + ROUNDING
        if begins_before or ends_after:
            beyond.append(key)
        usable.append(annotation)

    rule = f'{file.path}: dropped boxes narrower than a pixel or without area, annotations'
    add_line(report.warnings, rule, without_area)
    rule = f'{file.path}: dropped boxes outside their image, annotations'
    add_line(report.warnings, rule, outside)
    rule = f'{file.path}: boxes that extend beyond their image, annotations'
    add_line(report.notes, rule, beyond)
    return usable


def check_dropped_annotations(file: CocoFile, report: DatasetReport) -> None:
    """Annotations of categories that are not classes are dropped, and those with 'ignore'."""
    classes = set(report.classes)
    other_categories: Counter[str] = Counter()
    ignored = []
    for annotation in file.annotations:
        category = file.name_of_category.get(annotation['category_id'])
        if category is not None and category not in classes:
            other_categories[category] += 1
        if annotation.get('ignore'):
            ignored.append(annotation['id'])
    rule = f'{file.path}: dropped categories that are not classes of the config'
    counts = [f'{name} ({count})' for name, count in other_categories.items()]
    add_line(report.warnings, rule, counts)
    rule = f"{file.path}: dropped annotations with 'ignore'"
    add_line(report.warnings, rule, ignored)


def check_dropped_images(file: CocoFile, dataset: Any, report: DatasetReport) -> set[Any]:
    """In training, small images are dropped, and those without annotations if the config says so.

    Returns:
        The ids of the images that the loader returns.
    """
    filters = {}
    if dataset.filter_cfg and not dataset.test_mode:
        filters = dataset.filter_cfg
    min_size = filters.get('min_size', 0)
    drops_empty = filters.get('filter_empty_gt', False)
    classes = set(report.classes)
    annotated = set()  # ids of images with an annotation of a class, even if that is dropped
    for annotation in file.annotations:
        if file.name_of_category.get(annotation['category_id']) in classes:
            annotated.add(annotation['image_id'])

    small = []
    empty = []
    returned = set()
    for image in file.images:
        is_small = min(image['width'], image['height']) < min_size
        is_empty = drops_empty and image['id'] not in annotated
        if is_small:
            small.append(image['file_name'])
        if is_empty:
            empty.append(image['file_name'])
        if not is_small and not is_empty:
            returned.add(image['id'])
    rule = f'{file.path}: dropped images with a side of less than {min_size} pixels'
    add_line(report.warnings, f'{rule} (filter_cfg.min_size)', small)
    rule = f'{file.path}: dropped images without annotations (filter_cfg.filter_empty_gt)'
    add_line(report.warnings, rule, empty)
    return returned


def count_what_is_returned(
    file: CocoFile, images: set[Any], usable: list[Entry], report: DatasetReport
) -> None:
    """Fill in the counts of a report. Annotations of crowds do not count, but need masks.

    Args:
        file: the annotation file.
        images: ids of the images that the loader returns.
        usable: annotations whose boxes the loader takes.
        report: filled in.
    """
    classes = set(report.classes)
    crowds = []
    annotated = set()
    for annotation in usable:
        category = file.name_of_category.get(annotation['category_id'])
        if category not in classes or annotation.get('ignore'):
            continue
        if annotation['image_id'] not in images:
            continue
        if not annotation.get('segmentation'):
            report.without_mask.append(str(annotation['id']))
        if annotation.get('iscrowd'):
            crowds.append(annotation['id'])
        else:
            report.annotations += 1
            annotated.add(annotation['image_id'])
    report.images = len(images)
    report.unannotated = len(images - annotated)
    rule = f'{file.path}: annotations of crowds, which are ignored'
    add_line(report.notes, rule, crowds)


# What can only be seen by decoding it.


def check_masks(file: CocoFile, report: DatasetReport, whole: bool) -> None:
    """Masks in run lengths can be decoded, as mmdet does, and have the size of their image."""

    def check_mask(annotation: Entry) -> list[BrokenRule]:
        name = f'annotation {annotation["id"]}'
        mask = annotation['segmentation']
        image_width, image_height = file.size_of_image[annotation['image_id']]
        try:
            if isinstance(mask['counts'], list):
                mask = run_lengths.frPyObjects(mask, image_height, image_width)
            height, width = run_lengths.decode(mask).shape
        except Exception as error:  # ValueError, KeyError, TypeError, OverflowError …
            return [(f'{file.path}: masks that cannot be decoded', f'{name} ({error!r})')]
        if (width, height) != (image_width, image_height):
            rule = f'{file.path}: masks whose size differs from their image'
            return [(rule, f'{name} ({width} x {height}, image {image_width} x {image_height})')]
        return []

    annotations = []
    for annotation in file.annotations:
        segmentation = annotation.get('segmentation')
        is_run_lengths = bool(segmentation) and not isinstance(segmentation, list)
        if is_run_lengths and annotation['image_id'] in file.size_of_image:
            annotations.append(annotation)
    if whole:
        check_files(report, 'masks in run lengths', annotations, check_mask)
    else:
        check_sample(report, annotations, SAMPLED_MASKS, check_mask)


def check_images(file: CocoFile, folder: Path, present: set[str], report: DatasetReport) -> None:
    """Images can be read and have the size that the file says. Absent ones are left out."""

    def check_image(image: Entry) -> list[BrokenRule]:
        name = image['file_name']
        reason = unreadable(folder / name)
        if reason is not None:
            return [(f'{folder}: images that cannot be read', f'{name} ({reason})')]
        loaded = size_as_loaded(folder / name)
        if loaded is not None and loaded != (image['width'], image['height']):
            rule = f'{folder}: images whose size as loaded differs from {file.path.name}'
            sizes = f'{loaded[0]} x {loaded[1]}, not {image["width"]} x {image["height"]}'
            return [(rule, f'{name} ({sizes})')]
        return []

    images = [image for image in file.images if image['file_name'] in present]
    check_files(report, 'images', images, check_image)
