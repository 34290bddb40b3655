"""Check data sets in ADE20K's layout: images, and label maps with the same names in a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from mmpola.apps.data_checks.report import DatasetReport, add_line, check_files, check_sample
from mmpola.messages import BrokenRule, listed
from mmpola.read_image import size_as_loaded, unreadable

SAMPLED_MAPS = 32
"""Label maps that the fast check reads. A label out of range crashes training on a GPU without
naming its file, whereas the data loader names an image that cannot be read."""

EIGHT_BIT_MODES = ('1', 'L', 'P')
"""Pillow's modes of images with one value from 0 to 255 per pixel."""


def check_label_maps(dataset: Any, report: DatasetReport, whole: bool) -> None:
    """Fill in the report of mmseg's BaseSegDataset, or one like it, built with `lazy_init`.

    Args:
        dataset: the data set.
        report: filled in.
        whole: read every image and label map; else only `SAMPLED_MAPS` label maps.
    """
    report.classes = dataset.metainfo.get('classes') or ()
    images, pairs = check_pairs(dataset, report)
    if whole:
        check_images(dataset, images, report)
    check_labels(dataset, pairs, report, whole)


def check_pairs(dataset: Any, report: DatasetReport) -> tuple[list[Path], list[tuple[Path, Path]]]:
    """There are images; each has a label map and, unless a file lists images, the other way round.

    Returns:
        All images, and the pairs of an image and its label map.
    """
    image_folder = Path(dataset.data_prefix['img_path'])
    map_folder = Path(dataset.data_prefix['seg_map_path'])
    present = set(map_folder.rglob(f'*{dataset.seg_map_suffix}'))
    images = []
    pairs = []
    unpaired = []
    for item in dataset.load_data_list():
        image = Path(item['img_path'])
        label_map = Path(item['seg_map_path'])
        images.append(image)
        if label_map in present:
            pairs.append((image, label_map))
        else:
            unpaired.append(image.relative_to(image_folder))
    orphans = []
    if not dataset.ann_file:  # it may list a part of the images in the folder
        paired = {label_map for _, label_map in pairs}
        orphans = [path.relative_to(map_folder) for path in sorted(present - paired)]

    if not images:
        others = sorted(path.name for path in image_folder.rglob('*') if path.is_file())
        report.problems.append(
            f'{image_folder}: expected images with the suffix {dataset.img_suffix}, '
            f'got {listed(others) or "no files"}'
        )
    rule = f'{image_folder}: images without a label map in {map_folder}'
    add_line(report.problems, rule, unpaired)
    rule = f'{map_folder}: label maps without an image in {image_folder}'
    add_line(report.problems, rule, orphans)
    report.images = len(images)
    report.annotations = len(pairs)
    report.unannotated = len(unpaired)
    return images, pairs


def check_images(dataset: Any, images: list[Path], report: DatasetReport) -> None:
    """Images can be read."""
    folder = Path(dataset.data_prefix['img_path'])

    def check_image(image: Path) -> list[BrokenRule]:
        reason = unreadable(image)
        if reason is None:
            return []
        name = image.relative_to(folder)
        return [(f'{folder}: images that cannot be read', f'{name} ({reason})')]

    check_files(report, 'images', images, check_image)


def check_labels(
    dataset: Any, pairs: list[tuple[Path, Path]], report: DatasetReport, whole: bool
) -> None:
    """Label maps can be read, have one channel, labels in range, and the size of their image."""
    folder = Path(dataset.data_prefix['seg_map_path'])
    classes = len(report.classes)
    if dataset.label_map is not None:  # a subset of the classes: the files still hold all labels
        classes = len(dataset.METAINFO['classes'])
    reduce_zero_label = bool(dataset.reduce_zero_label)
    highest = classes - 1
    if reduce_zero_label:  # the files number the classes from 1
        highest = classes
    ignored = dataset.ignore_index
    allowed = set(range(highest + 1))
    if 0 <= ignored <= 255:
        allowed.add(ignored)
    else:
        allowed.add(255)
    label_rule = (
        f'{folder}: label maps with labels other than 0 … {highest} and {ignored} '
        f'({classes} classes, reduce_zero_label={reduce_zero_label})'
    )

    def check_map(pair: tuple[Path, Path]) -> list[BrokenRule]:
        image, label_map = pair
        name = label_map.relative_to(folder)
        reason = unreadable(label_map)
        if reason is not None:
            return [(f'{folder}: label maps that cannot be read', f'{name} ({reason})')]
        with Image.open(label_map) as file:
            if file.mode not in EIGHT_BIT_MODES:
                rule = f'{folder}: label maps that do not have one channel of 8 bits'
                return [(rule, f'{name} ({file.mode})')]
            labels = np.asarray(file).astype(np.uint8)
        broken = []
        wrong = sorted(set(np.unique(labels).tolist()) - allowed)
        if wrong:
            broken.append((label_rule, f'{name} (label {listed(wrong)})'))
        height, width = labels.shape
        image_size = size_as_loaded(image)
        if image_size is not None and image_size != (width, height):
            rule = f'{folder}: label maps whose size differs from their image as loaded'
            sizes = f'{width} x {height}, image {image_size[0]} x {image_size[1]}'
            broken.append((rule, f'{name} ({sizes})'))
        return broken

    if whole:
        check_files(report, 'label maps', pairs, check_map)
    else:
        check_sample(report, pairs, SAMPLED_MAPS, check_map)
