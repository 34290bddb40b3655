"""What a reader of token sequences hands over: files of a split, samples, and what is wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mmpola.messages import BrokenRule, UsageError, grouped

Tokens = NDArray[Any]
"""A sequence of tokens: uint8 or int16 [n]."""

LRA_SPLITS = ('train', 'dev', 'test')


class Sample(NamedTuple):
    """The token sequences of a sample, two for a pair of documents, and its label."""

    sequences: tuple[Tokens, ...]
    label: int


@dataclass
class Reading:
    """Collects what a reader reports while it reads.

    Attributes:
        advance: called with the number of bytes just read.
        broken: (rule, place with the value found) of what prevents training.
        left_out: (rule, place) of what is not used.
    """

    advance: Callable[[int], None]
    broken: list[BrokenRule] = field(default_factory=list)
    left_out: list[BrokenRule] = field(default_factory=list)

    def refuse(self, rule: str, place: str) -> None:
        """Add a place that breaks a rule."""
        self.broken.append((rule, place))

    def leave_out(self, rule: str, place: str) -> None:
        """Add a place that is not used."""
        self.left_out.append((rule, place))

    def raise_if_broken(self) -> None:
        """Raise UsageError if rules are broken, with a line for each that names its places."""
        if self.broken:
            raise UsageError('\n'.join(grouped(self.broken)))


@dataclass
class Source:
    """The files of a split and how they are read.

    Attributes:
        files: all files that are read; a change in them changes the samples.
        read: yields the samples of the split in a fixed order.
        dtype: dtype of the tokens.
        options: everything else on which the samples depend.
        notes: what is unusual about the files themselves.
    """

    files: list[Path]
    read: Callable[[Reading], Iterator[Sample]]
    dtype: type[np.generic] = np.uint8
    options: tuple[Any, ...] = ()
    notes: list[str] = field(default_factory=list)


def existing(path: Path, split: str) -> Path:
    """Return the path of a split's file or folder; raise UsageError if it does not exist."""
    if not path.exists():
        raise UsageError(f'{path}: expected the {split} split here, got no such file or folder')
    return path
