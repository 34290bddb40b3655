"""Generate ListOps.

    python -m mmpola.papers.lra.listops OUT

writes OUT/basic_{train,val,test}.tsv.

A tree is a digit or an operator with arguments, which are trees. The root has depth 1. Above the
greatest depth, a node is an operator with probability 0.25; operators and their number of arguments
are uniform. Trees with a length between the limits are kept, each once; a digit counts 1 and an
operator 2, parentheses do not count.
"""

from __future__ import annotations

import argparse
import hashlib
import io
from collections.abc import Callable, Iterator
from itertools import count, islice
from pathlib import Path
from random import Random
from statistics import median
from typing import NamedTuple

from rich.progress import track

from mmpola.files import complete_folder
from mmpola.messages import UsageError, run_main
from mmpola.papers.lra.texts import CLOSING_BRACKET, LISTOPS_FILES, LISTOPS_HEADER

OPERATOR_SHARE = 0.25

LEAST_ARGUMENTS = 2

OPERATORS: dict[str, Callable[[list[int]], int]] = {
    '[MIN': min,
    '[MAX': max,
    '[MED': lambda values: int(median(values)),
    '[SM': lambda values: sum(values) % 10,
}

TREES_PER_GENERATOR = 2_000
"""Trees that are drawn with one random generator; then comes the next generator."""

MAX_FRUITLESS = 500
"""After this many generators in a row without a new tree, hardly any others exist."""


class Limits(NamedTuple):
    """Which trees are kept: min_length < length < max_length; defaults are the official ones."""

    min_length: int = 500
    max_length: int = 2000
    max_depth: int = 10
    max_args: int = 10


class _TooLongError(Exception):
    """The tree that is being drawn has reached the greatest length."""


def draw_tree(random: Random, limits: Limits) -> tuple[str, int] | None:
    """Draw a tree; return its text and its value, or None if it is too short or too long.

    The text is as in the official files: `( ( ( [MAX 2 ) 9 ) ] )`. MED rounds down, SM is the sum
    modulo 10.
    """
    length = 0
    text = io.StringIO()

    def draw(depth: int) -> int:
        """Write the text of a node and return its value."""
        nonlocal length
        if depth >= limits.max_depth or random.random() >= OPERATOR_SHARE:
            length += 1
            digit = random.randrange(10)
            text.write(str(digit))
            return digit
        length += 2
        if length >= limits.max_length:
            raise _TooLongError
        operator = random.choice(tuple(OPERATORS))
        number = random.randint(LEAST_ARGUMENTS, limits.max_args)
        text.write(f'{"( " * (number + 1)}{operator} ')
        values = []
        for _ in range(number):
            values.append(draw(depth + 1))
            text.write(' ) ')
        text.write(f'{CLOSING_BRACKET} )')
        return OPERATORS[operator](values)

    try:
        value = draw(1)
    except _TooLongError:
        return None
    if not limits.min_length < length < limits.max_length:
        return None
    return text.getvalue(), value


def write_listops(
    out: Path, train: int, dev: int, test: int, limits: Limits | None = None, seed: int = 0
) -> None:
    """Write a data set.

    Args:
        out: a new folder, which appears when it is complete.
        train, dev, test: numbers of trees.
        limits: limits of the trees; None: the official ones.
        seed: seed of the trees; the same seed and arguments give the same files.

    Raises:
        UsageError: `out` holds files, or the limits allow fewer different trees.
    """
    if limits is None:
        limits = Limits()
    sizes = {'train': train, 'dev': dev, 'test': test}
    if out.is_file() or (out.is_dir() and any(out.iterdir())):
        raise UsageError(f'{out}: expected a new or empty folder, got one that holds other files')
    lines = _different_lines(limits, seed)
    with complete_folder(out) as folder:
        for split, size in sizes.items():
            with (folder / LISTOPS_FILES[split]).open('w', newline='\n') as file:
                print(*LISTOPS_HEADER, sep='\t', file=file)
                for source, target in track(islice(lines, size), f'drawing {split}', size):
                    print(source, target, sep='\t', file=file)


def _different_lines(limits: Limits, seed: int) -> Iterator[tuple[str, int]]:
    """Yield text and value of trees within the limits, each tree once."""
    seen: set[bytes] = set()
    fruitless = 0
    for generator in count():
        random = Random(f'{seed} {generator}')
        before = len(seen)
        for _ in range(TREES_PER_GENERATOR):
            tree = draw_tree(random, limits)
            if tree is None:
                continue
            text, _ = tree
            digest = hashlib.blake2b(text.encode(), digest_size=16).digest()
            if digest not in seen:
                seen.add(digest)
                yield tree
        if len(seen) > before:
            fruitless = 0
            continue
        fruitless += 1
        if fruitless == MAX_FRUITLESS:
            drawn = MAX_FRUITLESS * TREES_PER_GENERATOR
            raise UsageError(
                'ListOps: expected limits with more different trees, '
                f'got {len(seen):,} and no other in {drawn:,} draws'
            )


def main() -> None:
    parser = argparse.ArgumentParser(
        prog='mmpola.papers.lra.listops',
        description='Generate ListOps in its official layout',
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument(
        'out', metavar='OUT', type=Path, help='folder to write; it appears when it is complete'
    )
    for split, size in (('train', 96_000), ('dev', 2_000), ('test', 2_000)):
        parser.add_argument(
            f'--{split}', type=int, default=size, metavar='N', help=f'trees of the {split} split'
        )
    official = Limits()
    parser.add_argument(
        '--min-length', type=int, default=official.min_length, help='trees are longer than this'
    )
    parser.add_argument(
        '--max-length', type=int, default=official.max_length, help='trees are shorter than this'
    )
    parser.add_argument(
        '--max-depth', type=int, default=official.max_depth, help='levels of a tree'
    )
    parser.add_argument(
        '--max-args', type=int, default=official.max_args, help='arguments of an operator'
    )
    parser.add_argument(
        '--seed', type=int, default=0, help='the same seed and options give the same files'
    )
    args = parser.parse_args()
    limits = Limits(args.min_length, args.max_length, args.max_depth, args.max_args)
    write_listops(args.out, args.train, args.dev, args.test, limits, args.seed)
    print(f'wrote {args.out}')


if __name__ == '__main__':
    run_main(main)
