"""Messages: where they go, MMEngine's current logger or Python's logging, and how they list names."""

from __future__ import annotations

import logging
from collections.abc import Iterable

try:
    from mmengine.logging import print_log
except ModuleNotFoundError:
    print_log = None


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
