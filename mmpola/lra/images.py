"""The Long Range Arena's tasks on images as sequences of grey values, from their official files."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from timm.utils.misc import natural_key

from mmpola.checkpoint.safe_load import read_pickle
from mmpola.lra.dataset import SequenceDataset
from mmpola.lra.source import SPLITS, Reading, Sample, Source, Tokens, existing
from mmpola.messages import UsageError, first_line, listed
from mmpola.registry import DATASETS

SIDE = 32
"""Pixels of an image's side."""

PATHFINDER_SHARES = (0.8, 0.1, 0.1)
"""Of the images, for `SPLITS`, drawn with the seed 0; the release does not fix a split."""

LEAST_COLUMNS = 4
"""Of a row of Pathfinder's metadata: folder, file, index, label; the generator's parameters follow."""

MAX_EMPTY = 16
"""Empty image files beyond this number are not the release's single one but an incomplete copy."""

GREY = (0.2989, 0.587, 0.114)
"""Weights of red, green and blue."""


class _Listed(NamedTuple):
    """A row of Pathfinder's metadata."""

    image: Path
    label: str
    place: str


@DATASETS.register_module()
class Pathfinder(SequenceDataset):
    """Images of 32 x 32 grey values, row by row, in which a dashed path connects two discs (class 1) or not.

    Args:
        root: with `LEVEL/imgs/B/sample_I.png` and `LEVEL/metadata/B.npy`. Empty image files are
            left out and named.
        level: folder of the difficulty.
        split: 80, 10 and 10 % of the images, drawn with a fixed seed.
        cache: as in `SequenceDataset`.
    """

    TASK = 'pathfinder'
    CLASSES = ('separate', 'connected')
    OTHER_ROOTS = ('pathfinder/pathfinder32',)
    PADDED = False

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
        images, metadata = (existing(level / name, split) for name in ('imgs', 'metadata'))
        tables = sorted(metadata.glob('*.npy'), key=lambda path: natural_key(path.name))
        if not tables:
            raise UsageError(f'{metadata}: expected files B.npy with the labels, got none')
        every = [row for table in tables for row in _listed_images(level, table)]
        ends = [0, *(round(len(every) * share) for share in np.cumsum(PATHFINDER_SHARES))]
        order = np.random.Generator(np.random.PCG64(0)).permutation(len(every))
        part = SPLITS.index(split)
        rows = [every[index] for index in sorted(order[ends[part] : ends[part + 1]].tolist())]
        present = {
            path for folder in images.iterdir() if folder.is_dir() for path in folder.iterdir()
        }
        unlisted = len(present) - len({row.image for row in every})
        notes = (
            [f'{images}: {unlisted} files are not listed in {metadata} and left out']
            if unlisted > 0
            else []
        )
        files = [*tables, *(row.image for row in rows if row.image in present)]
        return Source(
            files, partial(_read_pathfinder, tables, rows, present), options=(split,), notes=notes
        )


def _listed_images(folder: Path, table: Path) -> list[_Listed]:
    """Return the rows of a metadata file, which is plain text in the release and an array from the generator."""
    with table.open('rb') as file:
        is_array = file.read(6) == np.lib.format.MAGIC_PREFIX
    if is_array:
        try:
            array = np.load(table, allow_pickle=False)
        except (ValueError, EOFError) as error:
            raise UsageError(
                f'{table}: expected an array of text, got {first_line(error)}'
            ) from None
        rows = [
            [_text(cell) for cell in np.atleast_1d(row).tolist()] for row in np.atleast_1d(array)
        ]
    else:
        rows = [line.split() for line in table.read_text('utf-8', 'replace').splitlines()]
    for number, row in enumerate(rows, 1):
        if len(row) < LEAST_COLUMNS:
            raise UsageError(
                f'{table}: expected at least {LEAST_COLUMNS} columns, got {len(row)} in row {number}'
            )
    return [
        _Listed(folder / row[0] / row[1], row[3], f'row {number} of {table}')
        for number, row in enumerate(rows, 1)
    ]


def _text(value: object) -> str:
    return value.decode('utf-8', 'replace') if isinstance(value, bytes) else str(value)


def _read_pathfinder(
    tables: list[Path], rows: list[_Listed], present: set[Path], reading: Reading
) -> Iterator[Sample]:
    reading.advance(sum(table.stat().st_size for table in tables))
    for image, label, place in rows:
        folder = image.parent
        if image not in present:
            reading.refuse(
                f'{folder}: images that are listed but missing', f'{image.name} ({place})'
            )
            continue
        size = image.stat().st_size
        reading.advance(size)
        if label not in ('0', '1', '0.0', '1.0'):
            reading.refuse('Pathfinder: expected the label 0 or 1', f'{place} (got {label})')
        elif not size:
            reading.left_out.append((f'{folder}: left out, empty files', image.name))
        elif isinstance(pixels := _grey_pixels(image), str):
            reading.refuse(f'{folder}: images that cannot be read', f'{image.name} ({pixels})')
        else:
            yield Sample((pixels,), int(float(label)))
    if len(reading.left_out) > MAX_EMPTY:
        for _, name in reading.left_out:
            reading.refuse(f'Pathfinder: expected at most {MAX_EMPTY} empty image files', name)


def _grey_pixels(path: Path) -> Tokens | str:
    """Return the grey values [SIDE²] of an image row by row, or the reason why it cannot be read."""
    try:
        with Image.open(path) as image:
            if image.size != (SIDE, SIDE):
                return f'expected {SIDE} x {SIDE} pixels, got {image.width} x {image.height}'
            return np.asarray(image.convert('L')).ravel()
    except (
        Exception
    ) as error:  # decoders raise OSError, SyntaxError, ValueError and more for a broken file
        return first_line(error)


@DATASETS.register_module()
class GreyCIFAR(SequenceDataset):
    """CIFAR-10 in 32 x 32 grey values, row by row. The last tenth of the training pictures is the dev split.

    Args:
        root: with `data_batch_{1…5}` and `test_batch`, or the same with the suffix `.bin`. Absent
            training batches are left out, with a note.
        split, cache: as in `SequenceDataset`.
    """

    TASK = 'image'
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
    OTHER_ROOTS = ('cifar-10-batches-bin', 'cifar10/cifar-10-batches-py')
    PADDED = False

    def _source(self, split: str) -> Source:
        wanted = (
            ['test_batch']
            if split == 'test'
            else [f'data_batch_{number}' for number in range(1, 6)]
        )
        suffix = '.bin' if (self.root / f'{wanted[0]}.bin').is_file() else ''
        paths = [self.root / f'{name}{suffix}' for name in wanted]
        present = [path for path in paths if path.is_file()]
        if not present:
            names = listed(path.name for path in paths)
            raise UsageError(f'{self.root}: expected {names} for the {split} split, got none')
        absent = listed(path.name for path in paths if path not in present)
        notes = [f'{self.root}: left out, absent files: {absent}'] if absent else []
        return Source(present, partial(self._read, present, split), options=(split,), notes=notes)

    def _read(self, paths: list[Path], split: str, reading: Reading) -> Iterator[Sample]:
        pictures: list[Sample] = []
        for path in paths:
            pixels, labels = _read_binary(path) if path.suffix == '.bin' else _read_batch(path)
            reading.advance(path.stat().st_size)
            if wrong := np.flatnonzero((labels < 0) | (labels >= len(self.CLASSES))).tolist():
                reading.refuse(
                    f'{path}: expected labels 0 … {len(self.CLASSES) - 1}',
                    f'pictures {listed(wrong)}',
                )
            channels = pixels.reshape(-1, len(GREY), SIDE * SIDE).astype(np.float32)
            grey = np.rint(np.einsum('ncp,c->np', channels, np.array(GREY, np.float32))).astype(
                np.uint8
            )
            pictures += [
                Sample((row,), label) for row, label in zip(grey, labels.tolist(), strict=True)
            ]
        train = round(0.9 * len(pictures))
        yield from pictures[
            {'train': slice(train), 'dev': slice(train, None), 'test': slice(None)}[split]
        ]


def _read_batch(path: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return (pictures [N, 3072], red first, and labels) of a pickle, written by Python 2: its keys are bytes."""
    content = read_pickle(path, encoding='bytes')
    content = (
        {_text(key): value for key, value in content.items()} if isinstance(content, dict) else {}
    )
    pixels, labels = np.asarray(content.get('data')), np.asarray(content.get('labels'))
    if pixels.dtype != np.uint8 or pixels.shape != (
        len(labels) if labels.ndim else -1,
        len(GREY) * SIDE * SIDE,
    ):
        raise UsageError(f"{path}: expected a dict with 'data' uint8 [N, 3072] and 'labels' [N]")
    return pixels, labels.astype(np.int64)


def _read_binary(path: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return (pictures [N, 3072], red first, and labels) of a binary file: per picture a label and three channels."""
    size = 1 + len(GREY) * SIDE * SIDE
    data = np.frombuffer(path.read_bytes(), np.uint8)
    if not len(data) or len(data) % size:
        raise UsageError(f'{path}: expected a multiple of {size} bytes, got {len(data)}')
    pictures = data.reshape(-1, size)
    return pictures[:, 1:], pictures[:, 0].astype(np.int64)
