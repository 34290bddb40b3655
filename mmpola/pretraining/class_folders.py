"""Data sets of images, augmented by timm: class folders ROOT/CLASS/**/IMAGE, or without labels.

The folder readers of timm and torchvision are not used: timm's skips a class folder without images,
which shifts all later labels; torchvision's sorts class 10 before class 2; and both read hidden
files and follow links in circles.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from mmengine.structures import BaseDataElement
from numpy.typing import NDArray
from PIL import Image
from timm.data import ImageNetInfo, create_transform
from timm.utils.misc import natural_key
from torch.utils.data import Dataset

from mmpola.images import IMAGE_SUFFIXES, FolderImages, images_below, rgb_image
from mmpola.messages import listed
from mmpola.openmmlab.config.contents import IMAGENET


class ClassFolders(Dataset[dict[str, Any]]):
    """Images below ROOT/CLASS at any depth, with timm's transforms.

    Links are followed, hidden files left out. An item is dict(inputs=float tensor [3, H, W],
    data_samples=BaseDataElement) with the int `gt_label` and, in the metainfo, `img_path`.

    Args:
        root: folder of the class folders.
        training: use random transforms.
        transform: arguments of timm.data.create_transform, such as `input_size`.
        classes: what defines the labels: the training folder, a .txt file with one class name per
            line, a list of names, or 'imagenet-1k' (some of its classes may be absent). None: the
            class folders, in natural order (2 before 10).
        indices: the images to keep: the first n for an int, the last n for -n, or a list of
            indices. Images are in the order of their classes: the first ones are all of the first
            class. Classes without images stay. None: all images.

    Attributes:
        labels: int64 [N], one per image.
        notes: lines for `mmpola check-data`: files that are left out by their suffix, classes of
            which data for evaluation have no images.

    Raises:
        ValueError: a folder, classes or images are missing, classes differ, or links lead to a
            folder twice. Evaluation may lack some of `classes`.
    """

    def __init__(
        self,
        root: str,
        *,
        training: bool,
        transform: dict[str, Any],
        classes: str | Sequence[str] | None = None,
        indices: int | Sequence[int] | None = None,
    ) -> None:
        self.transform = create_transform(is_training=training, **transform)
        self.root = str(root)
        images, names, self.notes = _find_images(self.root, classes, training)
        absent = [name for name in names if not images.get(name)]
        if absent and classes != IMAGENET:
            self.notes.append(
                f'{root}: no images of {len(absent)} of {len(names)} classes, about which this '
                f'evaluation says nothing: {listed(absent)}'
            )
        labels = []
        paths = []
        for label, name in enumerate(names):
            for path in images.get(name, []):
                labels.append(label)
                paths.append(os.fsencode(path))
        self.labels = np.array(labels, np.int64)
        # Workers share an array of bytes; each of them would copy Python's strings.
        self._paths = np.array(paths)
        if indices is not None:
            every = np.arange(len(self.labels))
            if not isinstance(indices, int):
                kept = every[list(indices)]
            elif indices >= 0:
                kept = every[:indices]
            else:
                kept = every[indices:]
            self._keep(kept)
        self.metainfo = {'classes': tuple(names)}

    def _keep(self, kept: NDArray[Any]) -> None:
        """Leave out all images but `kept`: their indices, or a bool for each image."""
        self.labels = self.labels[kept]
        self._paths = self._paths[kept]

    def __len__(self) -> int:
        return len(self.labels)

    def get_data_info(self, index: int) -> dict[str, Any]:
        """Return `img_path` and the int `gt_label` of an image."""
        path = os.path.join(self.root, os.fsdecode(bytes(self._paths[index])))
        return {'img_path': path, 'gt_label': int(self.labels[index])}

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Return an item.

        Raises:
            OSError: the image cannot be read; the message names it.
        """
        found = self.get_data_info(range(len(self))[index])
        path = found['img_path']
        sample = BaseDataElement(metainfo={'img_path': path}, gt_label=found['gt_label'])
        return {'inputs': self.transform(_read_image(path)), 'data_samples': sample}

    def image(self, index: int) -> Image.Image:
        """Return an image as it is before the transforms, RGB."""
        return _read_image(self.get_data_info(index)['img_path'])


class UnlabelledImages(Dataset[dict[str, Any]]):
    """All images below a folder, for a student that learns from a teacher only.

    Links are followed, hidden files left out. An item is dict(inputs=float tensor [3, H, W],
    data_samples=BaseDataElement) with `img_path` in the metainfo.

    Args:
        root: the folder.
        training: use random transforms.
        transform: arguments of timm.data.create_transform, such as `input_size`.

    Raises:
        ValueError: the folder or images are missing, or links lead to a folder twice.
    """

    metainfo: ClassVar[dict[str, Any]] = {}

    def __init__(self, root: str, *, training: bool, transform: dict[str, Any]) -> None:
        self.transform = create_transform(is_training=training, **transform)
        self.root = str(root)
        if not os.path.isdir(self.root):
            raise ValueError(f'{root}: no such folder')
        found = _images_below(self.root)
        paths = [os.fsencode(path) for path in found.paths]
        self.notes = _notes(self.root, found)
        if not paths:
            suffixes = ' '.join(IMAGE_SUFFIXES)
            raise ValueError(f'{root}: expected images ({suffixes}), got none')
        # Workers share an array of bytes; each of them would copy Python's strings.
        self._paths = np.array(paths)

    def __len__(self) -> int:
        return len(self._paths)

    def get_data_info(self, index: int) -> dict[str, Any]:
        """Return `img_path` of an image."""
        return {'img_path': os.path.join(self.root, os.fsdecode(bytes(self._paths[index])))}

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Return an item.

        Raises:
            OSError: the image cannot be read; the message names it.
        """
        found = self.get_data_info(range(len(self))[index])
        sample = BaseDataElement(metainfo=found)
        return {'inputs': self.transform(_read_image(found['img_path'])), 'data_samples': sample}

    def image(self, index: int) -> Image.Image:
        """Return an image as it is before the transforms, RGB."""
        return _read_image(self.get_data_info(index)['img_path'])


def _read_image(path: str) -> Image.Image:
    """Read an image as RGB; raise an OSError that names it if it cannot be read."""
    try:
        return rgb_image(Path(path).read_bytes())
    except MemoryError:
        raise
    except Exception as error:  # decoders raise OSError, SyntaxError, struct.error …
        raise OSError(f'{path}: expected an image that can be read, got {error!r}') from error


def class_names(source: str | Sequence[str]) -> list[str]:
    """Return the names of the classes that `source` defines, in the order of their labels.

    Args:
        source: a .txt file (UTF-8) with a name per line, a folder of class folders, which are taken
            in natural order, `IMAGENET`, or the names themselves.
    """
    if not isinstance(source, str):
        return list(source)
    if source == IMAGENET:
        names: list[str] = ImageNetInfo(IMAGENET).label_names()
        return names
    if source.endswith('.txt'):
        lines = Path(source).read_text(encoding='utf-8').splitlines()
        return [line.strip() for line in lines if line.strip()]
    folders = []
    for entry in os.scandir(source):
        if entry.is_dir() and not entry.name.startswith('.'):
            folders.append(entry.name)
    return sorted(folders, key=natural_key)


def _find_images(
    root: str, classes: str | Sequence[str] | None, training: bool
) -> tuple[dict[str, list[str]], list[str], list[str]]:
    """Find the images of every class.

    Returns:
        (paths below `root` by class, names of the classes in the order of the labels, notes).

    Raises:
        ValueError: as in `ClassFolders`.
    """
    if not os.path.exists(root):
        raise ValueError(f'{root}: no such folder or file')
    if not os.path.isdir(root):
        raise ValueError(f'{root}: expected a folder, got another file')
    if isinstance(classes, str) and classes != IMAGENET:
        if not os.path.exists(classes):
            raise ValueError(f'{classes}: no such folder or file')
        if not os.path.isdir(classes) and not classes.endswith('.txt'):
            raise ValueError(f'{classes}: expected a folder or a .txt file, got another file')
    found = _images_below(root)
    if any(os.sep not in path for path in found.paths):
        raise ValueError(
            f'{root}: expected {root}/CLASS/IMAGE, got images directly in the folder '
            "(ImageNet's validation images are published unsorted: move each into the folder of "
            'its class)'
        )
    images: dict[str, list[str]] = {name: [] for name in class_names(root)}
    for path in found.paths:
        images[path.partition(os.sep)[0]].append(path)
    names = list(images)
    if classes:
        names = class_names(classes)
    problems = _problems(root, images, classes, names, training)
    if problems:
        raise ValueError('\n'.join(problems))
    return images, names, _notes(root, found)


def _problems(
    root: str,
    images: dict[str, list[str]],
    classes: str | Sequence[str] | None,
    names: list[str],
    training: bool,
) -> list[str]:
    """Describe what is wrong with class folders, a line per problem; see `_find_images`."""
    if not images:
        return [f'{root}: expected {root}/CLASS/IMAGE, got no class folders']
    source = 'the list `classes`'
    if isinstance(classes, str):
        source = classes
    extra = sorted(images.keys() - set(names), key=natural_key)
    if classes and not training and not extra and any(images.values()):
        return []  # labels follow from the names, so that some of the classes may be absent
    problems = []
    empty = [name for name, found in images.items() if not found]
    if empty:
        suffixes = ' '.join(IMAGE_SUFFIXES)
        problems.append(f'{root}: class folders without images ({suffixes}): {listed(empty)}')
    missing = [name for name in names if name not in images]
    if missing and classes != IMAGENET:
        problems.append(f'{root}: lacks classes that {source} has: {listed(missing)}')
    if extra:
        problems.append(f'{root}: has classes that {source} lacks: {listed(extra)}')
    return problems


def _images_below(root: str) -> FolderImages:
    """Find the images in a folder and below it.

    Raises:
        ValueError: a link leads to a folder twice: its images would be read twice, perhaps as
            another class.
    """
    found = images_below(root)
    for folder, first in found.repeated.items():
        got = f'{folder}, which is the same as {first}'
        raise ValueError(f'{root}: expected every folder once, got {got}')
    return found


def _notes(root: str, found: FolderImages) -> list[str]:
    """Return a line if files are left out by their suffix."""
    if not found.left_out:
        return []
    return [f'{root}: left out: {found.others()}']
