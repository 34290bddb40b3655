"""Cache token sequences on disk as memory-mapped arrays, which are rebuilt when a source file changes.

A split is read from its official files once. Later runs, and the workers of a data loader, map the
arrays and share their pages of memory.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from mmpola.cache import complete_folder
from mmpola.lra.source import Reading, Sample, Source, Tokens
from mmpola.progress import progress

FORMAT = 1
"""Increase it when the same files give other tokens or other arrays: older caches are then not used."""

RECORD, TOKENS, TABLES = 'record.json', 'tokens.bin', ('ends', 'members', 'labels')
"""The files of a cache: a record, the tokens without a header, and tables with the suffix .npy."""


class TokenStore:
    """The cached samples of a split; pickling it, for a worker, hands over the folder and not the arrays.

    Args:
        folder: written by `cached`.

    Attributes:
        left_out: what of the source was left out, one line per kind.
        arrays: `tokens` [sum of lengths], `ends` [sequences], `members` [N, 1 or 2] (sequence
            numbers), `labels` [N].
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        record = json.loads((folder / RECORD).read_text())
        self.left_out: list[str] = record['left_out']
        self.arrays: dict[str, Any] = {'tokens': np.memmap(folder / TOKENS, record['dtype'], 'r')}
        for name in TABLES:
            self.arrays[name] = np.load(folder / f'{name}.npy', mmap_mode='r')

    def __reduce__(self) -> tuple[type[TokenStore], tuple[Path]]:
        return TokenStore, (self.folder,)

    def __len__(self) -> int:
        return len(self.arrays['labels'])

    def __getitem__(self, index: int) -> Sample:
        """Return a sample; its arrays are copies."""
        sequences = tuple(
            self._sequence(number) for number in self.arrays['members'][index].tolist()
        )
        return Sample(sequences, int(self.arrays['labels'][index]))

    def _sequence(self, number: int) -> Tokens:
        ends = self.arrays['ends']
        start = ends[number - 1] if number else 0
        return np.array(self.arrays['tokens'][start : ends[number]])


def cached(source: Source, name: str, cache: Path) -> TokenStore:
    """Open the cached samples of a source, after reading it if its files, or their times or sizes, have changed.

    Of several processes one reads, the others wait for it.

    Args:
        source: the split.
        name: of the split, for the progress bar and the cache's folder.
        cache: folder of all caches.

    Raises:
        UsageError: the content of the files is invalid; the message lists every problem.
        OSError: the cache cannot be written.
    """
    place = _digest(
        [FORMAT, name, source.options, [os.path.abspath(path) for path in source.files]]
    )
    folder = cache / f'{name}-{place}-{_digest([_state(path) for path in source.files])}'
    if not (folder / RECORD).is_file():
        cache.mkdir(parents=True, exist_ok=True)
        with FileLock(cache / f'{name}-{place}.lock'):
            if not (folder / RECORD).is_file():
                _write(source, name, folder)
                for older in cache.glob(f'{name}-{place}-*'):
                    if older != folder:  # arrays that a running training has mapped stay readable
                        shutil.rmtree(older)
    return TokenStore(folder)


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]


def _state(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns


def _write(source: Source, name: str, folder: Path) -> None:
    """Read the source into a folder, which gets its name when it is complete.

    Equal sequences are stored once: documents recur in many pairs.
    """
    numbers: dict[bytes, int] = {}
    ends: list[int] = []
    members: list[list[int]] = []
    labels: list[int] = []
    size = sum(path.stat().st_size for path in source.files)
    with complete_folder(folder) as partial:
        shown = progress(f'reading {name}', max(1, size), unit=' kB', size=1000)
        with (partial / TOKENS).open('wb') as file, shown as advance:
            reading = Reading(advance)
            for sequences, label in source.read(reading):
                members.append([])
                for tokens in sequences:
                    content = np.ascontiguousarray(tokens, source.dtype).tobytes()
                    number = numbers.setdefault(
                        hashlib.blake2b(content, digest_size=16).digest(), len(numbers)
                    )
                    if number == len(ends):
                        file.write(content)
                        ends.append((ends[-1] if ends else 0) + len(tokens))
                    members[-1].append(number)
                labels.append(label)
        if not labels and not reading.broken:
            reading.refuse(f'{source.files[0]}: expected at least one sample', 'got none')
        for table, values in zip(TABLES, (ends, members, labels), strict=True):
            np.save(partial / f'{table}.npy', np.array(values, np.int64))
        record = {'left_out': reading.checked(), 'dtype': np.dtype(source.dtype).name}
        (partial / RECORD).write_text(json.dumps(record))
