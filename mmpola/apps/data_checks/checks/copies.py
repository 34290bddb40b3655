"""Whether photographs that are evaluated are among those that training learns from."""

from __future__ import annotations

import contextlib
import filecmp
import functools
import math
import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from mmpola.apps.data_checks.read import FEW
from mmpola.apps.data_checks.table import SPLITS, WARNING, Run, check
from mmpola.messages import listed

MANY_IMAGES = 20_000
"""Of more images, the quick check compares the paths only: a network's disk takes minutes."""

MIDDLE = 65_536
"""Bytes in the middle of files of one size that are compared before whole files are."""

ALIKE = 4
"""Mean difference of two small grey copies, of 255, up to which they show one photograph."""


@check('same-images', WARNING, SPLITS)
def same_images(run: Run) -> Iterator[str]:
    """Validation or test reads photographs that training learns from."""
    trained = [data for data in run.sets if data.is_trained]
    for data in run.sets:
        evaluated = [split for split in data.splits if split != 'train']
        if not trained or not evaluated:
            continue
        shared = list(data.names)
        if not data.is_trained:
            names = [name for one in trained for name in one.names]
            shared = images_among(data.names, names, run.whole)
        if shared and all(isinstance(name, str) for name in shared):
            yield (
                f'{evaluated[0]}_dataloader: {len(shared)} of {data.images} images are in '
                f'train_dataloader too ({listed(shared, 3)}): a model is not judged by what it '
                'was trained on'
            )


def images_among(names: Sequence[Any], others: Sequence[Any], whole: bool) -> list[str]:
    """Return the images that are among others: one file, equal files, or one name and look."""
    folder_of = functools.lru_cache(maxsize=None)(os.path.realpath)

    def real(path: str) -> str:
        return os.path.join(folder_of(os.path.dirname(path)), os.path.basename(path))

    own = [name for name in names if isinstance(name, str)]
    known = {real(name) for name in others if isinstance(name, str)}
    found = {name for name in own if real(name) in known}
    if whole or len(own) + len(known) <= MANY_IMAGES:
        found |= equal_files([name for name in own if name not in found], known)
        found |= same_looks([name for name in own if name not in found], known, whole)
    return [name for name in own if name in found]


def equal_files(names: Sequence[str], others: set[str]) -> set[str]:
    """Return the files whose content another file has."""
    by_size: dict[int, list[str]] = {}
    for path in others:
        if os.path.isfile(path):
            by_size.setdefault(os.path.getsize(path), []).append(path)
    middles = functools.lru_cache(maxsize=None)(middle_of)
    found = set()
    for name in names:
        size = os.path.getsize(name) if os.path.isfile(name) else -1
        alike = [path for path in by_size.get(size, ()) if middles(path) == middles(name)]
        if any(filecmp.cmp(name, path, shallow=False) for path in alike):
            found.add(name)
    return found


def middle_of(path: str) -> int:
    """Return a hash of the bytes in the middle of a file."""
    with open(path, 'rb') as file:
        file.seek(max(0, os.path.getsize(path) - MIDDLE) // 2)
        return hash(file.read(MIDDLE))


def same_looks(names: Sequence[str], others: set[str], whole: bool) -> set[str]:
    """Return the images that look like another one of the same name, perhaps stored anew.

    Many data sets number the images of each split from 0, so that the name alone says nothing. The
    quick check looks at a few pairs, and at all if one of them is alike.
    """
    by_name: dict[str, str] = {}
    for path in others:
        for key in path_names(path):
            by_name[key] = path
    pairs = []
    for name in names:
        other = next((by_name[key] for key in path_names(name) if key in by_name), None)
        if other is not None:
            pairs.append((name, other))
    few = pairs[:: math.ceil(len(pairs) / FEW)] if pairs else []
    if not whole and not any(look_alike(*pair) for pair in few):
        return set()
    return {name for name, other in pairs if look_alike(name, other)}


def path_names(path: str) -> tuple[str, str]:
    """Return the name of a file with and without its folder, which may be its class.

    Neither has the suffix, nor the number that Roboflow adds.
    """
    folder, file = os.path.split(path)
    name = os.path.splitext(file)[0].partition('.rf.')[0]
    return f'{os.path.basename(folder)}/{name}', name


def look_alike(one: str, other: str) -> bool:
    """Whether two files show one photograph, which is not of one colour."""
    first = small_copy(one)
    second = small_copy(other)
    if first is None or second is None or first.std() <= ALIKE:
        return False
    return bool(np.abs(first - second).mean() <= ALIKE)


def small_copy(path: str) -> NDArray[Any] | None:
    """Return an image as 16 x 16 grey values; None if it cannot be read."""
    with contextlib.suppress(Exception), Image.open(path) as image:  # of formats that Pillow lacks
        image.draft('L', (64, 64))
        return np.asarray(image.convert('L').resize((16, 16)), float)
    return None
