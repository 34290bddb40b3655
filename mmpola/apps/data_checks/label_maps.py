"""Check data sets in ADE20K's layout: images, and label maps with the same names in a folder."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from mmpola.apps.data_checks.report import DatasetReport, add_line, check_files
from mmpola.messages import listed
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
        whole: read every image and label map; else only `SAMPLED_MAPS` of them.
    """
    report.classes = dataset.metainfo.get('classes') or ()
    folder = Path(dataset.data_prefix['img_path'])
    pairs = []
    unpaired = []
    for item in dataset.load_data_list():
        image = Path(item['img_path'])
        label_map = Path(item['seg_map_path'])
        if label_map.exists():
            pairs.append((image, label_map))
        else:
            unpaired.append(label_map)
    report.images = len(pairs) + len(unpaired)
    report.annotations = len(pairs)
    if not report.images:
        others = sorted(path.name for path in folder.rglob('*') if path.is_file())
        report.problems.append(
            f'{folder}: expected images with the suffix {dataset.img_suffix}, '
            f'got {listed(others) or "no files"}'
        )
    add_line(report.problems, f'{folder}: images whose label map does not exist', unpaired)
    if not whole:
        step = max(1, math.ceil(len(pairs) / SAMPLED_MAPS))
        pairs = pairs[::step]
    check_pairs(dataset, pairs, report)


def check_pairs(dataset: Any, pairs: list[tuple[Path, Path]], report: DatasetReport) -> None:
    """Images can be read; label maps too, and have one channel, labels in range, and their size."""
    classes = len(report.classes)
    if dataset.label_map is not None:  # a subset of the classes: the files still hold all labels
        classes = len(dataset.METAINFO['classes'])
    reduce_zero_label = bool(dataset.reduce_zero_label)
    highest = classes - 1
    if reduce_zero_label:  # the files number the classes from 1
        highest = classes
    allowed = {*range(highest + 1), dataset.ignore_index}

    def broken(pair: tuple[Path, Path]) -> str | None:
        image, label_map = pair
        for path in pair:
            reason = unreadable(path)
            if reason is not None:
                return f'{path} ({reason})'
        with Image.open(label_map) as file:
            if file.mode not in EIGHT_BIT_MODES:
                return f'{label_map} ({file.mode}, not one channel of 8 bits)'
            labels = np.asarray(file).astype(np.uint8)
        wrong = sorted(set(np.unique(labels).tolist()) - allowed)
        if wrong:
            return f'{label_map} (label {listed(wrong)})'
        height, width = labels.shape
        if size_as_loaded(image) != (width, height):
            return f'{label_map} (another size than its image)'
        return None

    rule = (
        f'images or label maps that training cannot use, with labels 0 … {highest} and '
        f'{dataset.ignore_index} ({classes} classes, reduce_zero_label={reduce_zero_label})'
    )
    check_files(report, 'label maps', rule, pairs, broken)
