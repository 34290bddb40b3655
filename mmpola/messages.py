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
    """An argument, config or file of the user is invalid; the message says what is wrong and what to do."""


def printable(text: object) -> str:
    """Write control characters of a text as escapes, for one line that a terminal only prints.

    Names inside files (of tensors, classes, files) may hold line breaks and terminal escapes; other
    characters, such as umlauts, stay.
    """
    escaped = []
    for character in str(text):
        plain = character.isprintable()
        escaped.append(character if plain else character.encode('unicode_escape').decode())
    return ''.join(escaped)


def counted(number: int, noun: str) -> str:
    """Return a number with a regular noun in singular or plural: '1 image', '2 images'."""
    return f'{number} {noun}' if number == 1 else f'{number} {noun}s'


def listed(names: Iterable[object], shown: int | None = 5) -> str:
    """Join names by commas, each `printable`: the first `shown` and how many more; None: all of them."""
    every = [printable(name) for name in names]
    more = '' if shown is None or len(every) <= shown else f' and {len(every) - shown} more'
    return ', '.join(every[:shown]) + more


def grouped(broken: Iterable[BrokenRule]) -> list[str]:
    """Write one line per broken rule, with the first files that break it."""
    by_rule: dict[str, list[str]] = {}
    for rule, item in broken:
        by_rule.setdefault(rule, []).append(item)
    return [f'{rule} ({len(items)}): {listed(items)}' for rule, items in by_rule.items()]


def nearest(name: str, known: Iterable[str], similarity: float = 0.6) -> str | None:
    """Return the known name that is most similar to `name`, whatever the case of their letters.

    Args:
        name: what a user wrote.
        known: the names that it may have.
        similarity: from 0 to 1; None is returned if no name is as similar as that.
    """
    by_lower_case = {each.lower(): each for each in reversed(list(known))}
    found = difflib.get_close_matches(name.lower(), by_lower_case, n=1, cutoff=similarity)
    return by_lower_case[found[0]] if found else None


def suggestion(name: str, names: Iterable[str], similarity: float = 0.6) -> str:
    """Return the end of a message that suggests what `nearest` finds; '' if it finds nothing."""
    meant = nearest(name, names, similarity)
    return '' if meant is None else f'; did you mean {meant}?'


def first_line(error: BaseException) -> str:
    """Return the type of an error and the first line of its message, `printable`."""
    return printable(': '.join([type(error).__name__, *str(error).strip().splitlines()[:1]]))


def info(message: str) -> None:
    """Log a message at the level INFO, in MMEngine's current logger where MMEngine is installed."""
    if print_log is None:
        logging.getLogger('mmpola').info(message)
    else:
        print_log(message, logger='current')


def run_main(main: Callable[[], None], interrupted: str = 'interrupted') -> None:
    """Run a script's main(), and end it with one line if the user made a mistake or pressed Ctrl-C.

    A `UsageError` is printed, with exit status 2. Ctrl-C prints `interrupted`, with status 130.
    Texts that the locale cannot print are written with escapes.
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
    """Whether Ctrl-C led to an error: MMEngine's Config, which catches everything, calls it a SyntaxError."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None
