"""Show the progress of long work: a bar on a terminal, elsewhere a line after every tenth."""

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
        unit: what is counted, printed after the numbers.
        size: items in a unit. With more than one, short work of less than 1,000 units is shown on a
            terminal only.
    """
    console = Console()
    if console.is_terminal:
        bar = Progress(
            TextColumn('{task.description}'),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn(unit.strip()),
            TimeRemainingColumn(),
            console=console,
        )
        with bar:
            task = bar.add_task(what, total=total / size)
            yield lambda items: bar.advance(task, items / size)
        return

    is_shown = size == 1 or total >= 1000 * size
    done = 0

    def advance(items: int) -> None:
        nonlocal done
        tenths_before = done * 10 // total
        done += items
        if is_shown and done * 10 // total > tenths_before:
            print(f'{what}: {done // size:,} of {total // size:,}{unit}', flush=True)

    yield advance
