"""Messages to the user: log lines, lists of names, and errors that end a script with one line."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterable

try:
    from mmengine.logging import print_log
except ModuleNotFoundError:
    print_log = None


class UsageError(Exception):
    """An argument, config or file of the user cannot work; the message says what is wrong and what to do."""


def listed(names: Iterable[object], shown: int | None = 5) -> str:
    """Join names by commas: the first `shown`, then how many more there are; all of them if `shown` is None."""
    every = [str(name) for name in names]
    more = '' if shown is None or len(every) <= shown else f' and {len(every) - shown} more'
    return ', '.join(every[:shown]) + more


def info(message: str) -> None:
    """Log a message at the level INFO, in MMEngine's current logger where MMEngine is installed."""
    if print_log is None:
        logging.getLogger('mmpola').info(message)
    else:
        print_log(message, logger='current')


def run_main(main: Callable[[], None]) -> None:
    """Run a script's main(); a `UsageError` is printed as one line and ends the process with exit status 2."""
    os.environ.setdefault('LOCAL_RANK', '0')
    try:
        main()
    except UsageError as error:
        print(f'error: {error}', file=sys.stderr)
        sys.exit(2)
