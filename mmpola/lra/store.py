"""Cache token sequences on disk as memory-mapped arrays, rebuilt when a source file changes.

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
from mmpola.messages import grouped
from mmpola.progress import progress

CACHE_FORMAT = 1
"""Increase it when the same files give other tokens or arrays: older caches are not used then."""

RECORD_FILE = 'record.json'
TOKENS_FILE = 'tokens.bin'
"""The tokens of all sequences, without a header."""


class TokenStore:
    """The cached samples of a split.

    Pickling a store, for a worker, hands over its folder and not the arrays.

    Args:
        folder: written by `open_cached`.

    Attributes:
        left_out: what of the source was left out, one line per kind.
        tokens: tokens of all sequences.
        ends: int64 [sequences], where each sequence ends in `tokens`.
        members: int64 [N, 1 or 2], the numbers of each sample's sequences.
        labels: int64 [N].
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        record = json.loads((folder / RECORD_FILE).read_text())
        self.left_out: list[str] = record['left_out']
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


def open_cached(source: Source, name: str, cache: Path) -> TokenStore:
    """Open the cached samples of a source; read it first if its files are new or have changed.

    A file has changed if its time or size has. If several processes open the same source, one reads
    and the others wait for it.

    Args:
        source: the split.
        name: name of the split, for the progress bar and the cache's folder.
        cache: folder of all caches.

    Raises:
        UsageError: the content of the files is invalid; the message lists every problem.
        OSError: the cache cannot be written.
    """
    paths = [os.path.abspath(path) for path in source.files]
    place = f'{name}-{_digest([CACHE_FORMAT, name, source.options, paths])}'
    states = []
    for path in source.files:
        status = path.stat()
        states.append((status.st_size, status.st_mtime_ns))
    folder = cache / f'{place}-{_digest(states)}'
    if not (folder / RECORD_FILE).is_file():
        cache.mkdir(parents=True, exist_ok=True)
        with FileLock(cache / f'{place}.lock'):
            if not (folder / RECORD_FILE).is_file():  # another process may have written it
                _write_store(source, name, folder)
                for older in cache.glob(f'{place}-*'):
                    if older != folder:  # arrays that a running training has mapped stay readable
                        shutil.rmtree(older)
    return TokenStore(folder)


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]


def _write_store(source: Source, name: str, folder: Path) -> None:
    """Read the source into a folder, which gets its name when it is complete.

    Equal sequences are stored once: documents recur in many pairs.
    """
    numbers: dict[bytes, int] = {}  # digest of a sequence -> its number
    ends: list[int] = []
    members: list[list[int]] = []
    labels: list[int] = []
    written = 0
    size = sum(path.stat().st_size for path in source.files)
    with complete_folder(folder) as partial:
        shown = progress(f'reading {name}', max(1, size), unit=' kB', size=1000)
        with (partial / TOKENS_FILE).open('wb') as file, shown as advance:
            reading = Reading(advance)
            for sample in source.read(reading):
                sample_members = []
                for tokens in sample.sequences:
                    content = np.ascontiguousarray(tokens, source.dtype).tobytes()
                    digest = hashlib.blake2b(content, digest_size=16).digest()
                    if digest not in numbers:
                        numbers[digest] = len(numbers)
                        file.write(content)
                        written += len(tokens)
                        ends.append(written)
                    sample_members.append(numbers[digest])
                members.append(sample_members)
                labels.append(sample.label)
        if not labels and not reading.broken:
            reading.refuse(f'{source.files[0]}: expected at least one sample', 'got none')
        reading.raise_if_broken()
        np.save(partial / 'ends.npy', np.array(ends, np.int64))
        np.save(partial / 'members.npy', np.array(members, np.int64))
        np.save(partial / 'labels.npy', np.array(labels, np.int64))
        record = {'left_out': grouped(reading.left_out), 'dtype': np.dtype(source.dtype).name}
        (partial / RECORD_FILE).write_text(json.dumps(record))
