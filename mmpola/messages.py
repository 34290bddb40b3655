"""Messages to the user: log lines, lists of names, and errors that end a script with one line."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable

try:
    from mmengine.logging import MMLogger
except ModuleNotFoundError:
    MMLogger = None

CTRL_C = 130
"""Exit status after Ctrl-C, as in shells."""

OTHER_FORMATS = '`mmpola new FOLDER` reads files of VIA, labelme and CVAT'
"""What to do with annotations that are not in COCO's format."""

FOR_THE_USER = 'mmpola_for_the_user'
"""Attribute of log records that a training run shows on the screen from its start on."""


class UsageError(Exception):
    """An argument, config or file of the user is invalid; the message says what to do."""


def counted(number: int, noun: str) -> str:
    """Return a number with a regular noun in singular or plural: '1 image', '2,000 images'."""
    if number == 1:
        return f'{number} {noun}'
    return f'{number:,} {noun}s'


def listed(names: Iterable[object], shown: int | None = 5) -> str:
    """Join names by commas; an empty one is shown as ''.

    Args:
        names: the names.
        shown: the number of names before 'and N more'; None for all of them.
    """
    texts = [printable(str(name)) or "''" for name in names]
    if shown is None or len(texts) <= shown:
        return ', '.join(texts)
    first = ', '.join(texts[:shown])
    return f'{first} and {len(texts) - shown} more'


def printable(text: str) -> str:
    """Return a text with line ends and control characters as Python writes them: `\\n`, `\\x1b`.

    Names of files and servers may hold any, and a terminal obeys them.
    """
    return ''.join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)


def first_line(error: BaseException) -> str:
    """Return the type of an error and the first line of its message."""
    text = type(error).__name__
    lines = str(error).strip().splitlines()
    if lines:
        text += f': {printable(lines[0])}'
    return text


def info(message: str) -> None:
    """Log a message at the level INFO; in MMEngine's current logger if MMEngine is installed."""
    if MMLogger is None:
        logging.getLogger('mmpola').info(message)
    else:
        MMLogger.get_current_instance().info(message, extra={FOR_THE_USER: True})


def run_main(main: Callable[[], None]) -> None:
    """Run a script's main(), and end it with one line if the user made a mistake or pressed Ctrl-C.

    A `UsageError` is printed, and the exit status is 2. After Ctrl-C it is 130.
    """
    try:
        main()
    except UsageError as error:
        print(f'error: {error}', file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print('interrupted', file=sys.stderr)
        sys.exit(CTRL_C)
