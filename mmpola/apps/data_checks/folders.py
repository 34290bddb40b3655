"""Inspect class folders and the Long Range Arena's sequences, whose constructors check their files."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from mmpola.apps.data_checks.kinds import Contents, apply
from mmpola.messages import BrokenRule
from mmpola.read_image import rgb_image


def inspect_class_folders(dataset: Any) -> Contents:
    """Count the images of a `ClassFolders`, whose constructor has checked the classes. Opens no image."""
    classes = dataset.metainfo['classes']
    contents = Contents(len(dataset), len(dataset), classes=classes)
    counts = np.bincount(dataset.labels, minlength=len(classes))
    if counts.max() > 10 * counts.min():
        few, many = (f'{classes[i]} has {counts[i]:,}' for i in (counts.argmin(), counts.argmax()))
        contents.notes.append(
            f'{dataset.root}: the sizes of the classes differ widely: {few} images, {many}'
        )
    contents.image_files = [partial(_check_image, dataset, index) for index in range(len(dataset))]
    return contents


def _check_image(dataset: Any, index: int) -> list[BrokenRule]:
    path = dataset.get_data_info(index)['img_path']
    try:
        rgb_image(Path(path).read_bytes())
    except (
        Exception
    ) as error:  # decoders raise OSError, SyntaxError, ValueError and more for a broken file
        return [(f'{dataset.root}: images that cannot be read', f'{path} ({error})')]
    return []


def inspect_sequences(dataset: Any) -> Contents:
    """Count the samples of a data set of sequences and the classes that occur in it."""
    classes, notes = dataset.metainfo['classes'], [*dataset.notes]
    absent = np.bincount(dataset.samples.arrays['labels'], minlength=len(classes)) == 0
    apply([(notes, f'{dataset.root}: classes without samples', np.array(classes)[absent])])
    return Contents(
        len(dataset), len(dataset), classes=classes, warnings=[*dataset.left_out], notes=notes
    )
