"""Messages to the user: log lines, lists of names, and errors that end a script with one line."""

from __future__ import annotations

import difflib
import logging
import os
import sys
from collections.abc import Callable, Iterable

try:
    from mmengine.logging import print_log
except ModuleNotFoundError:
    print_log = None

CTRL_C = 130
"""Exit status after Ctrl-C, as in shells."""

BrokenRule = tuple[str, str]
"""(rule, file that breaks it, with the value found)."""


class UsageError(Exception):
    """An argument, config or file of the user is invalid; the message says what to do."""


def printable(text: object) -> str:
    """Write the control characters of a text as escapes; other characters, such as umlauts, stay.

    Names that come from files may hold line breaks and escape sequences of terminals.
    """
    escaped = ''
    for character in str(text):
        if character.isprintable():
            escaped += character
        else:
            escaped += character.encode('unicode_escape').decode()
    return escaped


def counted(number: int, noun: str) -> str:
    """Return a number with a regular noun in singular or plural: '1 image', '2 images'."""
    if number == 1:
        return f'{number} {noun}'
    return f'{number} {noun}s'


def listed(names: Iterable[object], shown: int | None = 5) -> str:
    """Join names by commas, each `printable`.

    Args:
        names: the names.
        shown: the number of names before 'and N more'; None for all of them.
    """
    texts = [printable(name) for name in names]
    if shown is None or len(texts) <= shown:
        return ', '.join(texts)
    first = ', '.join(texts[:shown])
    return f'{first} and {len(texts) - shown} more'


def grouped(broken: Iterable[BrokenRule]) -> list[str]:
    """Write one line per broken rule, with the first files that break it."""
    files_by_rule: dict[str, list[str]] = {}
    for rule, file in broken:
        files_by_rule.setdefault(rule, []).append(file)
    return [f'{rule} ({len(files)}): {listed(files)}' for rule, files in files_by_rule.items()]


def suggestion(name: str, known: Iterable[str], similarity: float = 0.6) -> str:
    """Return the end of a message: '; did you mean NAME?', or '' if no known name is similar.

    Args:
        name: what a user wrote; upper and lower case are equal.
        known: the names that the user may have meant.
        similarity: from 0 to 1; less similar names are not suggested.
    """
    by_lower_case: dict[str, str] = {}
    for known_name in known:
        by_lower_case.setdefault(known_name.lower(), known_name)
    found = difflib.get_close_matches(name.lower(), by_lower_case, n=1, cutoff=similarity)
    if not found:
        return ''
    return f'; did you mean {by_lower_case[found[0]]}?'


def first_line(error: BaseException) -> str:
    """Return the type of an error and the first line of its message, `printable`."""
    text = type(error).__name__
    lines = str(error).strip().splitlines()
    if lines:
        text += f': {lines[0]}'
    return printable(text)


def info(message: str) -> None:
    """Log a message at the level INFO; in MMEngine's current logger if MMEngine is installed."""
    if print_log is None:
        logging.getLogger('mmpola').info(message)
    else:
        print_log(message, logger='current')


def run_main(main: Callable[[], None], interrupted: str = 'interrupted') -> None:
    """Run a script's main(), and end it with one line if the user made a mistake or pressed Ctrl-C.

    A `UsageError` is printed, and the exit status is 2. Ctrl-C prints `interrupted`, and the status
    is 130. Characters that the locale cannot print are written as escapes.
    """
    os.environ.setdefault('LOCAL_RANK', '0')  # MMEngine's DDP wrapper needs it
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, 'reconfigure'):
            stream.reconfigure(errors='backslashreplace')
    try:
        main()
    except UsageError as error:
        lines = [printable(line) for line in str(error).splitlines()]
        print('error: ' + '\n'.join(lines), file=sys.stderr)
        sys.exit(2)
    except (Exception, KeyboardInterrupt) as error:
        if not _by_ctrl_c(error):
            raise
        print(interrupted, file=sys.stderr)
        sys.exit(CTRL_C)


def _by_ctrl_c(error: BaseException | None) -> bool:
    """Whether Ctrl-C led to an error: MMEngine's Config catches it and raises a SyntaxError."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None
