"""The base class of the Long Range Arena's data sets: items from cached tokens."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mmengine.structures import BaseDataElement
from torch.utils.data import Dataset

from mmpola.files import cache_folder
from mmpola.messages import UsageError
from mmpola.papers.lra.store import Sample, open_cached

LRA_SPLITS = ('train', 'dev', 'test')


class SequenceDataset(Dataset[dict[str, Any]]):
    """Token sequences with a class each, from the official files of a task.

    An item is dict(inputs=uint8 or int16 tensor [n], data_samples=BaseDataElement) with the int
    `gt_label`; inputs of pairs are two such tensors. Sequences have no padding, for which the token
    0 is reserved in texts and ListOps.

    The files are read once; their tokens are cached (see `store`) until the files change.

    Args:
        root: folder of the official files.
        split: 'train', 'dev' or 'test'.
        cache: folder of the cached tokens; None: `mmpola/tokens` in `$XDG_CACHE_HOME`, by default
            in `~/.cache`.
        options: a subclass's arguments on which the tokens depend; part of the cache's name.

    Attributes:
        samples: `TokenStore` of the split.
        metainfo: dict with the names of the `classes`.
        notes: what is unusual about the files.

    Raises:
        UsageError: a file is missing or invalid; the message names the first such file, and its
            line.
    """

    CLASSES: tuple[str, ...]
    DTYPE: type[np.generic] = np.uint8
    PAIRS = False

    def __init__(
        self,
        root: str | Path,
        split: str,
        cache: str | Path | None = None,
        options: tuple[Any, ...] = (),
    ) -> None:
        if split not in LRA_SPLITS:
            raise UsageError(f'split: expected one of {", ".join(LRA_SPLITS)}, got {split}')
        self.root = Path(root).expanduser()
        if not self.root.is_dir():
            raise UsageError(
                f'{root}: expected a folder with the files of {type(self).__name__}, '
                'got no such folder'
            )
        if cache is None:
            cache = cache_folder() / 'tokens'
        self.metainfo = {'classes': self.CLASSES}
        self.notes: list[str] = []
        self.samples = open_cached(
            f'{type(self).__name__.lower()}-{split}',
            self._files(split),
            lambda: self._read(split),
            dtype=self.DTYPE,
            options=options,
            cache=Path(cache),
        )

    def _files(self, split: str) -> list[Path]:
        """Return all files from which a split is read."""
        raise NotImplementedError

    def _read(self, split: str) -> Iterator[Sample]:
        """Yield the samples of a split in a fixed order."""
        raise NotImplementedError

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Return an item."""
        sample = self.samples[index]
        tensors = [torch.from_numpy(tokens) for tokens in sample.sequences]
        return {
            'inputs': tuple(tensors) if self.PAIRS else tensors[0],
            'data_samples': BaseDataElement(gt_label=sample.label),
        }
