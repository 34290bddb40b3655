"""What the generators of data sets share: arguments, a folder that is complete or absent, and parallel work."""

from __future__ import annotations

import argparse
import multiprocessing
import signal
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TypeVar

from mmpola.checkpoint.write import folder_when_complete
from mmpola.messages import UsageError, run_main
from mmpola.openmp import usable_cores

Task = TypeVar('Task')
Result = TypeVar('Result')

QUEUED = 4
"""Tasks per worker that are begun before their results are needed."""


def generator_parser(program: str, description: str) -> argparse.ArgumentParser:
    """Return a parser with the arguments of every generator."""
    parser = argparse.ArgumentParser(
        prog=program, description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument('out', metavar='OUT', type=Path, help='folder to write; it appears when it is complete')
    parser.add_argument('--seed', type=int, default=0, help='the same seed and options give the same files')
    parser.add_argument('--workers', type=int, default=usable_cores(), help='processes; they do not change the files')
    return parser


def expect(name: str, value: int, lowest: int, highest: int | None = None) -> None:
    """Raise a UsageError unless an argument is at least `lowest` and at most `highest`."""
    if value < lowest or (highest is not None and value > highest):
        rule = f'an integer of at least {lowest}' if highest is None else f'an integer from {lowest} to {highest}'
        raise UsageError(f'{name}: expected {rule}, got {value}')


def run_generator(main: Callable[[], None]) -> None:
    """Run a generator's main(); after Ctrl-C, say that nothing was written."""
    run_main(main, 'interrupted, nothing written')


@contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """Yield a folder to fill, which becomes `out` when it is complete, and is removed if it does not get so far.

    Raises:
        UsageError: `out` exists and is not an empty folder.
    """
    if out.is_file() or (out.is_dir() and any(out.iterdir())):
        raise UsageError(f'{out}: expected a new or empty folder, got one that holds other files')
    start = time.perf_counter()
    with folder_when_complete(out) as partial:
        yield partial
    print(f'wrote {out} in {time.perf_counter() - start:.0f} s')


@contextmanager
def in_parallel(function: Callable[[Task], Result], tasks: Iterable[Task], workers: int) -> Iterator[Iterator[Result]]:
    """Yield an iterator over the results of tasks in their order, also of endless tasks; one worker is this process.

    The processes start here, which must be before a progress bar starts its thread: a forked process would keep the
    locks that this thread holds.
    """
    if workers == 1:
        yield map(function, tasks)
        return
    remaining = iter(tasks)
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context('fork'), _ignore_interrupts)
    begun = deque(pool.submit(function, task) for task in islice(remaining, QUEUED * workers))

    def results() -> Iterator[Result]:
        while begun:
            yield begun.popleft().result()
            begun.extend(pool.submit(function, task) for task in islice(remaining, 1))

    try:
        yield results()
    finally:
        pool.shutdown(cancel_futures=True)


def _ignore_interrupts() -> None:
    """Leave Ctrl-C to the parent, which ends its workers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
