"""Read pairs of papers as bytes, from `new_aan_pairs.{train,eval,test}.tsv`: label, two ids, two texts."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np

from mmpola.sequences.readers.byte_text import byte_tokens
from mmpola.sequences.readers.lines import rows
from mmpola.sequences.source import Findings, Sample, Source, existing

FILES = {
    'train': 'new_aan_pairs.train.tsv',
    'dev': 'new_aan_pairs.eval.tsv',
    'test': 'new_aan_pairs.test.tsv',
}

COLUMNS = 5

LABELS = {'0.0': 0, '1.0': 1, '0': 0, '1': 1}


def source(root: Path, split: str, max_length: int) -> Source:
    """Return the source of a split.

    Args:
        root: folder such as `tsv_data`.
        split: 'train', 'dev' or 'test'.
        max_length: longer texts are cut to this number of bytes.

    Raises:
        UsageError: the split has no file.
    """
    path = existing(root / FILES[split], split)
    return Source([path], partial(_read, path, max_length), path.stat().st_size, np.int16, (max_length,), unit='bytes')


def _read(path: Path, max_length: int, findings: Findings, advance: Callable[[int], None]) -> Iterator[Sample]:
    for number, (label, _, _, *texts) in rows(path, COLUMNS, findings, advance):
        try:
            first, second = (text_bytes(text) for text in texts)
        except (SyntaxError, ValueError):
            findings.refuse(f"{path}: expected texts, or literals b'…' that are complete", f'line {number}')
            continue
        if label not in LABELS:
            findings.refuse(f'{path}: expected the label 0.0 or 1.0', f'line {number} (got {label!r})')
        elif not first or not second:
            findings.refuse(f'{path}: expected two texts', f'line {number} (got an empty one)')
        else:
            pair = (byte_tokens(first, max_length), byte_tokens(second, max_length))
            yield Sample(pair, LABELS[label])


def text_bytes(cell: str) -> bytes:
    """Return the bytes of a text, which may be written as a Python literal: b'…' or b"…".

    Raises:
        SyntaxError, ValueError: a literal that is not complete.
    """
    if cell.startswith(("b'", 'b"')):
        return bytes(ast.literal_eval(cell))
    return cell.encode('utf-8', 'surrogateescape')
