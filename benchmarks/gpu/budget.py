"""The time budget of a run: a deadline per part, and a hard stop that also ends what hangs."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SHARES = {'correctness': 0.3, 'tuning': 0.65, 'results': 0.93}
"""Part -> share of the budget after which it starts nothing more. What a part leaves over, the next ones get."""

HARD_STOP = 0.97
"""Share of the budget after which an item that is running is stopped. The rest is for the report."""


class OutOfTime(BaseException):
    """The budget is used up. Not an Exception, so that nothing that records errors of kernels catches it."""


class Budget:
    """Counts down from a number of seconds.

    Args:
        seconds: of the whole run.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._start = time.monotonic()

    @property
    def used(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._start

    @property
    def left(self) -> float:
        """Seconds until the end, 0 after it."""
        return max(0.0, self.seconds - self.used)

    def left_for(self, part: str) -> float:
        """Return the seconds in which a part may start items."""
        return max(0.0, SHARES[part] * self.seconds - self.used)

    def __str__(self) -> str:
        minutes, seconds = divmod(int(self.left), 60)
        return f'{minutes}:{seconds:02} left'

    @contextmanager
    def hard_stop(self) -> Iterator[None]:
        """Raise OutOfTime inside the block when only the time for the report is left."""

        def stop(number: int, frame: FrameType | None) -> None:
            raise OutOfTime

        before = signal.signal(signal.SIGALRM, stop)
        signal.setitimer(signal.ITIMER_REAL, max(0.001, HARD_STOP * self.seconds - self.used))
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
