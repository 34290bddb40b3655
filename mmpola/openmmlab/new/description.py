"""What a folder of labelled images holds, whatever its format: `Found`, and helpers to read it."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import ExifTags, Image
from tqdm import tqdm

from mmpola.images import IMAGE_SUFFIXES, images_below
from mmpola.messages import UsageError, listed

BOXES = 'boxes'
OUTLINES = 'outlines'
LABEL_MAPS = 'label-maps'
CLASSES = 'classes'
TASKS = (BOXES, OUTLINES, LABEL_MAPS, CLASSES)

ANNOTATIONS = ('.csv', '.json', '.names', '.txt', '.xml', '.yaml', '.yml')
"""Suffixes of files that may hold annotations or names of classes."""

SPLITS = {
    'train': ('train', 'training', 'trn'),
    'val': ('val', 'valid', 'validation', 'dev'),
    'test': ('test', 'testing', 'tst'),
}
"""Split -> the words by which folders and lists name it."""

SPLIT_OF = {word: split for split, words in SPLITS.items() for word in words}


class Instance(NamedTuple):
    """An object in an image.

    Attributes:
        name: of its class.
        box: x, y, width, height in pixels.
        outline: polygons [[x1, y1, …], …] or run lengths as in COCO's files; None: only a box.
        is_ignored: whether training ignores it: a crowd, or a difficult object.
    """

    name: str
    box: tuple[float, float, float, float]
    outline: Any = None
    is_ignored: bool = False


@dataclass
class Sample:
    """An image with its labels.

    Attributes:
        image: its file.
        split: 'train', 'val', 'test', or '' if nothing says it.
        size: width and height in pixels, as OpenMMLab loads the image; (0, 0) before it is known.
        objects: in it.
        label_map: the file with the class of each pixel.
        name: the class of the whole image.
        pixels: number of pixels of each value, or colour, in its label map.
    """

    image: Path
    split: str = ''
    size: tuple[int, int] = (0, 0)
    objects: list[Instance] = field(default_factory=list)
    label_map: Path | None = None
    name: str = ''
    pixels: Counter[Any] = field(default_factory=Counter)


@dataclass
class Found:
    """What has been recognised.

    Attributes:
        kind: the format, for a person: "COCO's format".
        evidence: by what it was recognised.
        task: one of `TASKS`.
        samples: all images.
        classes: names in the order of the file; those that occur in its absence.
        notes: lines about what was left out or changed.
        files: split -> (file in COCO's format, folder of its images), where mmdet can read it.
        values: of label maps: value or colour in the file -> number of the class, 255 for none.
    """

    kind: str
    evidence: str
    task: str
    samples: list[Sample]
    classes: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    files: dict[str, tuple[Path, Path]] = field(default_factory=dict)
    values: dict[Any, int] = field(default_factory=dict)

    @property
    def splits(self) -> list[str]:
        """The splits that have images, in the order train, val, test."""
        return [split for split in SPLITS if self.of(split)]

    def of(self, split: str) -> list[Sample]:
        """Return the samples of a split."""
        return [sample for sample in self.samples if sample.split == split]


class Folder:
    """The files in a folder and below it; hidden ones are not. Links are followed.

    Attributes:
        root: the folder, absolute.
        images: paths inside it.
        others: paths inside it of the files that may hold annotations, by suffix.
    """

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        try:
            found = images_below(self.root, (*IMAGE_SUFFIXES, *ANNOTATIONS))
        except OSError as error:
            raise UsageError(f'{root}: cannot be read ({error.strerror})') from error
        self.images: list[str] = []
        self.others: dict[str, list[str]] = {suffix: [] for suffix in ANNOTATIONS}
        for path in found.paths:
            suffix = os.path.splitext(path)[1].lower()
            if suffix in self.others:
                self.others[suffix].append(path)
            else:
                self.images.append(path)
        self._by_stem: dict[str, list[str]] = {}
        for path in self.images:
            self._by_stem.setdefault(Path(path).stem.casefold(), []).append(path)

    def image_named(self, name: str, beside: str) -> str | None:
        """Find the image of an annotation by its stem; of several, the one in the nearest folder.

        Args:
            name: file name or path, with any suffix or none.
            beside: path inside the folder of the annotation file.
        """
        stem = Path(name.replace('\\', '/')).name
        candidates = self._by_stem.get(Path(stem).stem.casefold(), [])
        candidates = candidates or self._by_stem.get(stem.casefold(), [])
        if len(candidates) < 2:
            return candidates[0] if candidates else None
        near = {*Path(beside).parts[:-1], split_of(beside), *Path(name).parts}
        return max(candidates, key=lambda path: len(near & {*Path(path).parts, split_of(path)}))

    def named(self, *names: str) -> Path | None:
        """Return the file of one of some names that is least deep in the folder; None without."""
        for name in names:
            found = self.others.get(os.path.splitext(name)[1], [])
            found = [path for path in found if os.path.basename(path).lower() == name]
            if found:
                return self.root / min(found, key=lambda path: path.count(os.sep))
        return None

    def lists(self, folder: str = '') -> dict[str, str]:
        """Return the split of each stem that a list names: train.txt, val.txt, test.txt.

        Args:
            folder: only lists whose path holds it, if there are any.
        """
        lists = [path for path in self.others['.txt'] if Path(path).stem.lower() in SPLIT_OF]
        lists = [path for path in lists if folder in path] or lists
        found: dict[str, str] = {}
        for path in lists:
            for line in lines_of(self.root / path):
                stem = Path(line.split()[0]).name
                if Path(stem).suffix.lower() in IMAGE_SUFFIXES:
                    stem = Path(stem).stem
                found.setdefault(stem.casefold(), SPLIT_OF[Path(path).stem.lower()])
        return {stem: split for stem, split in found.items() if stem in self._by_stem}


def split_of(path: str) -> str:
    """Return the split that the folders of a path name: 'images/train2017/1.jpg' is 'train'."""
    for part in Path(path).parts[:-1]:
        for word in re.split(r'[^a-z]+', part.lower()):
            if word in SPLIT_OF:
                return SPLIT_OF[word]
    return ''


def lines_of(path: Path) -> list[str]:
    """Return the lines of a text file that are not blank."""
    try:
        lines = path.read_text(encoding='utf-8-sig', errors='replace').splitlines()
    except OSError as error:
        raise UsageError(f'{path}: cannot be read ({error.strerror})') from error
    return [line.strip() for line in lines if line.strip()]


def image_size(path: Path) -> tuple[int, int] | None:
    """Return width and height as OpenMMLab loads an image, which obeys EXIF; None if unreadable."""
    try:
        with Image.open(path) as file:
            width, height = file.size
            turned = file.getexif().get(ExifTags.Base.Orientation, 1)
    except Exception:  # decoders raise exceptions of any type
        return None
    return (height, width) if turned in range(5, 9) else (width, height)


def measured(samples: Iterable[Sample], notes: list[str]) -> list[Sample]:
    """Return the samples whose images can be read, with their sizes; a note names the others."""
    kept = []
    unreadable = []
    samples = list(samples)
    for sample in tqdm(samples, 'sizes of images', leave=False, disable=None):
        sample.size = image_size(sample.image) or (0, 0)
        if sample.size == (0, 0):
            unreadable.append(sample.image.name)
        else:
            kept.append(sample)
    if unreadable:
        notes.append(
            f'left out: {len(unreadable)} images that cannot be read: {listed(unreadable)}'
        )
    return kept


def ordered(names: Iterable[str], folder: Folder) -> list[str]:
    """Return the names of classes: in the order of a file of names, or sorted without one."""
    names = set(names)
    file = folder.named('classes.txt', 'labels.txt', 'obj.names', 'predefined_classes.txt')
    lines = lines_of(file) if file else []
    if names <= set(lines):
        return lines
    return sorted(names)


def every(number: int, items: Sequence[Any]) -> list[Any]:
    """Return at most `number` items, evenly spread."""
    places = np.linspace(0, len(items) - 1, min(number, len(items))).round().astype(int)
    return [items[place] for place in places]
