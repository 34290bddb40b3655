"""Index the images of a class-per-folder data set, in folders, links to folders or tar files.

Supported layouts: ROOT/CLASS/**/IMAGE; ROOT.tar with …/CLASS/IMAGE or CLASS.tar inside; ROOT/CLASS.tar. timm's readers
are not used: they skip a class folder without images, which shifts every later label, and forked workers share the
position in their open tar files.
"""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from timm.data import ImageNetInfo
from timm.utils.misc import natural_key

from mmpola.data.read_image import IMAGE_SUFFIXES
from mmpola.messages import listed

IMAGENET = 'imagenet-1k'
"""Stands for ImageNet's 1,000 classes, by their WordNet numbers, where a folder or file could define the classes."""


class Place(NamedTuple):
    """Where an image is: a whole file, or `size` bytes from `offset` of a tar file. Paths are relative to the root."""

    path: str
    member: str = ''
    offset: int = 0
    size: int = -1


class ImageIndex:
    """The images of a data set and their labels, in a few arrays: Python objects would be copied into every worker.

    Args:
        root: folder or tar file.
        classes: names in the order of their labels.
        places: the images of each class.

    Attributes:
        labels: int64 [N], one per image.
    """

    def __init__(self, root: str, classes: tuple[str, ...], places: dict[str, list[Place]]) -> None:
        self.root = root
        self.classes = classes
        flat = [place for name in classes for place in places[name]]
        self.labels = np.repeat(np.arange(len(classes)), [len(places[name]) for name in classes])
        self._names = _Strings(f'{place.path}\0{place.member}' for place in flat)
        self._spans = np.array([(place.offset, place.size) for place in flat], np.int64).reshape(-1, 2)

    def __len__(self) -> int:
        return len(self.labels)

    def name(self, index: int) -> str:
        """Return the path of an image; TAR/MEMBER for one inside a tar file."""
        path, member = self._names[index].split('\0')
        return str(Path(self.root, path, member))

    def read(self, index: int) -> bytes:
        """Return the bytes of an image file. The file is opened on every call, so that workers share no position."""
        path = Path(self.root, self._names[index].split('\0')[0])
        offset, size = self._spans[index].tolist()
        with path.open('rb') as file:
            file.seek(offset)
            return file.read(size)


class _Strings:
    """A list of strings in one block of bytes."""

    def __init__(self, strings: Iterable[str]) -> None:
        parts = [os.fsencode(text) for text in strings]
        self._ends = np.cumsum([0, *map(len, parts)])
        self._bytes = np.frombuffer(b''.join(parts), np.uint8)

    def __getitem__(self, index: int) -> str:
        return os.fsdecode(self._bytes[self._ends[index] : self._ends[index + 1]].tobytes())


def build_index(root: str, classes: str | None = None) -> ImageIndex:
    """Index every image under `root`.

    Args:
        root: folder or tar file.
        classes: what defines the labels: the training folder or tar file, a text file with one class name per line, or
            'imagenet-1k', of whose classes some may be absent; None: the classes under `root`.

    Raises:
        ValueError: a folder, classes or images are missing, or classes differ; the message lists all problems.
    """
    problems = _path_problems(root, classes)
    places: dict[str, list[Place]] = {}
    if not problems:
        listed_places = [(name, list(found)) for name, found in _classes(root)]
        places = dict(listed_places)
        expected = class_names(classes) if classes else sorted(places, key=natural_key)
        problems = _class_problems(root, places, classes, expected)
        if len(listed_places) > len(places):
            twice = [name for name in places if sum(name == other for other, _ in listed_places) > 1]
            problems.append(f'{root}: classes that are both a folder and a tar file: {listed(twice)}')
    if problems:
        raise ValueError('\n'.join(problems))
    return ImageIndex(root, tuple(expected), {name: places.get(name, []) for name in expected})


def class_names(path: str) -> list[str]:
    """Return the lines of a text file, or the classes under a folder or tar file in natural order: 2 before 10.

    `IMAGENET` stands for its classes in the order of their labels.
    """
    if path == IMAGENET:
        names: list[str] = ImageNetInfo(IMAGENET).label_names()
        return names
    if path.endswith('.txt'):
        return [line.strip() for line in Path(path).read_text().splitlines() if line.strip()]
    return sorted({name for name, _ in _classes(path)}, key=natural_key)


def _path_problems(root: str, classes: str | None) -> list[str]:
    for path in (root, classes):
        if path not in (None, IMAGENET) and not Path(path).exists():
            return [f'{path}: no such folder or file']
    if Path(root).is_file():
        return [] if root.endswith('.tar') else [f'{root}: expected a folder or a .tar file']
    if any(_is_image(entry.name) for entry in os.scandir(root)):
        return [
            f'{root}: expected {root}/CLASS/IMAGE, got images directly in the folder '
            "(ImageNet's validation images are published unsorted: move each into the folder of its class)"
        ]
    return []


def _class_problems(root: str, places: dict[str, list[Place]], classes: str | None, expected: list[str]) -> list[str]:
    if not places:
        return [f'{root}: expected {root}/CLASS/IMAGE, got no class folders']
    problems = []
    if empty := [name for name, found in places.items() if not found]:
        suffixes = ' '.join(IMAGE_SUFFIXES)
        problems.append(f'{root}: class folders without images ({suffixes}): {listed(empty)}')
    if classes is not None:
        missing = [name for name in expected if name not in places]
        if missing and classes != IMAGENET:
            problems.append(f'{root}: lacks classes that {classes} has: {listed(missing)}')
        if extra := sorted(set(places) - set(expected), key=natural_key):
            problems.append(f'{root}: has classes that {classes} lacks: {listed(extra)}')
    return problems


def _is_image(name: str) -> bool:
    """Whether a file is an image by its suffix; hidden files are not."""
    return name.lower().endswith(IMAGE_SUFFIXES) and not os.path.basename(name).startswith('.')


def _classes(root: str) -> Iterator[tuple[str, Iterable[Place]]]:
    """Yield (name, images) of each class."""
    if Path(root).is_file():
        yield from _by_class(_in_tar(Path(root), '')).items()
        return
    entries = sorted(os.scandir(root), key=lambda entry: natural_key(entry.name))
    seen: dict[str, str] = {}
    for entry in entries:
        if entry.is_dir() and not entry.name.startswith('.'):
            yield entry.name, _in_folder(root, entry.name, seen)
    tars = [
        place for entry in entries if entry.name.endswith('.tar') for place in _in_tar(Path(entry.path), entry.name)
    ]
    yield from _by_class(tars).items()


def _by_class(places: Iterable[Place]) -> dict[str, list[Place]]:
    """Group images by class: the name of their folder, or else of their tar file without its suffix."""
    found: dict[str, list[Place]] = {}
    for place in sorted(places):
        folders = Path(place.path, place.member).parent
        found.setdefault(folders.name.removesuffix('.tar'), []).append(place)
    return found


def _in_folder(root: str, name: str, seen: dict[str, str]) -> Iterator[Place]:
    """Yield the images of a class; `seen` are all folders so far, by their path without links.

    Raises:
        ValueError: a link leads to one of them: its images would be read twice, perhaps as another class, or endlessly.
    """
    for folder, inner, files in os.walk(os.path.join(root, name), followlinks=True):
        first = seen.setdefault(os.path.realpath(folder), folder)
        if first != folder:
            raise ValueError(f'{root}: expected every folder once, got {folder}, which is the same as {first}')
        inner.sort()
        for file in sorted(filter(_is_image, files)):
            yield Place(os.path.relpath(os.path.join(folder, file), root))


def _in_tar(path: Path, relative: str) -> Iterator[Place]:
    """Yield the images of a tar file and of tar files inside it; only headers are read."""
    with tarfile.open(path, 'r:') as tar:
        for member in tar:
            if member.isfile() and _is_image(member.name):
                yield Place(relative, member.name, member.offset_data, member.size)
            elif member.isfile() and member.name.endswith('.tar'):
                with tarfile.open(fileobj=tar.extractfile(member), mode='r:') as inner:
                    for image in inner:
                        if image.isfile() and _is_image(image.name):
                            offset = member.offset_data + image.offset_data
                            yield Place(relative, f'{member.name}/{image.name}', offset, image.size)
            tar.members = []  # type: ignore[attr-defined]  # otherwise every header stays in memory
