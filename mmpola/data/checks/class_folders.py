"""Data sets of ImageNet's layout: a folder per class, or the same in tar files."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from mmpola.data.checks.contents import Contents
from mmpola.data.read_image import rgb_image


def describes(dataset: dict[str, Any]) -> bool:
    """Whether a data set's config is of this kind."""
    return dataset.get('type') in ('mmpola.ClassFolders', 'ClassFolders')


def places(dataset: dict[str, Any]) -> list[Path]:
    """The folder or tar file, and what names the classes."""
    return [Path(dataset[key]) for key in ('root', 'classes') if dataset.get(key)]


def inspect(dataset: Any) -> Contents:
    """Counts of mmpola's ClassFolders, which has refused wrong classes when it was built. Opens no image."""
    images = dataset.images
    contents = Contents(images=len(images), annotations=len(images), classes=images.classes)
    counts = np.bincount(images.labels, minlength=len(images.classes))
    if counts.max() > 10 * counts.min():
        few, many = (f'{images.classes[i]} has {counts[i]:,}' for i in (counts.argmin(), counts.argmax()))
        contents.notes.append(f'{images.root}: classes differ much in size: {few} images, {many}')
    contents.image_files = [partial(_read_image, images, index) for index in range(len(images))]
    return contents


def _read_image(images: Any, index: int) -> list[tuple[str, str]]:
    try:
        rgb_image(images.read(index))
    except Exception as error:  # decoders raise OSError, SyntaxError, ValueError and more for a broken file
        return [(f'{images.root}: images that cannot be read', f'{images.name(index)} ({error})')]
    return []
