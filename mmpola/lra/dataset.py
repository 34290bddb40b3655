"""What the data sets of the Long Range Arena share: their folders, the cache, and Skyformer's pickles."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mmengine.structures import BaseDataElement
from torch.utils.data import Dataset

from mmpola.cache import cache_folder
from mmpola.checkpoint.safe_load import read_pickle
from mmpola.lra.source import SPLITS, Reading, Sample, Source, Tokens
from mmpola.lra.store import cached
from mmpola.messages import UsageError, info, listed


class SequenceDataset(Dataset[dict[str, Any]]):
    """Token sequences with a class each, from the official files of a task or from Skyformer's pickles.

    An item is dict(inputs=uint8 or int16 tensor [n], data_samples=BaseDataElement) with the int
    `gt_label`; inputs of pairs are two such tensors. Sequences have no padding, for which the token
    0 is reserved in texts and ListOps.

    The files are read once; their tokens are cached (see `store`) until the files change.

    Args:
        root: folder of the official files, or of pickles `lra-TASK.SPLIT.pickle`. Where it does not
            exist, the other names under which the data is distributed are tried.
        split: 'train', 'dev' or 'test'.
        cache: folder of the cached tokens; None: `mmpola/tokens` in `$XDG_CACHE_HOME`, by default
            in `~/.cache`.

    Attributes:
        notes: what is unusual about the files.
        left_out: what of them was left out, one line per kind.

    Raises:
        UsageError: files are missing or invalid; the message has one line per broken rule.
    """

    TASK: str
    """Name of the task in Skyformer's pickles."""
    CLASSES: tuple[str, ...]
    OTHER_ROOTS: tuple[str, ...]
    """Other names of the folder, next to `root`."""
    PAIRS = False
    PADDED = True
    """Whether zeros at the end of a sequence in Skyformer's pickles are padding."""

    def __init__(self, root: str | Path, split: str, cache: str | Path | None = None) -> None:
        if split not in SPLITS:
            raise UsageError(f'split: expected one of {", ".join(SPLITS)}, got {split}')
        self.root = self.folder(root)
        if not self.root.is_dir():
            raise UsageError(
                f'{root}: expected a folder with the files of {type(self).__name__}, got no such folder'
            )
        source = self._pickle_source(split) or self._source(split)
        name = f'{type(self).__name__.lower()}-{split}'
        self.samples = cached(source, name, Path(cache or cache_folder() / 'tokens'))
        self.metainfo = {'classes': self.CLASSES}
        self.notes, self.left_out = source.notes, self.samples.left_out
        if self.left_out:
            info(f'{name}: {listed(self.left_out)}')

    def _source(self, split: str) -> Source:
        """Return the official files of a split and how they are read.

        Raises:
            UsageError: the split has no files.
        """
        raise NotImplementedError

    @classmethod
    def folder(cls, root: str | Path) -> Path:
        """Return the folder that `root` stands for: itself, or where the same data is under another name."""
        root = Path(root).expanduser()
        names = (root.name, f'lra_release/lra_release/{root.name}', *cls.OTHER_ROOTS)
        return next((path for name in names if (path := root.parent / name).is_dir()), root)

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Return an item."""
        sequences, label = self.samples[range(len(self))[index]]
        inputs = tuple(map(torch.from_numpy, sequences))
        return {
            'inputs': inputs if self.PAIRS else inputs[0],
            'data_samples': BaseDataElement(gt_label=label),
        }

    def _pickle_source(self, split: str) -> Source | None:
        """Return Skyformer's pickle of a split; None if the folder has no pickle of the task, of any split."""
        if not any(self.root.glob(f'lra-{self.TASK}*.pickle')):
            return None
        paths = sorted(self.root.glob(f'lra-{self.TASK}*.{split}.pickle'))
        if len(paths) != 1:
            got = listed(path.name for path in paths) or 'none'
            raise UsageError(
                f'{self.root}: expected one file lra-{self.TASK}*.{split}.pickle, got {got}'
            )
        read = partial(_read_pickle, paths[0], self.PAIRS, self.PADDED, len(self.CLASSES))
        return Source(paths, read, np.int16, (self.PAIRS, self.PADDED))


def _read_pickle(
    path: Path, pair: bool, padded: bool, classes: int, reading: Reading
) -> Iterator[Sample]:
    """Read a list of dicts with the token ids `input_ids_0`, of pairs also `input_ids_1`, and `label`."""
    content = read_pickle(path)
    keys = ('input_ids_0', 'input_ids_1')[: 1 + pair]
    if not isinstance(content, list):
        raise UsageError(f'{path}: expected a list of dicts, got {type(content).__name__}')
    for number, item in enumerate(content):
        try:
            sequences = tuple(_token_ids(item[key], padded) for key in keys)
            label = int(item['label'])
        except (KeyError, TypeError, ValueError):
            reading.refuse(
                f'{path}: expected dicts of {", ".join(keys)} and label', f'item {number}'
            )
            continue
        if not all(map(len, sequences)):
            reading.refuse(
                f'{path}: expected tokens in every sequence', f'item {number} (got padding alone)'
            )
        elif label not in range(classes):
            reading.refuse(
                f'{path}: expected labels 0 … {classes - 1}', f'item {number} (got {label})'
            )
        else:
            yield Sample(sequences, label)
    reading.advance(path.stat().st_size)


def _token_ids(values: Any, padded: bool) -> Tokens:
    """Return token ids without the padding at their end.

    Raises:
        ValueError: they are not a sequence of ids from 0 to 32767.
    """
    ids = np.asarray(values)
    if (
        ids.ndim != 1
        or ids.dtype.kind not in 'iu'
        or (ids.size and (ids.min() < 0 or ids.max() > np.iinfo('i2').max))
    ):
        raise ValueError('not token ids')
    return np.trim_zeros(ids, 'b') if padded else ids
