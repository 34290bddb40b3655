"""Read Pathfinder's images as grey values: `LEVEL/imgs/B/sample_I.png`, with labels in `LEVEL/metadata/B.npy`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image
from timm.utils.misc import natural_key

from mmpola.checkpoint import CheckpointError
from mmpola.checkpoint.reading import read_array
from mmpola.messages import UsageError
from mmpola.sequences.source import SPLITS, Findings, Sample, Source, Tokens, existing

SIDE = 32
"""Pixels of an image's side."""

SHARES = (0.8, 0.1, 0.1)
"""Of the images, for `SPLITS`; the release does not fix a split."""

SPLIT_SEED = 0

LEAST_COLUMNS = 4
"""Of a metadata row: folder, file, index, label; the generator's parameters follow."""

MAX_EMPTY = 16
"""Empty image files beyond this number are not the release's single one but an incomplete copy."""


class Listed(NamedTuple):
    """A row of the metadata."""

    image: Path
    label: str
    place: str


def source(root: Path, split: str, level: str) -> Source:
    """Return the source of a split: 80, 10 and 10 % of the images, drawn with a fixed seed.

    Args:
        root: the folder `pathfinder32`.
        split: 'train', 'dev' or 'test'.
        level: folder of the difficulty, such as `curv_contour_length_14`.

    Raises:
        UsageError: the folder does not exist or its metadata cannot be read.
    """
    images, metadata = (existing(root / level / name, split) for name in ('imgs', 'metadata'))
    tables = sorted(metadata.glob('*.npy'), key=lambda path: natural_key(path.name))
    if not tables:
        raise UsageError(f'{metadata}: expected files B.npy with the labels, got none')
    listed = [row for table in tables for row in _listed(root / level, table)]
    chosen = [listed[index] for index in _indices(len(listed), split)]
    present = {folder.name: {path.name for path in folder.iterdir()} for folder in images.iterdir() if folder.is_dir()}
    found = [row for row in chosen if row.image.name in present.get(row.image.parent.name, ())]
    absent = [row for row in chosen if row.image.name not in present.get(row.image.parent.name, ())]
    unlisted = sum(map(len, present.values())) - len({row.image for row in listed})
    notes = [f'{images}: {unlisted} files are not listed in {metadata} and left out'] if unlisted > 0 else []
    files = [*tables, *(row.image for row in found)]
    return Source(files, partial(_read, found, absent), max(1, len(found)), options=(split,), notes=notes)


def _indices(number: int, split: str) -> list[int]:
    """Return the sorted indices of a split."""
    ends = [0, *(round(number * share) for share in np.cumsum(SHARES))]
    place = SPLITS.index(split)
    order = np.random.Generator(np.random.PCG64(SPLIT_SEED)).permutation(number)
    return sorted(order[ends[place] : ends[place + 1]].tolist())


def _listed(folder: Path, table: Path) -> list[Listed]:
    """Return the rows of a metadata file, which is plain text in the release and an array from the generator."""
    with table.open('rb') as file:
        is_array = file.read(6) == np.lib.format.MAGIC_PREFIX
    if is_array:
        try:
            array = read_array(table)
        except CheckpointError as error:
            raise UsageError(str(error)) from None
        rows = [[_text(cell) for cell in row] for row in array.tolist()] if array.ndim > 1 else array.tolist()
    else:
        rows = [line.split() for line in table.read_text('utf-8', 'replace').splitlines()]
    for number, row in enumerate(rows, 1):
        if not isinstance(row, list) or len(row) < LEAST_COLUMNS:
            got = len(row) if isinstance(row, list) else 1
            raise UsageError(f'{table}: expected at least {LEAST_COLUMNS} columns, got {got} in row {number}')
    return [Listed(folder / row[0] / row[1], row[3], f'row {number} of {table}') for number, row in enumerate(rows, 1)]


def _text(cell: object) -> str:
    return cell.decode('utf-8', 'replace') if isinstance(cell, bytes) else str(cell)


def _read(
    found: list[Listed], absent: list[Listed], findings: Findings, advance: Callable[[int], None]
) -> Iterator[Sample]:
    for row in absent:
        findings.refuse(f'{row.image.parent}: images that are listed but missing', f'{row.image.name} ({row.place})')
    for row in found:
        advance(1)
        if row.label not in ('0', '1', '0.0', '1.0'):
            findings.refuse('Pathfinder: expected the label 0 or 1', f'{row.place} (got {row.label})')
        elif not row.image.stat().st_size:
            findings.left_out.append((f'{row.image.parent}: left out, empty files', row.image.name))
        elif isinstance(pixels := read_pixels(row.image), str):
            findings.refuse(f'{row.image.parent}: images that cannot be read', f'{row.image.name} ({pixels})')
        else:
            yield Sample((pixels,), int(float(row.label)))
    if len(findings.left_out) > MAX_EMPTY:
        for _, name in findings.left_out:
            findings.refuse(f'Pathfinder: expected at most {MAX_EMPTY} empty image files', name)


def read_pixels(path: Path) -> Tokens | str:
    """Return the grey values [SIDE²] of an image row by row, or the reason why it cannot be read."""
    try:
        with Image.open(path) as image:
            if image.size != (SIDE, SIDE):
                return f'expected {SIDE} x {SIDE} pixels, got {image.width} x {image.height}'
            return np.asarray(image.convert('L')).ravel()
    except Exception as error:  # decoders raise OSError, SyntaxError, ValueError and more for a broken file
        return str(error).splitlines()[0] if str(error) else type(error).__name__
