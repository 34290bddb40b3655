"""The Long Range Arena's tasks on texts, from their official files: ListOps, reviews, papers.

The default tokens are Skyformer's, whose preprocessing PolaFormer's experiments follow.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from timm.utils.misc import natural_key

from mmpola.messages import UsageError
from mmpola.papers.lra.dataset import SequenceDataset
from mmpola.papers.lra.store import Sample, Tokens

LISTOPS_FILES = {'train': 'basic_train.tsv', 'dev': 'basic_val.tsv', 'test': 'basic_test.tsv'}
LISTOPS_HEADER = ['Source', 'Target']
CLOSING_BRACKET = ']'
DIGITS = ('0', '1', '2', '3', '4', '5', '6', '7', '8', '9')
LISTOPS_TOKENS = {
    **{digit: number for number, digit in enumerate(DIGITS, 1)},
    '[MIN': 11,
    '[MAX': 12,
    '[MED': 13,
    '[SM': 14,
    CLOSING_BRACKET: 15,
}
"""Token -> id; 0 is padding."""

RETRIEVAL_FILES = {
    'train': 'new_aan_pairs.train.tsv',
    'dev': 'new_aan_pairs.eval.tsv',
    'test': 'new_aan_pairs.test.tsv',
}
RETRIEVAL_COLUMNS = 5
"""Label, two ids and two texts."""
RETRIEVAL_LABELS = {'0.0': 0, '1.0': 1, '0': 0, '1': 1}


def read_rows(path: Path, columns: int) -> Iterator[tuple[str, list[str]]]:
    """Yield (place, columns) of each line of a file of tab-separated columns without quoting.

    Lines end with a line feed, also after a carriage return. Bytes that are not UTF-8 come as lone
    surrogates, which encode back to them.

    Raises:
        UsageError: a line has another number of columns.
    """
    with path.open('rb') as file:
        for number, line in enumerate(file, 1):
            place = f'{path}, line {number}'
            cells = line.rstrip(b'\r\n').decode('utf-8', 'surrogateescape').split('\t')
            if len(cells) != columns:
                rule = f'expected {columns} columns separated by tabs'
                raise UsageError(f'{place}: {rule}, got {len(cells)}')
            yield place, cells


def byte_tokens(text: bytes, max_length: int) -> Tokens:
    """Return the first bytes of a text as tokens: the byte's value + 1, because 0 is padding."""
    return np.frombuffer(text[:max_length], np.uint8).astype(np.int16) + 1


class ListOps(SequenceDataset):
    """Nested operations on lists of digits, whose result is the class.

    A sequence has up to 2,000 tokens of 14 kinds, with `brackets` of 15.

    Args:
        root: folder with `basic_{train,val,test}.tsv`.
        brackets: keep the closing brackets, which show the nesting. Skyformer's tokenizer drops
            them.
        split, cache: as in `SequenceDataset`.
    """

    CLASSES = DIGITS

    def __init__(
        self, root: str | Path, split: str, brackets: bool = False, cache: str | Path | None = None
    ) -> None:
        self.brackets = brackets
        super().__init__(root, split, cache, options=(brackets,))

    def _files(self, split: str) -> list[Path]:
        return [self.root / LISTOPS_FILES[split]]

    def _read(self, split: str) -> Iterator[Sample]:
        for place, cells in read_rows(self.root / LISTOPS_FILES[split], len(LISTOPS_HEADER)):
            if cells == LISTOPS_HEADER:
                continue
            text, target = cells
            words = text.replace('(', ' ').replace(')', ' ').split()
            unknown = [word for word in words if word not in LISTOPS_TOKENS]
            if target not in DIGITS:
                unknown.append(target)
            if unknown:
                known = ' '.join(LISTOPS_TOKENS)
                raise UsageError(
                    f'{place}: expected tokens of {known} and a digit as target, got {unknown[0]}'
                )
            if not self.brackets:
                words = [word for word in words if word != CLOSING_BRACKET]
            tokens = np.array([LISTOPS_TOKENS[word] for word in words], np.uint8)
            yield Sample((tokens,), int(target))


class ByteText(SequenceDataset):
    """IMDB reviews, positive or negative, as bytes: the token is the byte's value + 1.

    White space around a text is dropped, as TensorFlow Datasets does. The dev split is the test
    split.

    Args:
        root: folder with `{train,test}/{neg,pos}/ID_RATING.txt`; other files are not read.
        max_length: longer texts are cut to this number of bytes.
        split, cache: as in `SequenceDataset`.
    """

    CLASSES = ('neg', 'pos')
    DTYPE = np.int16

    def __init__(
        self, root: str | Path, split: str, max_length: int = 4000, cache: str | Path | None = None
    ) -> None:
        self.max_length = max_length
        super().__init__(root, split, cache, options=(max_length,))
        if split == 'dev':
            self.notes.append(
                f'{self.root}: the test split serves as dev split, as in the original release'
            )

    def _files(self, split: str) -> list[Path]:
        return self._reviews(split, 'neg') + self._reviews(split, 'pos')

    def _reviews(self, split: str, name: str) -> list[Path]:
        """Return the files of a class in the order of their numbers."""
        if split == 'dev':
            split = 'test'
        folder = self.root / split / name
        files = sorted(folder.glob('*_*.txt'), key=lambda path: natural_key(path.name))
        if not files:
            raise UsageError(f'{folder}: expected reviews called ID_RATING.txt, got none')
        return files

    def _read(self, split: str) -> Iterator[Sample]:
        for label, name in enumerate(self.CLASSES):
            for path in self._reviews(split, name):
                text = path.read_bytes().strip()
                yield Sample((byte_tokens(text, self.max_length),), label)


class Retrieval(SequenceDataset):
    """Pairs of papers as bytes: one cites the other (class 1) or not.

    Args:
        root: folder with `new_aan_pairs.{train,eval,test}.tsv`: label, two ids, two texts.
        max_length: longer texts are cut to this number of bytes.
        literals: read a text b'…' as the literal of Python that it is. Skyformer's preprocessing
            takes its characters, quotes and escapes included.
        split, cache: as in `SequenceDataset`.
    """

    CLASSES = ('unrelated', 'citing')
    DTYPE = np.int16
    PAIRS = True

    def __init__(
        self,
        root: str | Path,
        split: str,
        max_length: int = 4000,
        literals: bool = False,
        cache: str | Path | None = None,
    ) -> None:
        self.max_length = max_length
        self.literals = literals
        super().__init__(root, split, cache, options=(max_length, literals))

    def _files(self, split: str) -> list[Path]:
        return [self.root / RETRIEVAL_FILES[split]]

    def _read(self, split: str) -> Iterator[Sample]:
        for place, cells in read_rows(self.root / RETRIEVAL_FILES[split], RETRIEVAL_COLUMNS):
            label, _, _, first, second = cells
            if label not in RETRIEVAL_LABELS:
                raise UsageError(f'{place}: expected the label 0.0 or 1.0, got {label}')
            pair = (self._tokens(first, place), self._tokens(second, place))
            yield Sample(pair, RETRIEVAL_LABELS[label])

    def _tokens(self, cell: str, place: str) -> Tokens:
        """Return the tokens of a text at a place."""
        text = cell.encode('utf-8', 'surrogateescape')
        if self.literals and cell.startswith(("b'", 'b"')):
            try:
                text = bytes(ast.literal_eval(cell))
            except (SyntaxError, ValueError):
                raise UsageError(f"{place}: expected a complete literal b'…'") from None
        return byte_tokens(text, self.max_length)
