"""Check data sets in COCO layout: an annotation file, and its images."""

from __future__ import annotations

import contextlib
import io
import math
import os
from pathlib import Path
from typing import Any

from pycocotools.coco import COCO

from mmpola.apps.data_checks.report import DatasetReport, add_line, check_files
from mmpola.messages import first_line, listed
from mmpola.read_image import size_as_loaded, unreadable

ROUNDING = 1
"""Pixels by which a box may leave its image."""

MANY = 0.1
"""Something is wrong with all boxes if more than this share of them leaves its image."""

FARTHEST = 10
"""Coordinates of polygons may be this many times the longer side of their image.

pycocotools stores an outline in steps of a fifth of a pixel: 1e9 would take all memory.
"""

INVALID = (ArithmeticError, AssertionError, AttributeError, KeyError, TypeError, ValueError)
"""What is raised where the fields of an annotation file, or their types, are not COCO's."""

Entry = dict[str, Any]
"""An image or an annotation of the file."""


def check_coco(dataset: Any, report: DatasetReport, with_mask: bool, whole: bool) -> None:
    """Fill in the report of mmdet's CocoDataset, or one like it, built with `lazy_init`.

    Args:
        dataset: the data set.
        report: filled in.
        with_mask: whether the loader reads masks.
        whole: read every image and decode masks in run lengths; else open no image.
    """
    path = Path(dataset.ann_file)
    folder = Path(dataset.data_prefix['img'])
    report.classes = dataset.metainfo.get('classes') or ()
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # pycocotools prints that it reads
            coco = COCO(path)
        check_images_exist(coco, path, folder, report)
        check_classes(coco, path, report)
        check_annotations(coco, path, with_mask, whole, report)
        report.images = len(coco.imgs)
    except INVALID as error:
        problem = f'not an annotation file in COCO layout ({first_line(error)})'
        report.problems.append(f'{path}: {problem}')
        return
    if not report.annotations and not report.problems and not dataset.test_mode:
        report.problems.append(f'{path}: has no annotations to train on')
    if whole:
        check_images(coco, path, folder, report)


def check_images_exist(coco: COCO, path: Path, folder: Path, report: DatasetReport) -> None:
    """The file lists images, each with an id of its own, and all of them are in the folder."""
    images = coco.dataset['images']
    if not images:
        report.problems.append(f'{path}: lists no images')
    if len(coco.imgs) < len(images):
        report.problems.append(f'{path}: {len(images)} images have {len(coco.imgs)} different ids')
    in_folder = set(os.listdir(folder))  # only names in subfolders need a look-up each
    absent = []
    for image in images:
        name = image['file_name']
        if name not in in_folder and not os.path.isfile(folder / name):
            absent.append(name)
    add_line(report.problems, f'{path}: lists images that are not in {folder}', absent)


def check_classes(coco: COCO, path: Path, report: DatasetReport) -> None:
    """Every class of the config is a category; the classes have the order of the file."""
    names = [category['name'] for category in coco.dataset['categories']]
    lacking = [name for name in report.classes if name not in names]
    rule = (
        f'{path}: classes of the config without a category; set metainfo.classes, '
        f'the file has {listed(names)}'
    )
    add_line(report.problems, rule, lacking)
    order = [name for name in names if name in report.classes]
    if not lacking and order != list(report.classes):
        report.problems.append(
            f'{path}: metainfo.classes: expected the order of the file, by which mmdet '
            f'numbers them ({listed(order)}), got {listed(report.classes)}'
        )


def check_annotations(
    coco: COCO, path: Path, with_mask: bool, whole: bool, report: DatasetReport
) -> None:
    """Training can read the annotations of the classes, and most boxes are in their image."""
    leaving = 0
    wrong = []
    for annotation in coco.dataset.get('annotations', []):
        if annotation.get('ignore'):
            continue
        try:
            image = coco.imgs[annotation['image_id']]
            category = coco.cats[annotation['category_id']]
            left, top, width, height = annotation['bbox']
            area = annotation['area']
            if not math.isfinite(left + top + width + height + area):
                raise ValueError('bbox and area: expected finite numbers')
            is_flat = width < 1 or height < 1 or area <= 0
            if is_flat or category['name'] not in report.classes:  # mmdet drops it
                continue
            beyond_right = left + width - image['width']
            beyond_bottom = top + height - image['height']
            if max(-left, -top, beyond_right, beyond_bottom) > ROUNDING:
                leaving += 1
            if with_mask:
                check_mask(coco, annotation, image, whole)
            report.annotations += 1
        except INVALID as error:
            wrong.append(f'id {annotation["id"]} ({first_line(error)})')
    add_line(report.problems, f'{path}: annotations that training cannot read', wrong)
    if leaving > MANY * report.annotations:
        report.warnings.append(
            f'{path}: {leaving} of {report.annotations} boxes leave their image: are they '
            "x1, y1, x2, y2? COCO's are x, y, width, height"
        )


def check_mask(coco: COCO, annotation: Entry, image: Entry, decode: bool) -> None:
    """Raise one of `INVALID` if training cannot read a mask, which is polygons or run lengths."""
    mask = annotation.get('segmentation')
    if not mask:
        raise ValueError('no segmentation, but masks are loaded (with_mask=True)')
    if isinstance(mask, list):
        limit = FARTHEST * max(image['width'], image['height'])
        for polygon in mask:
            if len(polygon) < 6:  # mmdet drops it
                continue
            is_finite = math.isfinite(sum(polygon))
            if not is_finite or max(polygon) > limit or min(polygon) < -limit:
                raise ValueError(f'segmentation: expected coordinates up to {limit}')
        return
    size = tuple(mask['size'])
    if decode:
        size = coco.annToMask(annotation).shape
    if size != (image['height'], image['width']):
        raise ValueError('segmentation: expected the height and width of the image as size')


def check_images(coco: COCO, path: Path, folder: Path, report: DatasetReport) -> None:
    """Images can be read and have the size that the file says."""

    def broken(image: Entry) -> str | None:
        name = image['file_name']
        reason = unreadable(folder / name)
        if reason is not None:
            return f'{name} ({reason})'
        size = size_as_loaded(folder / name)
        if size != (image['width'], image['height']):
            return f'{name} ({size}, not {image["width"]} x {image["height"]})'
        return None

    rule = f'{folder}: images that cannot be read or differ in size from {path.name}'
    check_files(report, 'images', rule, coco.dataset['images'], broken)
