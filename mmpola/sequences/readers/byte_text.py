"""Read IMDB reviews as bytes, from `aclImdb/{train,test}/{neg,pos}/ID_RATING.txt`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
from timm.utils.misc import natural_key

from mmpola.sequences.source import Findings, Sample, Source, Tokens, existing

FOLDERS = {'train': 'train', 'dev': 'test', 'test': 'test'}
"""The original release has no dev split: it uses the test split."""

CLASSES = ('neg', 'pos')

REVIEW = re.compile(r'\d+_\d+\.txt')


def byte_tokens(text: bytes, max_length: int) -> Tokens:
    """Return the first bytes of a text as tokens: the byte's value + 1, because 0 is padding."""
    return np.frombuffer(text[:max_length], np.uint8).astype(np.int16) + 1


def source(root: Path, split: str, max_length: int) -> Source:
    """Return the source of a split.

    Args:
        root: the folder `aclImdb`.
        split: 'train', 'dev' or 'test'.
        max_length: longer texts are cut to this number of bytes.

    Raises:
        UsageError: a folder of the split does not exist.
    """
    folders = [existing(root / FOLDERS[split] / name, split) for name in CLASSES]
    reviews: list[tuple[Path, int]] = []
    others: list[Path] = []
    for label, folder in enumerate(folders):
        for path in sorted(folder.iterdir(), key=lambda path: natural_key(path.name)):
            if REVIEW.fullmatch(path.name):
                reviews.append((path, label))
            elif not path.name.startswith('.'):
                others.append(path)
    read = partial(_read, reviews, others, folders, max_length)
    notes = [f'{root}: the test split serves as dev split, as in the original release'] if split == 'dev' else []
    return Source([*(path for path, _ in reviews), *others], read, len(reviews), np.int16, (max_length,), notes)


def _read(
    reviews: list[tuple[Path, int]],
    others: list[Path],
    folders: list[Path],
    max_length: int,
    findings: Findings,
    advance: Callable[[int], None],
) -> Iterator[Sample]:
    for path in others:
        findings.left_out.append((f'{path.parent}: left out, not called ID_RATING.txt', path.name))
    for label, folder in enumerate(folders):
        if not any(label == other for _, other in reviews):
            findings.refuse(f'{folder}: expected reviews called ID_RATING.txt', 'got none')
    for path, label in reviews:
        advance(1)
        if text := path.read_bytes():
            yield Sample((byte_tokens(text, max_length),), label)
        else:
            findings.refuse(f'{path.parent}: expected a text in every file', f'{path.name} (empty file)')
