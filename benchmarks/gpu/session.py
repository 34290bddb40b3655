"""A run of the benchmark: its device, its time, and its results, which are saved item by item."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from pathlib import Path
from threading import Timer
from typing import Any

import torch
import triton

from benchmarks.gpu.processes import Checker
from benchmarks.records import commit
from mmpola.checkpoint.write import write_atomically
from mmpola.messages import first_line
from mmpola.ops.triton.tables import FOLDER, gpu_of

RECORD = 'run.json'

SHARES = {'correctness': 0.3, 'tuning': 0.65, 'results': 0.93}
"""Part -> share of the budget after which it starts nothing more.

The time that a part leaves over is for the next ones.
"""

HARD_STOP = 0.97
"""Share of the budget after which a running item is stopped. The rest is for the report."""

Measure = Callable[[], dict[str, Any]]
"""Returns a JSON object."""


class DeviceLostError(Exception):
    """The GPU answers nothing any more in this process, as after an illegal address."""


@dataclass(frozen=True)
class Session:
    """A run, which may continue an earlier one.

    Attributes:
        folder: of the results.
        device: on which the kernels run.
        dry_run: whether shapes are tiny and the device is the interpreter.
        start: of the run, by `time.monotonic`.
        seconds: budget of time.
        environment: GPU, versions and commit; results of another environment are not continued.
        parts: results by part and item.
        checker: the process in which kernels are checked.
    """

    folder: Path
    device: torch.device
    dry_run: bool
    start: float
    seconds: float
    environment: dict[str, Any]
    parts: dict[str, dict[str, Any]]
    checker: Checker

    def left(self, share: float = 1.0) -> float:
        """Return the seconds until a share of the budget is used, 0 after it."""
        return max(0.0, self.start + share * self.seconds - time.monotonic())

    def results(self, part: str) -> dict[str, Any]:
        """Return the results of a part by item; what is added to them is added to the session."""
        return self.parts.setdefault(part, {})

    def missing(self, part: str, names: Iterable[str]) -> list[str]:
        """Return the items without a result: first the new ones, then those that failed before."""
        done = self.results(part)
        new = []
        failed = []
        for name in names:
            if name not in done:
                new.append(name)
            elif done[name].get('failure'):
                failed.append(name)
        return new + failed

    def rounds(self, number: int) -> int:
        """Return in how many rounds variants are timed."""
        return 1 if self.dry_run else number

    def perform(
        self,
        part: str,
        items: Mapping[str, Measure],
        compilations: Mapping[str, Sequence[Future[Any]]] | None = None,
    ) -> None:
        """Measure and save the items that have no result yet, while the part has time.

        Args:
            part: name of the part.
            items: by name.
            compilations: what has to end before an item, if anything; its errors are raised again
                by the launch.

        Raises:
            DeviceLostError: an item failed, and after it the GPU answers nothing any more.
        """
        if compilations is None:
            compilations = {}
        done = self.results(part)
        missing = self.missing(part, items)
        known = len(items) - len(missing)
        if known:
            self.say(f'{part}: {known} of {len(items)} are known from the last run')
        for number, name in enumerate(missing, known):
            left = self.left(SHARES[part])
            if left == 0 or wait(compilations.get(name, ()), left).not_done:
                self.say(
                    f'{part}: out of time, {len(items) - number} are left out: '
                    'run the command again'
                )
                return
            self.say(f'{part} {number + 1} of {len(items)}: {name}')
            # It stays if the process ends before there is a result or an error.
            done[name] = {'failure': 'the run ended during it'}
            self.save()
            try:
                done[name] = items[name]()
            # Compilers, drivers and peers may raise anything, and the rest is still of use.
            except Exception as error:
                done[name] = {'failure': first_line(error)}
                self._check_device(name)
            finally:
                self.save()
            failure = done[name].get('failure')
            if failure:
                self.say(f'{part}: {name} failed: {failure}')

    def _check_device(self, name: str) -> None:
        """Raise DeviceLostError if the GPU answers nothing after an item."""
        if self.device.type != 'cuda':
            return
        try:
            torch.cuda.synchronize(self.device)
        except Exception as error:
            raise DeviceLostError(
                f'{name}: the GPU cannot be used after it ({first_line(error)})'
            ) from error

    def save(self) -> None:
        """Write all results."""
        content = json.dumps({'environment': self.environment, 'parts': self.parts}, indent=1)
        write_atomically(self.folder / RECORD, f'{content}\n'.encode())

    def say(self, message: str) -> None:
        """Print a line of progress with the time that is left."""
        minutes, seconds = divmod(int(self.left()), 60)
        print(f'[{minutes}:{seconds:02} left] {message}', file=sys.stderr, flush=True)


def hard_stop(seconds: float, report: Callable[[], int]) -> Timer:
    """Start a timer that reports and then ends the process with the report's status.

    It is a thread, because a signal handler would not run while a kernel hangs.

    Args:
        seconds: time until then.
        report: returns the exit status.
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

    timer = Timer(seconds, stop)
    timer.daemon = True
    timer.start()
    return timer


def environment_of(device: torch.device) -> dict[str, Any]:
    """Return what results depend on: GPU, versions, a digest of the kernels' sources, commit."""
    gpu, capability = gpu_of(device)
    sources = b''.join(path.read_bytes() for path in sorted(FOLDER.glob('*.py')))
    return {
        'gpu': gpu,
        'capability': list(capability),
        'torch': torch.__version__,
        'triton': triton.__version__,
        'kernels': hashlib.sha256(sources).hexdigest()[:16],
        'commit': commit(),
    }


def earlier_parts(folder: Path, environment: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the results in a folder; none if they are from another environment."""
    try:
        record = json.loads((folder / RECORD).read_bytes())
        parts: dict[str, dict[str, Any]] = record['parts']
        is_same = record['environment'] == environment
    except (OSError, ValueError, KeyError, TypeError):  # no file, or not one of this benchmark
        return {}
    if not is_same:
        return {}
    return parts
