"""The Long Range Arena's tasks on images as sequences of grey values, from their official files."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image
from timm.utils.misc import natural_key

from mmpola.lra.dataset import SequenceDataset
from mmpola.lra.source import LRA_SPLITS, Reading, Sample, Source, Tokens, existing
from mmpola.messages import UsageError, first_line, listed
from mmpola.registry import DATASETS

IMAGE_SIDE = 32
"""Pixels of an image's side."""

PATHFINDER_SHARES = (0.8, 0.1, 0.1)
"""Shares of the images in `LRA_SPLITS`, drawn with the seed 0; the release does not fix a split."""

LEAST_COLUMNS = 4
"""Columns that a row of Pathfinder's metadata must have: folder, file, index, label. The parameters
of the generator follow."""

PATHFINDER_LABELS = {'0': 0, '1': 1, '0.0': 0, '1.0': 1}

MAX_EMPTY = 16
"""The release has one empty image file; a copy with more of them than this is incomplete."""

GREY_WEIGHTS = np.array([0.2989, 0.587, 0.114], np.float32)
"""Weights of red, green and blue."""


@DATASETS.register_module()
class Pathfinder(SequenceDataset):
    """Images of 32 x 32 grey values in which a dashed path connects two discs (class 1) or not.

    A sequence has the pixels row by row.

    Args:
        root: folder with `LEVEL/imgs/B/sample_I.png` and `LEVEL/metadata/B.npy`. Empty image files
            are left out and named.
        level: folder of the difficulty.
        split: 80, 10 and 10 % of the images, drawn with a fixed seed.
        cache: as in `SequenceDataset`.
    """

    CLASSES = ('separate', 'connected')
    OTHER_ROOTS = ('pathfinder/pathfinder32',)

    def __init__(
        self,
        root: str | Path,
        split: str,
        level: str = 'curv_contour_length_14',
        cache: str | Path | None = None,
    ) -> None:
        self.level = level
        super().__init__(root, split, cache)

    def _source(self, split: str) -> Source:
        level = self.root / self.level
        images = existing(level / 'imgs', split)
        metadata = existing(level / 'metadata', split)
        tables = sorted(metadata.glob('*.npy'), key=lambda path: natural_key(path.name))
        if not tables:
            raise UsageError(f'{metadata}: expected files B.npy with the labels, got none')
        rows = []
        for table in tables:
            rows += _metadata_rows(level, table)

        order = np.random.Generator(np.random.PCG64(0)).permutation(len(rows))
        part = LRA_SPLITS.index(split)
        start = round(len(rows) * sum(PATHFINDER_SHARES[:part]))
        end = round(len(rows) * sum(PATHFINDER_SHARES[: part + 1]))
        split_rows = [rows[index] for index in sorted(order[start:end].tolist())]

        present: set[Path] = set()
        for folder in images.iterdir():
            if folder.is_dir():
                present.update(folder.iterdir())
        notes = []
        unlisted = len(present) - len({row.image for row in rows})
        if unlisted > 0:
            notes.append(f'{images}: {unlisted} files are not listed in {metadata} and left out')
        files = tables + [row.image for row in split_rows if row.image in present]
        read = partial(_read_pathfinder, tables, split_rows, present)
        return Source(files, read, options=(split,), notes=notes)


class _MetadataRow(NamedTuple):
    """A row of Pathfinder's metadata; `place` names the row and its file."""

    image: Path
    label: str
    place: str


def _metadata_rows(level: Path, table: Path) -> list[_MetadataRow]:
    """Read a metadata file: plain text in the release, an array from the generator."""
    with table.open('rb') as file:
        is_array = file.read(6) == np.lib.format.MAGIC_PREFIX
    rows = []
    if is_array:
        try:
            array = np.load(table, allow_pickle=False)
        except (ValueError, EOFError) as error:
            raise UsageError(
                f'{table}: expected an array of text, got {first_line(error)}'
            ) from None
        for cells in np.atleast_1d(array):
            rows.append([_text(cell) for cell in np.atleast_1d(cells).tolist()])
    else:
        for line in table.read_text('utf-8', 'replace').splitlines():
            rows.append(line.split())
    found = []
    for number, row in enumerate(rows, 1):
        if len(row) < LEAST_COLUMNS:
            raise UsageError(
                f'{table}: expected at least {LEAST_COLUMNS} columns, '
                f'got {len(row)} in row {number}'
            )
        image = level / row[0] / row[1]
        found.append(_MetadataRow(image, row[3], f'row {number} of {table}'))
    return found


def _text(value: object) -> str:
    if isinstance(value, bytes):
        return value.decode('utf-8', 'replace')
    return str(value)


def _read_pathfinder(
    tables: list[Path], rows: list[_MetadataRow], present: set[Path], reading: Reading
) -> Iterator[Sample]:
    reading.advance(sum(table.stat().st_size for table in tables))
    empty = []
    for image, label, place in rows:
        folder = image.parent
        if image not in present:
            rule = f'{folder}: images that are listed but missing'
            reading.refuse(rule, f'{image.name} ({place})')
            continue
        size = image.stat().st_size
        reading.advance(size)
        if label not in PATHFINDER_LABELS:
            reading.refuse('Pathfinder: expected the label 0 or 1', f'{place} (got {label})')
            continue
        if size == 0:
            reading.leave_out(f'{folder}: left out, empty files', image.name)
            empty.append(image.name)
            continue
        try:
            pixels = _grey_pixels(image)
        except Exception as error:  # decoders raise OSError, SyntaxError, ValueError and more
            rule = f'{folder}: images that cannot be read'
            reading.refuse(rule, f'{image.name} ({first_line(error)})')
            continue
        yield Sample((pixels,), PATHFINDER_LABELS[label])
    if len(empty) > MAX_EMPTY:
        for name in empty:
            reading.refuse(f'Pathfinder: expected at most {MAX_EMPTY} empty image files', name)


def _grey_pixels(path: Path) -> Tokens:
    """Return the grey values of an image row by row."""
    with Image.open(path) as image:
        if image.size != (IMAGE_SIDE, IMAGE_SIDE):
            raise ValueError(
                f'expected {IMAGE_SIDE} x {IMAGE_SIDE} pixels, got {image.width} x {image.height}'
            )
        return np.asarray(image.convert('L')).ravel()


@DATASETS.register_module()
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
    OTHER_ROOTS = ('cifar10/cifar-10-batches-py',)

    def _source(self, split: str) -> Source:
        from torchvision.datasets import CIFAR10

        if self.root.name != CIFAR10.base_folder:
            raise UsageError(
                f'{self.root}: expected a folder called {CIFAR10.base_folder}, got {self.root.name}'
            )
        files = [self.root / name for name in _cifar_check_sums()]
        missing = [path.name for path in files if not path.is_file()]
        if missing:
            raise UsageError(
                f'{self.root}: expected the files of CIFAR-10, got no {listed(missing)}'
            )
        return Source(files, partial(self._read, files, split), options=(split,))

    def _read(self, files: list[Path], split: str, reading: Reading) -> Iterator[Sample]:
        from torchvision.datasets import CIFAR10
        from torchvision.datasets.utils import check_integrity

        try:
            pictures = CIFAR10(self.root.parent, train=split != 'test')
        except RuntimeError:  # a check sum differs
            for name, md5 in _cifar_check_sums().items():
                if not check_integrity(self.root / name, md5):
                    reading.refuse(f'{self.root}: expected the check sums of CIFAR-10', name)
            return
        reading.advance(sum(path.stat().st_size for path in files))
        first = 0
        last = len(pictures)
        number_of_train = round(0.9 * len(pictures))
        if split == 'train':
            last = number_of_train
        elif split == 'dev':
            first = number_of_train
        for index in range(first, last):
            pixels = pictures.data[index].reshape(-1, 3).astype(np.float32)
            weighted = GREY_WEIGHTS * pixels
            grey = weighted[:, 0] + weighted[:, 1] + weighted[:, 2]
            yield Sample((np.rint(grey).astype(np.uint8),), pictures.targets[index])


def _cifar_check_sums() -> dict[str, str]:
    """Return the MD5 check sum of each file of CIFAR-10."""
    from torchvision.datasets import CIFAR10

    sums = dict(CIFAR10.train_list + CIFAR10.test_list)
    sums[CIFAR10.meta['filename']] = CIFAR10.meta['md5']
    return sums
