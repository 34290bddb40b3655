"""Inspect data sets in ImageNet's layout: a folder per class."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from mmpola.data.checks.contents import Contents
from mmpola.data.class_folders import IMAGENET
from mmpola.data.read_image import rgb_image
from mmpola.messages import BrokenRule


def matches(dataset: dict[str, Any]) -> bool:
    """Whether a data set's config is of this kind: it is a `ClassFolders`."""
    return dataset.get('type') in ('mmpola.ClassFolders', 'ClassFolders')


def paths(dataset: dict[str, Any]) -> list[Path]:
    """Return the folder, and the folder or file that names the classes."""
    return [Path(dataset[key]) for key in ('root', 'classes') if dataset.get(key) not in (None, '', IMAGENET)]


def inspect(dataset: Any) -> Contents:
    """Count the images of a `ClassFolders`, whose constructor has checked the classes. Opens no image."""
    classes = dataset.metainfo['classes']
    contents = Contents(images=len(dataset), annotations=len(dataset), classes=classes)
    counts = np.bincount(dataset.labels, minlength=len(classes))
    if counts.max() > 10 * counts.min():
        few, many = (f'{classes[i]} has {counts[i]:,}' for i in (counts.argmin(), counts.argmax()))
        contents.notes.append(f'{dataset.root}: the sizes of the classes differ widely: {few} images, {many}')
    contents.image_files = [partial(_check_image, dataset, index) for index in range(len(dataset))]
    return contents


def _check_image(dataset: Any, index: int) -> list[BrokenRule]:
    path = dataset.get_data_info(index)['img_path']
    try:
        rgb_image(Path(path).read_bytes())
    except Exception as error:  # decoders raise OSError, SyntaxError, ValueError and more for a broken file
        return [(f'{dataset.root}: images that cannot be read', f'{path} ({error})')]
    return []
