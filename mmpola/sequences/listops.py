"""Generate ListOps: `python -m mmpola.sequences.listops OUT` writes OUT/basic_{train,val,test}.tsv.

A tree is a digit or an operator with arguments, which are trees. The root has depth 1. Above the greatest depth, a node
is an operator with probability 0.25; operators and their number of arguments are uniform. Trees with a length between
the limits are kept, each once; a digit counts 1 and an operator 2, parentheses do not count.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count, islice
from pathlib import Path
from random import Random
from statistics import median
from typing import NamedTuple

from mmpola.engine.progress import progress
from mmpola.messages import UsageError
from mmpola.sequences.generating import expect, generator_parser, in_parallel, new_folder, run_generator
from mmpola.sequences.readers.listops import CLOSING, FILES, HEADER

OPERATOR_SHARE = 0.25

LEAST_ARGUMENTS = 2

OPERATORS: dict[str, Callable[[list[int]], int]] = {
    '[MIN': min,
    '[MAX': max,
    '[MED': lambda values: int(median(values)),
    '[SM': lambda values: sum(values) % 10,
}

CANDIDATES = 2_000
"""Trees drawn per task of a worker."""

MAX_FRUITLESS = 500
"""Tasks in a row without a new tree after which there are hardly any others."""


class Limits(NamedTuple):
    """What trees are kept: min_length < length < max_length; defaults are the official ones."""

    min_length: int = 500
    max_length: int = 2000
    max_depth: int = 10
    max_args: int = 10


class Node(NamedTuple):
    """An operator and its arguments."""

    operator: str
    arguments: list[Node | int]


Tree = Node | int


class _TooLongError(Exception):
    """The tree that is being drawn has reached the greatest length."""


def draw_tree(random: Random, limits: Limits) -> Tree | None:
    """Draw a tree; None if its length is not between the limits."""
    length = 0

    def draw(depth: int) -> Tree:
        nonlocal length
        if depth >= limits.max_depth or random.random() >= OPERATOR_SHARE:
            length += 1
            return random.randrange(10)
        length += 2
        if length >= limits.max_length:
            raise _TooLongError
        operator = random.choice(tuple(OPERATORS))
        number = random.randint(LEAST_ARGUMENTS, limits.max_args)
        return Node(operator, [draw(depth + 1) for _ in range(number)])

    try:
        tree = draw(1)
    except _TooLongError:
        return None
    return tree if limits.min_length < length < limits.max_length else None


def value(tree: Tree) -> int:
    """Return what a tree evaluates to: MED rounds down, SM is the sum modulo 10."""
    return tree if isinstance(tree, int) else OPERATORS[tree.operator]([value(inner) for inner in tree.arguments])


def text(tree: Tree) -> str:
    """Write a tree as in the official files: `( ( ( [MAX 2 ) 9 ) ] )`."""
    if isinstance(tree, int):
        return str(tree)
    inner = ''.join(f'{text(argument)} ) ' for argument in tree.arguments)
    return f'{"( " * (len(tree.arguments) + 1)}{tree.operator} {inner}{CLOSING} )'


def _candidates(limits: Limits, seed: int, number: int) -> list[tuple[str, int]]:
    """Return the lines of the trees that are kept among the `number`-th CANDIDATES."""
    random = Random(f'{seed} {number}')
    trees = (draw_tree(random, limits) for _ in range(CANDIDATES))
    return [(text(tree), value(tree)) for tree in trees if tree is not None]


def write_listops(
    out: Path, train: int, dev: int, test: int, limits: Limits | None = None, seed: int = 0, workers: int = 1
) -> None:
    """Write a data set.

    Args:
        out: a new folder.
        train, dev, test: numbers of trees.
        limits: of the trees; None: the official ones.
        seed: of the trees.
        workers: processes.

    Raises:
        UsageError: an argument is out of range, `out` holds files, or there are not so many different trees.
    """
    limits = limits or Limits()
    sizes = {'train': train, 'dev': dev, 'test': test}
    _check(sizes, limits, seed, workers)
    draw = partial(_candidates, limits, seed)
    with new_folder(out) as folder, in_parallel(draw, count(), workers) as candidates:
        lines = _different(candidates)
        with progress('drawing trees', sum(sizes.values())) as advance:
            for split, size in sizes.items():
                with (folder / FILES[split]).open('w', newline='\n') as file:
                    print(*HEADER, sep='\t', file=file)
                    for source, target in islice(lines, size):
                        print(source, target, sep='\t', file=file)
                        advance(1)


def _different(candidates: Iterator[list[tuple[str, int]]]) -> Iterator[tuple[str, int]]:
    """Yield every line once."""
    seen: set[bytes] = set()
    fruitless = 0
    for lines in candidates:
        before = len(seen)
        for source, target in lines:
            digest = hashlib.blake2b(source.encode(), digest_size=16).digest()
            if digest not in seen:
                seen.add(digest)
                yield source, target
        fruitless = fruitless + 1 if len(seen) == before else 0
        if fruitless == MAX_FRUITLESS:
            drawn = MAX_FRUITLESS * CANDIDATES
            raise UsageError(
                f'ListOps: expected limits with more different trees, got {len(seen):,} and no other in {drawn:,} draws'
            )


def _check(sizes: dict[str, int], limits: Limits, seed: int, workers: int) -> None:
    for name, size in sizes.items():
        expect(name, size, 1)
    expect('workers', workers, 1)
    expect('seed', seed, 0)
    expect('max_depth', limits.max_depth, 1)
    expect('max_args', limits.max_args, LEAST_ARGUMENTS)
    expect('min_length', limits.min_length, 0)
    expect('max_length', limits.max_length, limits.min_length + 2)


def main() -> None:
    parser = generator_parser('mmpola.sequences.listops', 'Generate ListOps in its official layout')
    for split, size in (('train', 96_000), ('dev', 2_000), ('test', 2_000)):
        parser.add_argument(f'--{split}', type=int, default=size, metavar='N', help=f'trees of the {split} split')
    parser.add_argument('--min-length', type=int, default=500, help='trees are longer than this')
    parser.add_argument('--max-length', type=int, default=2000, help='trees are shorter than this')
    parser.add_argument('--max-depth', type=int, default=10, help='levels of a tree')
    parser.add_argument('--max-args', type=int, default=10, help='arguments of an operator')
    args = parser.parse_args()
    limits = Limits(args.min_length, args.max_length, args.max_depth, args.max_args)
    write_listops(args.out, args.train, args.dev, args.test, limits, args.seed, args.workers)


if __name__ == '__main__':
    run_generator(main)
