"""Cache token sequences on disk as memory-mapped arrays, rebuilt when a source file changes.

A split is read from its official files once. Later runs, and the workers of a data loader, map the
arrays and share their pages of memory.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray
from rich.progress import track

from mmpola.files import complete_folder
from mmpola.messages import UsageError

Tokens = NDArray[Any]
"""A sequence of tokens: uint8 or int16 [n]."""

CACHE_FORMAT = 2
"""Increase it when the same files give other tokens or arrays: older caches are not used then."""

RECORD_FILE = 'record.json'
TOKENS_FILE = 'tokens.bin'
"""The tokens of all sequences, without a header."""


class Sample(NamedTuple):
    """The token sequences of a sample, two for a pair of documents, and its label."""

    sequences: tuple[Tokens, ...]
    label: int


class TokenStore:
    """The cached samples of a split.

    Pickling a store, for a worker, hands over its folder and not the arrays.

    Args:
        folder: written by `open_cached`.

    Attributes:
        tokens: tokens of all sequences.
        ends: int64 [sequences], where each sequence ends in `tokens`.
        members: int64 [N, 1 or 2], the numbers of each sample's sequences.
        labels: int64 [N].
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        record = json.loads((folder / RECORD_FILE).read_text())
        self.tokens: Any = np.memmap(folder / TOKENS_FILE, record['dtype'], 'r')
        self.ends = np.load(folder / 'ends.npy', mmap_mode='r')
        self.members = np.load(folder / 'members.npy', mmap_mode='r')
        self.labels = np.load(folder / 'labels.npy', mmap_mode='r')

    def __reduce__(self) -> tuple[type[TokenStore], tuple[Path]]:
        return TokenStore, (self.folder,)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Sample:
        """Return a sample; its arrays are copies."""
        sequences = [self._sequence(number) for number in self.members[index].tolist()]
        return Sample(tuple(sequences), int(self.labels[index]))

    def _sequence(self, number: int) -> Tokens:
        start = 0 if number == 0 else self.ends[number - 1]
        return np.array(self.tokens[start : self.ends[number]])


def open_cached(
    name: str,
    files: list[Path],
    read: Callable[[], Iterable[Sample]],
    *,
    dtype: type[np.generic],
    options: tuple[Any, ...],
    cache: Path,
) -> TokenStore:
    """Open the cached samples of a split; read it first if its files are new or have changed.

    A file has changed if its time or size has. If several processes open the same split, one reads
    and the others wait for it.

    Args:
        name: name of the split, for the progress bar and the cache's folder.
        files: all files that are read.
        read: yields the samples in a fixed order.
        dtype: dtype of the tokens.
        options: everything else on which the samples depend, in values that JSON knows.
        cache: folder of all caches.

    Raises:
        UsageError: a file is missing, or `read` refuses its content.
        OSError: the cache cannot be written.
    """
    paths = [os.path.abspath(path) for path in files]
    place = f'{name}-{_digest([CACHE_FORMAT, name, options, paths])}'
    states = []
    for path in files:
        try:
            status = path.stat()
        except FileNotFoundError:
            raise UsageError(f'{path}: expected a file of {name}, got no such file') from None
        states.append((status.st_size, status.st_mtime_ns))
    folder = cache / f'{place}-{_digest(states)}'
    if not (folder / RECORD_FILE).is_file():
        cache.mkdir(parents=True, exist_ok=True)
        with FileLock(cache / f'{place}.lock'):
            if not (folder / RECORD_FILE).is_file():  # another process may have written it
                _write_store(track(read(), f'reading {name}'), dtype, folder)
                for older in cache.glob(f'{place}-*'):
                    if older != folder:  # arrays that a running training has mapped stay readable
                        shutil.rmtree(older)
    return TokenStore(folder)


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]


def _write_store(samples: Iterable[Sample], dtype: type[np.generic], folder: Path) -> None:
    """Write samples into a folder, which gets its name when it is complete.

    Equal sequences are stored once: documents recur in many pairs.
    """
    numbers: dict[bytes, int] = {}  # digest of a sequence -> its number
    ends: list[int] = []
    members: list[list[int]] = []
    labels: list[int] = []
    written = 0
    with complete_folder(folder) as partial:
        with (partial / TOKENS_FILE).open('wb') as file:
            for sample in samples:
                sample_members = []
                for tokens in sample.sequences:
                    content = np.ascontiguousarray(tokens, dtype).tobytes()
                    digest = hashlib.blake2b(content, digest_size=16).digest()
                    if digest not in numbers:
                        numbers[digest] = len(numbers)
                        file.write(content)
                        written += len(tokens)
                        ends.append(written)
                    sample_members.append(numbers[digest])
                members.append(sample_members)
                labels.append(sample.label)
        if not labels:
            raise UsageError(f'{folder.name}: expected at least one sample, got none')
        np.save(partial / 'ends.npy', np.array(ends, np.int64))
        np.save(partial / 'members.npy', np.array(members, np.int64))
        np.save(partial / 'labels.npy', np.array(labels, np.int64))
        (partial / RECORD_FILE).write_text(json.dumps({'dtype': np.dtype(dtype).name}))
