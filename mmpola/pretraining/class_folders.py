"""Data sets of images, augmented by timm: class folders ROOT/CLASS/**/IMAGE, or without labels.

The folder readers of timm and torchvision are not used: timm's skips a class folder without images,
which shifts all later labels; and both read hidden files and follow links in circles: torchvision
reads an image 41 times if its folder has a link to the parent folder, and never ends with two.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from mmengine.structures import BaseDataElement
from PIL import Image
from timm.data import ImageNetInfo, create_transform
from timm.utils.misc import natural_key
from torch.utils.data import Dataset

from mmpola.images import IMAGE_SUFFIXES, images_below, rgb_image
from mmpola.messages import listed
from mmpola.openmmlab.config.contents import IMAGENET


class _Images(Dataset[dict[str, Any]]):
    """All images below a folder, with timm's transforms.

    Links are followed, hidden files left out.

    Args:
        root: the folder.
        training: use random transforms.
        transform: arguments of timm.data.create_transform, such as `input_size`.

    Attributes:
        notes: lines for `mmpola check-data`: files that are left out by their suffix.
        paths: bytes [N], inside the folder: workers share an array of bytes; each of them would
            copy Python's strings.
    """

    def __init__(self, root: str, training: bool, transform: dict[str, Any]) -> None:
        self.root = str(root)
        self.transform = create_transform(is_training=training, **transform)
        found = images_below(self.root)
        if found.repeated:  # images would be read twice, perhaps as another class
            folder, first = next(iter(found.repeated.items()))
            got = f'{folder}, which is the same as {first}'
            raise ValueError(f'{root}: expected every folder once, got {got}')
        if not found.paths:
            suffixes = ' '.join(IMAGE_SUFFIXES)
            raise ValueError(f'{root}: expected images ({suffixes}), got none')
        self.notes: list[str] = []
        if found.left_out:
            self.notes.append(f'{root}: left out: {found.others()}')
        self.paths = np.array([os.fsencode(path) for path in found.paths])

    def __len__(self) -> int:
        return len(self.paths)

    def get_data_info(self, index: int) -> dict[str, Any]:
        """Return `img_path` of an image and, if it has a label, the int `gt_label`."""
        return {'img_path': os.path.join(self.root, os.fsdecode(bytes(self.paths[index])))}

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Return an item.

        Raises:
            OSError: the image cannot be read; the message names it.
        """
        labels = self.get_data_info(range(len(self))[index])
        path = labels.pop('img_path')
        sample = BaseDataElement(metainfo={'img_path': path}, **labels)
        return {'inputs': self.transform(_read_image(path)), 'data_samples': sample}

    def image(self, index: int) -> Image.Image:
        """Return an image as it is before the transforms, RGB."""
        return _read_image(self.get_data_info(index)['img_path'])


class UnlabelledImages(_Images):
    """All images below a folder, for a student that learns from a teacher only.

    Links are followed, hidden files left out. An item is dict(inputs=float tensor [3, H, W],
    data_samples=BaseDataElement) with `img_path` in the metainfo.

    Args:
        root: the folder.
        training: use random transforms.
        transform: arguments of timm.data.create_transform, such as `input_size`.

    Raises:
        OSError: the folder cannot be read.
        ValueError: there are no images, or links lead to a folder twice.
    """

    metainfo: ClassVar[dict[str, Any]] = {}

    def __init__(self, root: str, *, training: bool, transform: dict[str, Any]) -> None:
        super().__init__(root, training, transform)


class ClassFolders(_Images):
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
        OSError: a folder or the file of `classes` cannot be read.
        ValueError: there are no images, an image is in no class folder, a folder is no class, a
            class has no images, or links lead to a folder twice. Evaluation may lack images of
            some of `classes`.
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
        super().__init__(root, training, transform)
        folders = class_names(self.root)
        names = folders
        if classes:
            names = class_names(classes)
        extra = [name for name in folders if name not in names]
        if extra:
            got = f'folders of others: {listed(extra)}'
            raise ValueError(f'{root}: expected folders of the classes {listed(names)}, got {got}')
        label_of = {name: label for label, name in enumerate(names)}
        labels = []
        for path in self.paths:
            folder, inside, _ = os.fsdecode(bytes(path)).partition(os.sep)
            if not inside:
                raise ValueError(
                    f'{root}: expected {root}/CLASS/IMAGE, got images directly in the folder '
                    "(ImageNet's validation images are published unsorted: move each into the "
                    'folder of its class)'
                )
            labels.append(label_of[folder])
        expected = set(names)
        if classes == IMAGENET:
            expected = set(folders)
        present = set(labels)
        absent = []
        for label, name in enumerate(names):
            if name in expected and label not in present:
                absent.append(name)
        if absent:
            number = f'{len(absent)} of {len(names)} classes'
            problem = f'{root}: no images of {number}: {listed(absent)}'
            if training or not classes:
                raise ValueError(problem)
            self.notes.append(f'{problem}; this evaluation says nothing about them')
        order = np.argsort(labels, kind='stable')
        self.labels = np.array(labels, np.int64)[order]
        self.paths = self.paths[order]
        if isinstance(indices, int):
            every = np.arange(len(self.labels))
            self._keep(every[:indices] if indices >= 0 else every[indices:])
        elif indices is not None:
            self._keep(list(indices))
        self.metainfo = {'classes': tuple(names)}

    def _keep(self, kept: Any) -> None:
        """Leave out all images but `kept`: a slice, indices, or a bool for each image."""
        self.labels = self.labels[kept]
        self.paths = self.paths[kept]

    def get_data_info(self, index: int) -> dict[str, Any]:
        """Return `img_path` and the int `gt_label` of an image."""
        return {**super().get_data_info(index), 'gt_label': int(self.labels[index])}


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
