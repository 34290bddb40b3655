"""The base class of the Long Range Arena's data sets: their folders, and cached tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from mmengine.structures import BaseDataElement
from torch.utils.data import Dataset

from mmpola.cache import cache_folder
from mmpola.lra.source import LRA_SPLITS, Source
from mmpola.lra.store import open_cached
from mmpola.messages import UsageError, info, listed


class SequenceDataset(Dataset[dict[str, Any]]):
    """Token sequences with a class each, from the official files of a task.

    An item is dict(inputs=uint8 or int16 tensor [n], data_samples=BaseDataElement) with the int
    `gt_label`; inputs of pairs are two such tensors. Sequences have no padding, for which the token
    0 is reserved in texts and ListOps.

    The files are read once; their tokens are cached (see `store`) until the files change.

    Args:
        root: folder of the official files. Where it does not exist, the other names under which the
            data is distributed are tried.
        split: 'train', 'dev' or 'test'.
        cache: folder of the cached tokens; None: `mmpola/tokens` in `$XDG_CACHE_HOME`, by default
            in `~/.cache`.

    Attributes:
        root: the folder that is read.
        samples: `TokenStore` of the split.
        metainfo: dict with the names of the `classes`.
        notes: what is unusual about the files.
        left_out: what of them was left out, one line per kind.

    Raises:
        UsageError: files are missing or invalid; the message has one line per broken rule.
    """

    CLASSES: tuple[str, ...]
    OTHER_ROOTS: tuple[str, ...]
    """Other names of the folder, next to `root`."""
    PAIRS = False

    def __init__(self, root: str | Path, split: str, cache: str | Path | None = None) -> None:
        if split not in LRA_SPLITS:
            raise UsageError(f'split: expected one of {", ".join(LRA_SPLITS)}, got {split}')
        self.root = self.folder(root)
        if not self.root.is_dir():
            raise UsageError(
                f'{root}: expected a folder with the files of {type(self).__name__}, '
                'got no such folder'
            )
        if cache is None:
            cache = cache_folder() / 'tokens'
        source = self._source(split)
        name = f'{type(self).__name__.lower()}-{split}'
        self.samples = open_cached(source, name, Path(cache))
        self.metainfo = {'classes': self.CLASSES}
        self.notes = source.notes
        self.left_out = self.samples.left_out
        if self.left_out:
            info(f'{name}: {listed(self.left_out)}')

    def _source(self, split: str) -> Source:
        """Return the files of a split and how they are read; raise UsageError if there are none."""
        raise NotImplementedError

    @classmethod
    def folder(cls, root: str | Path) -> Path:
        """Return `root`, or where the same data is under another name if `root` does not exist."""
        root = Path(root).expanduser()
        for name in (root.name, f'lra_release/lra_release/{root.name}', *cls.OTHER_ROOTS):
            path = root.parent / name
            if path.is_dir():
                return path
        return root

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
