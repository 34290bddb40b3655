"""Check class folders: a folder of images per class, read by `mmpola.ClassFolders`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from mmpola.apps.data_checks.report import DatasetReport, check_files
from mmpola.messages import BrokenRule
from mmpola.read_image import rgb_image

UNEVEN_RATIO = 10
"""A class with this many times the images of another one is worth a note."""


def check_class_folders(dataset: Any, report: DatasetReport, whole: bool) -> None:
    """Fill in the report of a `ClassFolders`, whose constructor has checked folders and classes.

    Args:
        dataset: the data set.
        report: filled in.
        whole: decode every image; else none is opened.
    """
    classes = dataset.metainfo['classes']
    report.classes = classes
    report.images = len(dataset)
    report.annotations = len(dataset)
    counts = np.bincount(dataset.labels, minlength=len(classes))
    fewest = int(counts.argmin())
    most = int(counts.argmax())
    if counts[most] > UNEVEN_RATIO * counts[fewest]:
        report.notes.append(
            f'{dataset.root}: the sizes of the classes differ widely: '
            f'{classes[fewest]} has {counts[fewest]:,} images, {classes[most]} has {counts[most]:,}'
        )
    if not whole:
        return

    def check_image(index: int) -> list[BrokenRule]:
        path = dataset.get_data_info(index)['img_path']
        try:
            rgb_image(Path(path).read_bytes())
        except Exception as error:  # decoders raise OSError, SyntaxError, ValueError and more
            return [(f'{dataset.root}: images that cannot be read', f'{path} ({error})')]
        return []

    check_files(report, 'images', range(len(dataset)), check_image)
