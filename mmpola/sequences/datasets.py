"""The five tasks of the Long Range Arena as data sets of token sequences, read from their official files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from mmengine.structures import BaseDataElement
from torch.utils.data import Dataset

from mmpola.messages import UsageError, info, listed
from mmpola.registry import DATASETS
from mmpola.sequences.readers import byte_text, cifar, listops, pathfinder, retrieval, skyformer
from mmpola.sequences.source import SPLITS, Source
from mmpola.sequences.store import cached, default_cache


class SequenceDataset(Dataset[dict[str, Any]]):
    """Token sequences with a class each, from the official files of a task or from Skyformer's pickles.

    An item is dict(inputs=uint8 or int16 tensor [n], data_samples=BaseDataElement) with the int `gt_label`; inputs of
    pairs are two such tensors. Sequences have no padding, for which the token 0 is reserved in texts and ListOps.

    The files are read once; their tokens are cached (see `store`) until the files change.

    Args:
        root: folder of the official files, or of pickles `lra-TASK.SPLIT.pickle`. Where it does not exist, the other
            names under which the data is distributed are tried.
        split: 'train', 'dev' or 'test'.
        cache: folder of the cached tokens; None: `mmpola/tokens` in `$XDG_CACHE_HOME`, by default in `~/.cache`.

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
            raise UsageError(f'{root}: expected a folder with the files of {type(self).__name__}, got no such folder')
        source = skyformer.source(
            self.root, self.TASK, split, pair=self.PAIRS, padded=self.PADDED, classes=len(self.CLASSES)
        ) or self._source(split)
        name = f'{type(self).__name__.lower()}-{split}'
        self.samples = cached(source, name, Path(cache) if cache else default_cache())
        self.metainfo = {'classes': self.CLASSES}
        self.notes, self.left_out = source.notes, self.samples.left_out
        if self.left_out:
            info(f'{name}: {listed(self.left_out)}')

    def _source(self, split: str) -> Source:
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
        return {'inputs': inputs if self.PAIRS else inputs[0], 'data_samples': BaseDataElement(gt_label=label)}


@DATASETS.register_module()
class ListOps(SequenceDataset):
    """Nested operations on lists of digits, of which the result is the class; up to 2,000 tokens of 15 kinds.

    Args:
        root: with `basic_{train,val,test}.tsv`.
        brackets: keep the closing brackets. Without them, as in Skyformer's tokenizer, the nesting is lost.
        split, cache: as in `SequenceDataset`.
    """

    TASK = 'listops'
    CLASSES = listops.DIGITS
    OTHER_ROOTS = ('listops',)

    def __init__(self, root: str | Path, split: str, brackets: bool = True, cache: str | Path | None = None) -> None:
        self.brackets = brackets
        super().__init__(root, split, cache)

    def _source(self, split: str) -> Source:
        return listops.source(self.root, split, self.brackets)


@DATASETS.register_module()
class ByteText(SequenceDataset):
    """IMDB reviews, positive or negative, as bytes: the token is the byte's value + 1. The dev split is the test split.

    Args:
        root: with `{train,test}/{neg,pos}/ID_RATING.txt`.
        max_length: longer texts are cut to this number of bytes.
        split, cache: as in `SequenceDataset`.
    """

    TASK = 'text'
    CLASSES = byte_text.CLASSES
    OTHER_ROOTS = ('imdb',)

    def __init__(self, root: str | Path, split: str, max_length: int = 4000, cache: str | Path | None = None) -> None:
        self.max_length = max_length
        super().__init__(root, split, cache)

    def _source(self, split: str) -> Source:
        return byte_text.source(self.root, split, self.max_length)


@DATASETS.register_module()
class Retrieval(SequenceDataset):
    """Pairs of papers as bytes, of which one cites the other (class 1) or not.

    Args:
        root: with `new_aan_pairs.{train,eval,test}.tsv`.
        max_length: longer texts are cut to this number of bytes.
        split, cache: as in `SequenceDataset`.
    """

    TASK = 'retrieval'
    CLASSES = ('unrelated', 'citing')
    OTHER_ROOTS = ('aan',)
    PAIRS = True

    def __init__(self, root: str | Path, split: str, max_length: int = 4000, cache: str | Path | None = None) -> None:
        self.max_length = max_length
        super().__init__(root, split, cache)

    def _source(self, split: str) -> Source:
        return retrieval.source(self.root, split, self.max_length)


@DATASETS.register_module()
class Pathfinder(SequenceDataset):
    """Images of 32 x 32 grey values, row by row, in which a dashed path connects two discs (class 1) or not.

    Args:
        root: with `LEVEL/imgs/B/sample_I.png` and `LEVEL/metadata/B.npy`. Empty image files are left out and named.
        level: folder of the difficulty.
        split: 80, 10 and 10 % of the images, drawn with a fixed seed.
        cache: as in `SequenceDataset`.
    """

    TASK = 'pathfinder'
    CLASSES = ('separate', 'connected')
    OTHER_ROOTS = ('pathfinder/pathfinder32',)
    PADDED = False

    def __init__(
        self,
        root: str | Path,
        split: str,
        level: str = 'curv_contour_length_14',
        cache: str | Path | None = None,
    ) -> None:
        self.level = level
        super().__init__(root, split, cache)

    def _source(self, split: str) -> Source:
        return pathfinder.source(self.root, split, self.level)


@DATASETS.register_module()
class GreyCIFAR(SequenceDataset):
    """CIFAR-10 in 32 x 32 grey values, row by row. The last tenth of the training pictures is the dev split.

    Args:
        root: with `data_batch_{1…5}` and `test_batch`, or the same with the suffix `.bin`. Absent training batches are
            left out, with a note.
        split, cache: as in `SequenceDataset`.
    """

    TASK = 'image'
    CLASSES = cifar.CLASSES
    OTHER_ROOTS = ('cifar-10-batches-bin', 'cifar10/cifar-10-batches-py')
    PADDED = False

    def _source(self, split: str) -> Source:
        return cifar.source(self.root, split)
