"""The Long Range Arena's tasks on images as sequences of grey values, from their official files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image
from timm.utils.misc import natural_key

from mmpola.messages import UsageError, info, listed
from mmpola.papers.lra.dataset import LRA_SPLITS, SequenceDataset
from mmpola.papers.lra.store import Sample, Tokens

IMAGE_SIDE = 32
"""Pixels of an image's side."""

PATHFINDER_SHARES = (0.8, 0.1, 0.1)
"""Shares of the images in `LRA_SPLITS`, drawn with the seed 0; the release does not fix a split."""

PATHFINDER_LABELS = {'0': 0, '1': 1, '0.0': 0, '1.0': 1}

GREY_WEIGHTS = np.array([0.2989, 0.587, 0.114], np.float32)
"""Weights of red, green and blue."""


class Pathfinder(SequenceDataset):
    """Images of 32 x 32 grey values in which a dashed path connects two discs (class 1) or not.

    A sequence has the pixels row by row.

    Args:
        root: folder with `LEVEL/imgs/B/sample_I.png` and `LEVEL/metadata/B.npy`. Empty image files
            (the release has one) are left out and named.
        level: folder of the difficulty.
        split: 80, 10 and 10 % of the images, drawn with a fixed seed.
        cache: as in `SequenceDataset`.
    """

    CLASSES = ('separate', 'connected')

    def __init__(
        self,
        root: str | Path,
        split: str,
        level: str = 'curv_contour_length_14',
        cache: str | Path | None = None,
    ) -> None:
        self.level = level
        super().__init__(root, split, cache)

    def _files(self, split: str) -> list[Path]:
        images = [image for image, _ in self._rows(split)]
        return [*self._tables(), *images]

    def _tables(self) -> list[Path]:
        """Return the metadata files in the order of their numbers."""
        folder = self.root / self.level / 'metadata'
        tables = sorted(folder.glob('*.npy'), key=lambda path: natural_key(path.name))
        if not tables:
            raise UsageError(f'{folder}: expected files B.npy with the labels, got none')
        return tables

    def _rows(self, split: str) -> list[tuple[Path, str]]:
        """Return path and label of each image of a split."""
        rows = []
        for table in self._tables():
            for row in _metadata_rows(table):
                rows.append((self.root / self.level / row[0] / row[1], row[3]))
        order = np.random.Generator(np.random.PCG64(0)).permutation(len(rows))
        part = LRA_SPLITS.index(split)
        start = round(len(rows) * sum(PATHFINDER_SHARES[:part]))
        end = round(len(rows) * sum(PATHFINDER_SHARES[: part + 1]))
        return [rows[index] for index in sorted(order[start:end].tolist())]

    def _read(self, split: str) -> Iterator[Sample]:
        empty = []
        for path, label in self._rows(split):
            if path.stat().st_size == 0:
                empty.append(path)
                continue
            if label not in PATHFINDER_LABELS:
                raise UsageError(f'{path}: expected the label 0 or 1 in the metadata, got {label}')
            yield Sample((_grey_pixels(path),), PATHFINDER_LABELS[label])
        if empty:
            info(f'pathfinder-{split}: left out, empty files ({len(empty)}): {listed(empty)}')


def _metadata_rows(table: Path) -> list[list[str]]:
    """Read a metadata file: plain text in the release, an array from the generator.

    A row has folder, file, index and label of an image; the generator's parameters follow.
    """
    with table.open('rb') as file:
        is_array = file.read(6) == np.lib.format.MAGIC_PREFIX
    if is_array:
        return np.load(table, allow_pickle=False).astype(str).tolist()
    return [line.split() for line in table.read_text().splitlines()]


def _grey_pixels(path: Path) -> Tokens:
    """Return the grey values of an image row by row."""
    with Image.open(path) as image:
        if image.size != (IMAGE_SIDE, IMAGE_SIDE):
            raise UsageError(
                f'{path}: expected {IMAGE_SIDE} x {IMAGE_SIDE} pixels, '
                f'got {image.width} x {image.height}'
            )
        return np.asarray(image.convert('L')).ravel()


class GreyCIFAR(SequenceDataset):
    """CIFAR-10 in 32 x 32 grey values, row by row.

    The files are read by torchvision's `CIFAR10`, which compares their check sums. The last tenth
    of the training pictures is the dev split.

    Args:
        root: folder `cifar-10-batches-py` with the files of CIFAR-10's version for Python.
        split, cache: as in `SequenceDataset`.
    """

    CLASSES = (
        'airplane',
        'automobile',
        'bird',
        'cat',
        'deer',
        'dog',
        'frog',
        'horse',
        'ship',
        'truck',
    )

    def _files(self, split: str) -> list[Path]:
        from torchvision.datasets import CIFAR10

        if self.root.name != CIFAR10.base_folder:
            raise UsageError(
                f'{self.root}: expected a folder called {CIFAR10.base_folder}, got {self.root.name}'
            )
        names = [name for name, _ in CIFAR10.train_list + CIFAR10.test_list]
        return [self.root / name for name in (*names, CIFAR10.meta['filename'])]

    def _read(self, split: str) -> Iterator[Sample]:
        from torchvision.datasets import CIFAR10

        try:
            pictures = CIFAR10(self.root.parent, train=split != 'test')
        except RuntimeError as error:  # a check sum differs
            raise UsageError(f'{self.root}: {error}') from error
        first = 0
        last = len(pictures)
        number_of_train = round(0.9 * len(pictures))
        if split == 'train':
            last = number_of_train
        elif split == 'dev':
            first = number_of_train
        for index in range(first, last):
            yield Sample((grey_values(pictures.data[index]).ravel(),), pictures.targets[index])


def grey_values(pixels: Tokens) -> Tokens:
    """Return the grey values uint8 [...] of RGB pixels uint8 [..., 3].

    As TensorFlow's `rgb_to_grayscale`, which Skyformer uses: the weighted mean in [0, 1] in
    float32, times 255.5, rounded down.
    """
    scaled = pixels * np.float32(1 / 255)
    weighted = scaled * GREY_WEIGHTS
    grey = weighted[..., 0] + weighted[..., 1] + weighted[..., 2]
    return (grey * np.float32(255.5)).astype(np.uint8)
