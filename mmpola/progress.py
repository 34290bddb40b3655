"""Show the progress of long work: a bar on a terminal, elsewhere a line for every tenth."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


@contextmanager
def progress(
    what: str, total: int, unit: str = '', size: int = 1
) -> Iterator[Callable[[int], None]]:
    """Show the progress of long work.

    Yields a function to call with the number of items that were just finished.

    Args:
        what: the work, in a few words.
        total: number of items.
        unit: what is counted, behind the numbers.
        size: items in a unit; where the whole is less than 1,000 units, nothing is shown outside of
            a terminal.
    """
    console = Console()
    if console.is_terminal:
        columns = (
            TextColumn('{task.description}'),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn(unit.strip()),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=console) as bar:
            task = bar.add_task(what, total=total / size)
            yield lambda pieces: bar.advance(task, pieces / size)
        return
    done = 0
    shown = size == 1 or total >= 1000 * size

    def advance(pieces: int) -> None:
        nonlocal done
        before, done = done, done + pieces
        if shown and done * 10 // total > before * 10 // total:
            print(f'{what}: {done // size:,} of {total // size:,}{unit}', flush=True)

    yield advance
