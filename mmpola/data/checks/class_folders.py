"""Inspect data sets in ImageNet's layout: a folder per class, or the same in tar files."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from mmpola.data.checks.contents import Contents
from mmpola.data.image_index import IMAGENET
from mmpola.data.read_image import rgb_image
from mmpola.messages import BrokenRule


def matches(dataset: dict[str, Any]) -> bool:
    """Whether a data set's config is of this kind: it is a `ClassFolders`."""
    return dataset.get('type') in ('mmpola.ClassFolders', 'ClassFolders')


def paths(dataset: dict[str, Any]) -> list[Path]:
    """Return the folder or tar file, and the folder or file that names the classes."""
    return [Path(dataset[key]) for key in ('root', 'classes') if dataset.get(key) not in (None, '', IMAGENET)]


def inspect(dataset: Any) -> Contents:
    """Count the images of a `ClassFolders`, whose constructor has checked the classes. Opens no image."""
    images = dataset.images
    contents = Contents(images=len(images), annotations=len(images), classes=images.classes)
    counts = np.bincount(images.labels, minlength=len(images.classes))
    if counts.max() > 10 * counts.min():
        few, many = (f'{images.classes[i]} has {counts[i]:,}' for i in (counts.argmin(), counts.argmax()))
        contents.notes.append(f'{images.root}: the sizes of the classes differ widely: {few} images, {many}')
    contents.image_files = [partial(_check_image, images, index) for index in range(len(images))]
    return contents


def _check_image(images: Any, index: int) -> list[BrokenRule]:
    try:
        rgb_image(images.read(index))
    except Exception as error:  # decoders raise OSError, SyntaxError, ValueError and more for a broken file
        return [(f'{images.root}: images that cannot be read', f'{images.name(index)} ({error})')]
    return []
