"""Progress of long work: a bar on a terminal, elsewhere a line for every tenth."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


@contextmanager
def progress(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """Context that gives a function to call with the number of pieces just finished, out of `total`."""
    console = Console()
    if console.is_terminal:
        columns = (TextColumn('{task.description}'), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=console) as bar:
            task = bar.add_task(what, total=total)
            yield lambda pieces: bar.advance(task, pieces)
        return
    done = 0

    def advance(pieces: int) -> None:
        nonlocal done
        before, done = done, done + pieces
        if done * 10 // total > before * 10 // total:
            print(f'{what}: {done} of {total}', flush=True)

    yield advance
