"""Inspect data sets in ADE20K's layout: a folder of images and a folder of label maps with the same names."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from mmpola.apps.data_checks.kinds import Contents, apply, check_image
from mmpola.messages import BrokenRule, listed
from mmpola.read_image import size_as_loaded, unreadable

ONE_CHANNEL = ('1', 'L', 'P')
"""Pillow's modes of images with one value from 0 to 255 per pixel."""


def inspect(dataset: Any) -> Contents:
    """Inspect mmseg's BaseSegDataset, or one like it, built with `lazy_init`. Opens no file."""
    images, maps = (Path(dataset.data_prefix[key]) for key in ('img_path', 'seg_map_path'))
    pairs = [
        (Path(item['img_path']), Path(item['seg_map_path'])) for item in dataset.load_data_list()
    ]
    present = set(maps.rglob(f'*{dataset.seg_map_suffix}'))
    unpaired = [image.relative_to(images) for image, label_map in pairs if label_map not in present]
    orphans = [] if dataset.ann_file else sorted(present - {label_map for _, label_map in pairs})
    contents = Contents(
        len(pairs), len(pairs) - len(unpaired), len(unpaired), dataset.metainfo.get('classes') or ()
    )
    if not pairs:
        others = (
            listed(sorted(path.name for path in images.rglob('*') if path.is_file())) or 'no files'
        )
        contents.problems.append(
            f'{images}: expected images with the suffix {dataset.img_suffix}, got {others}'
        )
    apply(
        (
            (contents.problems, f'{images}: images without a label map in {maps}', unpaired),
            (
                contents.problems,
                f'{maps}: label maps without an image in {images}',
                (path.relative_to(maps) for path in orphans),
            ),
        )
    )
    allowed, rule = _labels(dataset, len(contents.classes))
    contents.image_files = [partial(check_image, images, image) for image, _ in pairs]
    contents.label_files = [
        partial(_check_map, allowed, f'{maps}: {rule}', maps, label_map, image)
        for image, label_map in pairs
        if label_map in present
    ]
    return contents


def _labels(dataset: Any, classes: int) -> tuple[Any, str]:
    """Return which labels a file's pixels may have, bool [256], and the rule that others break."""
    if dataset.label_map is not None:  # a subset of the classes: the files still hold all labels
        classes = len(dataset.METAINFO['classes'])
    reduced = bool(dataset.reduce_zero_label)
    allowed = np.arange(256) < classes + reduced
    allowed[dataset.ignore_index if 0 <= dataset.ignore_index < 256 else 255] = True
    return allowed, (
        f'label maps with labels other than 0 … {classes - 1 + reduced} and {dataset.ignore_index} '
        f'({classes} classes, reduce_zero_label={reduced})'
    )


def _check_map(allowed: Any, rule: str, folder: Path, path: Path, image: Path) -> list[BrokenRule]:
    """Check that a label map can be read and has one channel, the size of its image, and only allowed labels."""
    name = path.relative_to(folder)
    if reason := unreadable(path):
        return [(f'{folder}: label maps that cannot be read', f'{name} ({reason})')]
    with Image.open(path) as label_map:
        if label_map.mode not in ONE_CHANNEL:
            return [
                (
                    f'{folder}: label maps that do not have one channel of 8 bits',
                    f'{name} ({label_map.mode})',
                )
            ]
        labels = np.asarray(label_map).astype(np.uint8)
    broken = []
    if (wrong := np.setdiff1d(labels, np.flatnonzero(allowed))).size:
        broken.append((rule, f'{name} (label {listed(wrong)})'))
    height, width = labels.shape
    loaded = size_as_loaded(image)
    if loaded not in (None, (width, height)):
        sizes = f'{width} x {height}, image {loaded[0]} x {loaded[1]}'
        broken.append(
            (
                f'{folder}: label maps whose size differs from their image as loaded',
                f'{name} ({sizes})',
            )
        )
    return broken
