"""Read ListOps: nested operations on lists of digits, in `basic_{train,val,test}.tsv`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np

from mmpola.sequences.readers.lines import rows
from mmpola.sequences.source import Findings, Sample, Source, existing

FILES = {'train': 'basic_train.tsv', 'dev': 'basic_val.tsv', 'test': 'basic_test.tsv'}

HEADER = ['Source', 'Target']

DIGITS = tuple('0123456789')
OPERATORS = ('[MIN', '[MAX', '[MED', '[SM')
CLOSING = ']'

TOKENS = {token: number for number, token in enumerate((*DIGITS, *OPERATORS, CLOSING), 1)}
"""Token -> id; 0 is padding."""


def source(root: Path, split: str, brackets: bool) -> Source:
    """Return the source of a split.

    Args:
        root: folder such as `listops-1000`.
        split: 'train', 'dev' or 'test'.
        brackets: keep the closing brackets. Without them, as in Skyformer's tokenizer, the nesting is lost.

    Raises:
        UsageError: the split has no file.
    """
    path = existing(root / FILES[split], split)
    return Source([path], partial(_read, path, brackets), path.stat().st_size, options=(brackets,), unit='bytes')


def _read(path: Path, brackets: bool, findings: Findings, advance: Callable[[int], None]) -> Iterator[Sample]:
    for number, (text, target) in rows(path, len(HEADER), findings, advance):
        if number == 1:
            if [text, target] != HEADER:
                findings.refuse(f'{path}: expected the header Source, Target', f'line 1 (got {text[:40]}, {target})')
            continue
        words = text.replace('(', ' ').replace(')', ' ').split()
        if not brackets:
            words = [word for word in words if word != CLOSING]
        try:
            ids = np.array([TOKENS[word] for word in words], np.uint8)
        except KeyError as error:
            findings.refuse(f'{path}: expected tokens of {" ".join(TOKENS)}', f'line {number} (got {error.args[0]})')
            continue
        if target not in DIGITS:
            findings.refuse(f'{path}: expected a digit as target', f'line {number} (got {target!r})')
        elif not len(ids):
            findings.refuse(f'{path}: expected tokens in the column Source', f'line {number} (got none)')
        else:
            yield Sample((ids,), int(target))
