"""Read a file of tab-separated columns line by line; both line ends, no quoting."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from mmpola.sequences.source import Findings


def rows(
    path: Path, columns: int, findings: Findings, advance: Callable[[int], None]
) -> Iterator[tuple[int, list[str]]]:
    """Yield (line number from 1, columns) of every line; empty lines and other numbers of columns break a rule.

    Args:
        path: a text file in UTF-8; bytes that are not UTF-8 come as lone surrogates, which encode back to them.
        columns: their number.
        advance: called with the bytes read.
    """
    with path.open('rb') as file:
        for number, line in enumerate(file, 1):
            advance(len(line))
            cells = line.rstrip(b'\r\n').decode('utf-8', 'surrogateescape').split('\t')
            if len(cells) == columns:
                yield number, cells
            else:
                findings.refuse(
                    f'{path}: expected {columns} columns separated by tabs', f'line {number} (got {len(cells)})'
                )
