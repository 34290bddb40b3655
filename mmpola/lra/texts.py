"""The Long Range Arena's tasks on texts, from their official files: ListOps, reviews, papers."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
from timm.utils.misc import natural_key

from mmpola.lra.dataset import SequenceDataset
from mmpola.lra.source import Reading, Sample, Source, Tokens, existing
from mmpola.registry import DATASETS

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

REVIEW_NAME = re.compile(r'\d+_\d+\.txt')

RETRIEVAL_FILES = {
    'train': 'new_aan_pairs.train.tsv',
    'dev': 'new_aan_pairs.eval.tsv',
    'test': 'new_aan_pairs.test.tsv',
}
RETRIEVAL_COLUMNS = 5
"""Label, two ids and two texts."""
RETRIEVAL_LABELS = {'0.0': 0, '1.0': 1, '0': 0, '1': 1}


def read_rows(path: Path, columns: int, reading: Reading) -> Iterator[tuple[int, list[str]]]:
    """Yield (line number from 1, columns) of a file of tab-separated columns without quoting.

    Lines end with a line feed, also after a carriage return. Empty lines and other numbers of
    columns break a rule. Bytes that are not UTF-8 come as lone surrogates, which encode back to
    them.
    """
    with path.open('rb') as file:
        for number, line in enumerate(file, 1):
            reading.advance(len(line))
            cells = line.rstrip(b'\r\n').decode('utf-8', 'surrogateescape').split('\t')
            if len(cells) == columns:
                yield number, cells
            else:
                rule = f'{path}: expected {columns} columns separated by tabs'
                reading.refuse(rule, f'line {number} (got {len(cells)})')


def byte_tokens(text: bytes, max_length: int) -> Tokens:
    """Return the first bytes of a text as tokens: the byte's value + 1, because 0 is padding."""
    return np.frombuffer(text[:max_length], np.uint8).astype(np.int16) + 1


@DATASETS.register_module()
class ListOps(SequenceDataset):
    """Nested operations on lists of digits, whose result is the class.

    A sequence has up to 2,000 tokens of 15 kinds.

    Args:
        root: folder with `basic_{train,val,test}.tsv`.
        brackets: keep the closing brackets. Without them, as in Skyformer's tokenizer, the nesting
            is lost.
        split, cache: as in `SequenceDataset`.
    """

    CLASSES = DIGITS
    OTHER_ROOTS = ('listops',)

    def __init__(
        self, root: str | Path, split: str, brackets: bool = True, cache: str | Path | None = None
    ) -> None:
        self.brackets = brackets
        super().__init__(root, split, cache)

    def _source(self, split: str) -> Source:
        path = existing(self.root / LISTOPS_FILES[split], split)
        return Source([path], partial(self._read, path), options=(self.brackets,))

    def _read(self, path: Path, reading: Reading) -> Iterator[Sample]:
        for number, (text, target) in read_rows(path, len(LISTOPS_HEADER), reading):
            if number == 1:
                if [text, target] != LISTOPS_HEADER:
                    place = f'line 1 (got {text[:40]}, {target})'
                    reading.refuse(f'{path}: expected the header Source, Target', place)
                continue
            words = text.replace('(', ' ').replace(')', ' ').split()
            if not self.brackets:
                words = [word for word in words if word != CLOSING_BRACKET]
            unknown = [word for word in words if word not in LISTOPS_TOKENS]
            if unknown:
                rule = f'{path}: expected tokens of {" ".join(LISTOPS_TOKENS)}'
                reading.refuse(rule, f'line {number} (got {unknown[0]})')
            elif target not in DIGITS:
                rule = f'{path}: expected a digit as target'
                reading.refuse(rule, f'line {number} (got {target!r})')
            elif not words:
                rule = f'{path}: expected tokens in the column Source'
                reading.refuse(rule, f'line {number} (got none)')
            else:
                tokens = np.array([LISTOPS_TOKENS[word] for word in words], np.uint8)
                yield Sample((tokens,), int(target))


@DATASETS.register_module()
class ByteText(SequenceDataset):
    """IMDB reviews, positive or negative, as bytes: the token is the byte's value + 1.

    The dev split is the test split.

    Args:
        root: folder with `{train,test}/{neg,pos}/ID_RATING.txt`.
        max_length: longer texts are cut to this number of bytes.
        split, cache: as in `SequenceDataset`.
    """

    CLASSES = ('neg', 'pos')
    OTHER_ROOTS = ('imdb',)

    def __init__(
        self, root: str | Path, split: str, max_length: int = 4000, cache: str | Path | None = None
    ) -> None:
        self.max_length = max_length
        super().__init__(root, split, cache)

    def _source(self, split: str) -> Source:
        notes = []
        folder = self.root / split
        if split == 'dev':
            folder = self.root / 'test'
            notes.append(
                f'{self.root}: the test split serves as dev split, as in the original release'
            )
        every_file = []
        files_of_classes = []
        for name in self.CLASSES:
            paths = existing(folder / name, split).iterdir()
            visible = [path for path in paths if not path.name.startswith('.')]
            files = sorted(visible, key=lambda path: natural_key(path.name))
            files_of_classes.append((folder / name, files))
            every_file += files
        read = partial(self._read, files_of_classes)
        return Source(every_file, read, np.int16, (self.max_length,), notes)

    def _read(
        self, files_of_classes: list[tuple[Path, list[Path]]], reading: Reading
    ) -> Iterator[Sample]:
        for label, (folder, files) in enumerate(files_of_classes):
            number_of_reviews = 0
            for path in files:
                reading.advance(path.stat().st_size)
                if not REVIEW_NAME.fullmatch(path.name):
                    reading.leave_out(f'{folder}: left out, not called ID_RATING.txt', path.name)
                    continue
                number_of_reviews += 1
                text = path.read_bytes()
                if text:
                    yield Sample((byte_tokens(text, self.max_length),), label)
                else:
                    rule = f'{folder}: expected a text in every file'
                    reading.refuse(rule, f'{path.name} (empty file)')
            if number_of_reviews == 0:
                reading.refuse(f'{folder}: expected reviews called ID_RATING.txt', 'got none')


@DATASETS.register_module()
class Retrieval(SequenceDataset):
    """Pairs of papers as bytes, of which one cites the other (class 1) or not.

    Args:
        root: folder with `new_aan_pairs.{train,eval,test}.tsv`: label, two ids, two texts.
        max_length: longer texts are cut to this number of bytes.
        split, cache: as in `SequenceDataset`.
    """

    CLASSES = ('unrelated', 'citing')
    OTHER_ROOTS = ('aan',)
    PAIRS = True

    def __init__(
        self, root: str | Path, split: str, max_length: int = 4000, cache: str | Path | None = None
    ) -> None:
        self.max_length = max_length
        super().__init__(root, split, cache)

    def _source(self, split: str) -> Source:
        path = existing(self.root / RETRIEVAL_FILES[split], split)
        return Source([path], partial(self._read, path), np.int16, (self.max_length,))

    def _read(self, path: Path, reading: Reading) -> Iterator[Sample]:
        for number, cells in read_rows(path, RETRIEVAL_COLUMNS, reading):
            label = cells[0]
            try:
                first = text_bytes(cells[3])
                second = text_bytes(cells[4])
            except (SyntaxError, ValueError):
                rule = f"{path}: expected texts, or literals b'…' that are complete"
                reading.refuse(rule, f'line {number}')
                continue
            if label not in RETRIEVAL_LABELS:
                rule = f'{path}: expected the label 0.0 or 1.0'
                reading.refuse(rule, f'line {number} (got {label!r})')
            elif not first or not second:
                rule = f'{path}: expected two texts'
                reading.refuse(rule, f'line {number} (got an empty one)')
            else:
                pair = (byte_tokens(first, self.max_length), byte_tokens(second, self.max_length))
                yield Sample(pair, RETRIEVAL_LABELS[label])


def text_bytes(cell: str) -> bytes:
    """Return the bytes of a text, which may be written as a Python literal: b'…' or b"…".

    Raises:
        SyntaxError, ValueError: a literal that is not complete.
    """
    if cell.startswith(("b'", 'b"')):
        return bytes(ast.literal_eval(cell))
    return cell.encode('utf-8', 'surrogateescape')
