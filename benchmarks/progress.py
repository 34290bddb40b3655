"""Show on standard error which item of a suite is being measured."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator
from typing import TypeVar

T = TypeVar('T')


def track(items: Collection[T], name: str) -> Iterator[T]:
    """Yield the items; on a terminal their number is updated in place, elsewhere each gets a line."""
    in_place = sys.stderr.isatty()
    for number, item in enumerate(items, 1):
        print(f'{name}: {number} of {len(items)}', end='\r' if in_place else '\n', file=sys.stderr, flush=True)
        yield item
    if in_place:
        print(file=sys.stderr)
