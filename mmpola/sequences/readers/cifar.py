"""Read CIFAR-10 as grey values, from its Python pickles (`cifar-10-batches-py`) or its binary files (`…-bin`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mmpola.checkpoint import CheckpointError
from mmpola.checkpoint.reading import read_pickle
from mmpola.messages import UsageError, listed
from mmpola.sequences.source import Findings, Sample, Source

CLASSES = ('airplane', 'automobile', 'bird', 'cat', 'deer', 'dog', 'frog', 'horse', 'ship', 'truck')

TRAINING = tuple(f'data_batch_{number}' for number in range(1, 6))

PIXELS = 1024
"""Per channel: 32 x 32."""

GREY = (0.2989, 0.587, 0.114)
"""Weights of red, green and blue."""

DEV_SHARE = 0.1
"""The last part of the training pictures is the dev split: 5,000 of 50,000."""


def source(root: Path, split: str) -> Source:
    """Return the source of a split.

    Args:
        root: folder of the batch files. Training batches that are absent are left out and noted.
        split: 'train', 'dev' or 'test'.

    Raises:
        UsageError: the split has no file.
    """
    wanted = ('test_batch',) if split == 'test' else TRAINING
    suffix = '.bin' if (root / f'{wanted[0]}.bin').is_file() else ''
    paths = [root / f'{name}{suffix}' for name in wanted]
    present = [path for path in paths if path.is_file()]
    if not present:
        raise UsageError(f'{root}: expected {listed(path.name for path in paths)} for the {split} split, got none')
    absent = listed(path.name for path in paths if path not in present)
    notes = [f'{root}: left out, absent files: {absent}'] if absent else []
    return Source(present, partial(_read, present, split), len(present), options=(split,), notes=notes)


def _read(paths: list[Path], split: str, findings: Findings, advance: Callable[[int], None]) -> Iterator[Sample]:
    batches = []
    for path in paths:
        pixels, labels = _read_binary(path) if path.suffix == '.bin' else _read_batch(path)
        advance(1)
        if wrong := [number for number, label in enumerate(labels.tolist()) if label not in range(len(CLASSES))]:
            findings.refuse(f'{path}: expected labels 0 … {len(CLASSES) - 1}', f'pictures {listed(wrong)}')
        batches += list(zip(grey(pixels), labels.tolist(), strict=True))
    train = round(len(batches) * (1 - DEV_SHARE))
    part = {'train': slice(train), 'dev': slice(train, None), 'test': slice(None)}[split]
    yield from (Sample((pixels,), label) for pixels, label in batches[part])


def grey(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Convert pictures [N, 3·1024], red first, to the nearest grey values [N, 1024]."""
    channels = pixels.reshape(-1, len(GREY), PIXELS).astype(np.float32)
    return np.rint(np.einsum('ncp,c->np', channels, np.array(GREY, np.float32))).astype(np.uint8)


def _read_batch(path: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return (pictures, labels) of a pickle, written by Python 2: its keys are bytes."""
    try:
        content = read_pickle(path, encoding='bytes')
    except CheckpointError as error:
        raise UsageError(str(error)) from None
    content = {_name(key): value for key, value in content.items()} if isinstance(content, dict) else {}
    pixels, labels = np.asarray(content.get('data')), np.asarray(content.get('labels'))
    if pixels.dtype != np.uint8 or pixels.shape != (len(labels) if labels.ndim else -1, len(GREY) * PIXELS):
        raise UsageError(f"{path}: expected a dict with 'data' uint8 [N, 3072] and 'labels' [N]")
    return pixels, labels.astype(np.int64)


def _name(key: object) -> object:
    return key.decode('latin1') if isinstance(key, bytes) else key


def _read_binary(path: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return (pictures, labels) of a binary file: per picture a label and three channels."""
    size = 1 + len(GREY) * PIXELS
    data = np.frombuffer(path.read_bytes(), np.uint8)
    if not len(data) or len(data) % size:
        raise UsageError(f'{path}: expected a multiple of {size} bytes, got {len(data)}')
    records = data.reshape(-1, size)
    return records[:, 1:], records[:, 0].astype(np.int64)
