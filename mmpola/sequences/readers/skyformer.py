"""Read the pickles of Skyformer's implementation, `lra-TASK.{train,dev,test}.pickle`: lists of dicts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from mmpola.checkpoint import CheckpointError
from mmpola.checkpoint.reading import read_pickle
from mmpola.messages import UsageError, listed
from mmpola.sequences.source import Findings, Sample, Source, Tokens

KEYS = ('input_ids_0', 'input_ids_1')


def source(root: Path, task: str, split: str, *, pair: bool, padded: bool, classes: int) -> Source | None:
    """Return the source of a split; None if the folder has no such pickle of the task, of any split.

    Args:
        root: folder of the pickles.
        task: what the names begin with after `lra-`, such as 'pathfinder'.
        split: 'train', 'dev' or 'test'.
        pair: a sample has two sequences.
        padded: zeros at the end of a sequence are padding. Of images they are black pixels.
        classes: number of labels.

    Raises:
        UsageError: the folder has pickles of the task, but not one of this split.
    """
    if not any(root.glob(f'lra-{task}*.pickle')):
        return None
    paths = sorted(root.glob(f'lra-{task}*.{split}.pickle'))
    if len(paths) != 1:
        got = listed(path.name for path in paths) or 'none'
        raise UsageError(f'{root}: expected one file lra-{task}*.{split}.pickle, got {got}')
    return Source(paths, partial(_read, paths[0], pair, padded, classes), 1, np.int16, (pair, padded))


def _read(
    path: Path, pair: bool, padded: bool, classes: int, findings: Findings, advance: Callable[[int], None]
) -> Iterator[Sample]:
    try:
        content = read_pickle(path)
    except CheckpointError as error:
        raise UsageError(str(error)) from None
    keys = KEYS if pair else KEYS[:1]
    if not isinstance(content, list):
        raise UsageError(f'{path}: expected a list of dicts, got {type(content).__name__}')
    for number, item in enumerate(content):
        try:
            sequences = tuple(_tokens(item[key], padded) for key in keys)
            label = int(item['label'])
        except (KeyError, TypeError, ValueError):
            findings.refuse(f'{path}: expected dicts of {", ".join(keys)} and label', f'item {number}')
            continue
        if not all(map(len, sequences)):
            findings.refuse(f'{path}: expected tokens in every sequence', f'item {number} (got padding alone)')
        elif label not in range(classes):
            findings.refuse(f'{path}: expected labels 0 … {classes - 1}', f'item {number} (got {label})')
        else:
            yield Sample(sequences, label)
    advance(1)


def _tokens(values: Any, padded: bool) -> Tokens:
    """Return token ids without the padding at their end.

    Raises:
        ValueError: they are not a sequence of ids from 0 to 32767.
    """
    ids = np.asarray(values)
    if ids.ndim != 1 or ids.dtype.kind not in 'iu' or (ids.size and (ids.min() < 0 or ids.max() > np.iinfo('i2').max)):
        raise ValueError('not token ids')
    return np.trim_zeros(ids, 'b') if padded else ids
