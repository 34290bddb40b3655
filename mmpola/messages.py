"""Messages to the user: log lines, lists of names, and errors that end a script in one line."""

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
    """What the user gave cannot work; the message says what is wrong and what to do."""


SHOWN = 5
"""How many names a message writes out; the rest is counted."""


def listed(names: Iterable[object]) -> str:
    """The first names, separated by commas, and how many more there are."""
    every = [str(name) for name in names]
    more = f' and {len(every) - SHOWN} more' if len(every) > SHOWN else ''
    return ', '.join(every[:SHOWN]) + more


def info(message: str) -> None:
    """Tell what was done, once, on the level that OpenMMLab's training logs show."""
    if print_log is None:
        logging.getLogger('mmpola').info(message)
    else:
        print_log(message, logger='current')


def run_main(main: Callable[[], None]) -> None:
    """Run a script's main(); a `UsageError` ends it in one line and exit status 2, not in a traceback."""
    os.environ.setdefault('LOCAL_RANK', '0')
    try:
        main()
    except UsageError as error:
        print(f'error: {error}', file=sys.stderr)
        sys.exit(2)
