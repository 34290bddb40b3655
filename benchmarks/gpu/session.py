"""One run of the benchmark: its device, its time budget, and its results, which are saved after every item."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, TimeoutError
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
import triton

from benchmarks.gpu.processes import Checker
from mmpola.checkpoint.write import write_atomically
from mmpola.messages import first_line
from mmpola.ops.triton.tables import FOLDER

RECORD = 'run.json'

SHARES = {'correctness': 0.3, 'tuning': 0.65, 'results': 0.93}
"""Part -> share of the budget after which it starts nothing more. What a part leaves over, the next ones get."""

HARD_STOP = 0.97
"""Share of the budget after which an item that is running is stopped. The rest is for the report."""


class DeviceLostError(Exception):
    """The GPU answers nothing any more in this process, as after an illegal address."""


class Item(NamedTuple):
    """A measurement.

    Args:
        name: unique within its part.
        measure: returns a JSON object.
        compilation: has to end before; None if there is nothing to wait for.
    """

    name: str
    measure: Callable[[], dict[str, Any]]
    compilation: Future[Any] | None = None


class Budget:
    """Counts down from a number of seconds, of the whole run.

    Args:
        start: of the run, by `time.monotonic`; None for now.
    """

    def __init__(self, seconds: float, start: float | None = None) -> None:
        self.seconds = seconds
        self._start = time.monotonic() if start is None else start

    def left(self, share: float = 1.0) -> float:
        """Return the seconds until a share of the budget is used, 0 after it."""
        return max(0.0, share * self.seconds - (time.monotonic() - self._start))

    @contextmanager
    def hard_stop(self, report: Callable[[], int]) -> Iterator[None]:
        """Report and end the process with the returned status if the block is not done in time.

        A thread does this, because a signal handler would not run while a kernel that hangs is waited for.
        """

        def stop() -> None:
            status = 1
            try:
                status = report()
            finally:
                for process in multiprocessing.active_children():
                    process.kill()
                sys.stdout.flush()
                os._exit(status)

        timer = threading.Timer(self.left(HARD_STOP), stop)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()


@dataclass(frozen=True)
class Session:
    """A run, which may continue an earlier one.

    Args:
        folder: of the results.
        device: on which the kernels run.
        dry_run: whether shapes are tiny and the device is the interpreter.
        budget: of time.
        environment: GPU, versions and commit; results of another environment are not continued.
        parts: results by part and item.
        checker: the process in which kernels are checked.
    """

    folder: Path
    device: torch.device
    dry_run: bool
    budget: Budget
    environment: dict[str, Any]
    parts: dict[str, dict[str, Any]]
    checker: Checker

    def results(self, part: str) -> dict[str, Any]:
        """Return the results of a part by item; changes belong to the session."""
        return self.parts.setdefault(part, {})

    def is_known(self, part: str, name: str) -> bool:
        """Whether an item has a result; a failure is none, it is measured again."""
        return name in self.results(part) and not self.results(part)[name].get('failure')

    def rounds(self, number: int) -> dict[str, int]:
        """Return how often variants are timed, as arguments of the functions of benchmarks/measure.py."""
        return {'repeats': 1, 'warm_up': 0} if self.dry_run else {'repeats': number}

    def perform(self, part: str, items: Sequence[Item]) -> int:
        """Measure and save the items that have no result yet, while the part has time; return how many are left out.

        What failed in an earlier run comes last.

        Raises:
            DeviceLostError: an item failed, and after it the GPU answers nothing any more.
        """
        done = self.results(part)
        missing = sorted((x for x in items if not self.is_known(part, x.name)), key=lambda item: item.name in done)
        known = len(items) - len(missing)
        if known:
            self.say(f'{part}: {known} of {len(items)} are known from the last run')
        for number, item in enumerate(missing):
            left = self.budget.left(SHARES[part])
            if not left or not _is_compiled(item, left):
                self.say(f'{part}: out of time, {len(missing) - number} are left out: run the command again')
                return len(missing) - number
            self.say(f'{part} {known + number + 1} of {len(items)}: {item.name}')
            done[item.name] = {'failure': 'the run ended during it'}  # unless a result or an error takes its place
            self.save()
            try:
                done[item.name] = item.measure()
            except Exception as error:  # compilers, drivers and peers may raise anything, and the rest is still of use
                done[item.name] = {'failure': first_line(error)}
                self._check_device(item.name)
            finally:
                self.save()
            if failure := done[item.name].get('failure'):
                self.say(f'{part}: {item.name} failed: {failure}')
        return 0

    def _check_device(self, name: str) -> None:
        if self.device.type == 'cuda':
            try:
                torch.cuda.synchronize(self.device)
            except Exception as error:
                raise DeviceLostError(f'{name}: the GPU cannot be used after it ({first_line(error)})') from error

    def save(self) -> None:
        """Write all results."""
        content = json.dumps({'environment': self.environment, 'parts': self.parts}, indent=1)
        write_atomically(self.folder / RECORD, f'{content}\n'.encode())

    def say(self, message: str) -> None:
        """Print a line of progress with the time that is left."""
        minutes, seconds = divmod(int(self.budget.left()), 60)
        print(f'[{minutes}:{seconds:02} left] {message}', file=sys.stderr, flush=True)


def _is_compiled(item: Item, seconds: float) -> bool:
    """Wait for an item's compilation; an error in it is raised again when the kernel is launched."""
    if item.compilation is not None:
        try:
            item.compilation.exception(timeout=seconds)
        except TimeoutError:
            return False
    return True


def versions() -> dict[str, str]:
    """Return the version of Triton and a digest of the kernels' sources: other ones make other results."""
    digest = hashlib.sha256()
    for path in sorted(FOLDER.glob('*.py')):
        digest.update(path.read_bytes())
    return {'triton': triton.__version__, 'kernels': digest.hexdigest()[:16]}


def earlier_parts(folder: Path, environment: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the results that a folder has of the same environment, else none."""
    try:
        record = json.loads((folder / RECORD).read_bytes())
        return record['parts'] if record['environment'] == environment else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}
