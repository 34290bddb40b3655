"""One run of the benchmark: its device, its time budget, and its results, which are saved after
every item.
"""

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
"""Part -> share of the budget after which it starts nothing more. What a part leaves over, the next
ones get.
"""

HARD_STOP = 0.97
"""Share of the budget after which an item that is running is stopped. The rest is for the
report.
"""

Measure = Callable[[], dict[str, Any]]
"""Returns a JSON object."""


class DeviceLostError(Exception):
    """The GPU answers nothing any more in this process, as after an illegal address."""


@dataclass(frozen=True)
class Session:
    """A run, which may continue an earlier one.

    Args:
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
        """Return the results of a part by item; changes belong to the session."""
        return self.parts.setdefault(part, {})

    def missing(self, part: str, names: Iterable[str]) -> list[str]:
        """Return what has no result, what failed in an earlier run last."""
        done = self.results(part)
        return sorted(
            (x for x in names if x not in done or done[x].get('failure')), key=done.__contains__
        )

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
            items: by name.
            compilations: what has to end before an item, if anything; its errors are raised again
                by the launch.

        Raises:
            DeviceLostError: an item failed, and after it the GPU answers nothing any more.
        """
        done, missing = self.results(part), self.missing(part, items)
        known = len(items) - len(missing)
        if known:
            self.say(f'{part}: {known} of {len(items)} are known from the last run')
        for number, name in enumerate(missing, known):
            left, compiled = self.left(SHARES[part]), (compilations or {}).get(name, ())
            if not left or wait(compiled, left).not_done:
                self.say(
                    f'{part}: out of time, {len(items) - number} are left out: '
                    'run the command again'
                )
                return
            self.say(f'{part} {number + 1} of {len(items)}: {name}')
            done[name] = {
                'failure': 'the run ended during it'
            }  # unless a result or an error takes its place
            self.save()
            try:
                done[name] = items[name]()
            # compilers, drivers and peers may raise anything, and the rest is still of use
            except Exception as error:
                done[name] = {'failure': first_line(error)}
                if self.device.type == 'cuda':
                    try:
                        torch.cuda.synchronize(self.device)
                    except Exception as lost:
                        raise DeviceLostError(
                            f'{name}: the GPU cannot be used after it ({first_line(lost)})'
                        ) from lost
            finally:
                self.save()
            if failure := done[name].get('failure'):
                self.say(f'{part}: {name} failed: {failure}')

    def save(self) -> None:
        """Write all results."""
        content = json.dumps({'environment': self.environment, 'parts': self.parts}, indent=1)
        write_atomically(self.folder / RECORD, f'{content}\n'.encode())

    def say(self, message: str) -> None:
        """Print a line of progress with the time that is left."""
        minutes, seconds = divmod(int(self.left()), 60)
        print(f'[{minutes}:{seconds:02} left] {message}', file=sys.stderr, flush=True)


def hard_stop(seconds: float, report: Callable[[], int]) -> Timer:
    """Report and end the process with the returned status after a time, unless the returned timer
    is cancelled.

    A thread does this, because a signal handler would not run while a kernel that hangs is waited
    for.
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
    """Return the GPU, the versions, a digest of the kernels' sources and the commit: other ones
    make other results.
    """
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
    """Return the results that a folder has of the same environment, else none."""
    try:
        record = json.loads((folder / RECORD).read_bytes())
        return record['parts'] if record['environment'] == environment else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}
