"""One run of the benchmark: its device, its time budget, and its results, which are saved after every item."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Future, TimeoutError
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks.gpu.budget import Budget
from mmpola.checkpoint.write import write_atomically

RECORD = 'run.json'


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
    """

    folder: Path
    device: torch.device
    dry_run: bool
    budget: Budget
    environment: dict[str, Any]
    parts: dict[str, dict[str, Any]]

    def results(self, part: str) -> dict[str, Any]:
        """Return the results of a part by item; changes belong to the session."""
        return self.parts.setdefault(part, {})

    def rounds(self, number: int) -> dict[str, int]:
        """Return how often variants are timed, as arguments of the functions of benchmarks/measure.py."""
        return {'repeats': 1, 'warm_up': 0} if self.dry_run else {'repeats': number}

    def perform(self, part: str, items: Sequence[Item]) -> int:
        """Measure and save the items that have no result yet, while the part has time; return how many are left out."""
        done = self.results(part)
        missing = [item for item in items if item.name not in done]
        known = len(items) - len(missing)
        if known:
            self.say(f'{part}: {known} of {len(items)} are known from the last run')
        for number, item in enumerate(missing):
            if not self.budget.left_for(part) or not self._is_compiled(part, item):
                self.say(f'{part}: out of time, {len(missing) - number} are left out: run the command again')
                return len(missing) - number
            self.say(f'{part} {known + number + 1} of {len(items)}: {item.name}')
            try:
                done[item.name] = item.measure()
            except Exception as error:  # compilers, drivers and peers may raise anything, and the rest is still of use
                done[item.name] = {'failure': f'{type(error).__name__}: {error}'.splitlines()[0]}
                self.say(f'{part}: {item.name} failed: {done[item.name]["failure"]}')
            self.save()
        return 0

    def _is_compiled(self, part: str, item: Item) -> bool:
        """Wait for an item's compilation; an error in it is raised again when the kernel is launched."""
        if item.compilation is not None:
            try:
                item.compilation.exception(timeout=self.budget.left_for(part))
            except TimeoutError:
                return False
        return True

    def save(self) -> None:
        """Write all results."""
        content = json.dumps({'environment': self.environment, 'parts': self.parts}, indent=1)
        write_atomically(self.folder / RECORD, f'{content}\n'.encode())

    def say(self, message: str) -> None:
        """Print a line of progress with the time that is left."""
        print(f'[{self.budget}] {message}', file=sys.stderr, flush=True)


def earlier_parts(folder: Path, environment: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the results that a folder has of the same environment, else none."""
    try:
        record = json.loads((folder / RECORD).read_bytes())
        return record['parts'] if record['environment'] == environment else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def workers() -> int:
    """Return the number of processes that compile: one core is left to this one."""
    return max(1, len(os.sched_getaffinity(0)) - 1)
