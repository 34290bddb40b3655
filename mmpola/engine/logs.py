"""Reading MMEngine's training logs: lines of scalars, with the runs of a work dir joined."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mmpola.messages import UsageError, listed

POSITIONS = ('iter', 'step', 'epoch')

Row = dict[str, float]


@dataclass
class Run:
    """The rows of one file in the order written: `training` rows have a step `iter`, `validation` rows do not."""

    training: list[Row] = field(default_factory=list)
    validation: list[Row] = field(default_factory=list)


@dataclass
class Log:
    """A log with its `runs` joined; `unit` is what the `step` of validation rows counts: 'epoch' or 'step'."""

    label: str
    rows: Run
    runs: int
    unit: str

    def keys(self, validation: bool) -> list[str]:
        """Return the names of the logged values, in the order of their first row."""
        rows = self.rows.validation if validation else self.rows.training
        return list(dict.fromkeys(key for row in rows for key in row if key not in POSITIONS))

    def curve(self, key: str, validation: bool) -> tuple[list[float], list[float]]:
        """Return (positions, values) of the rows that have the key."""
        rows = [row for row in (self.rows.validation if validation else self.rows.training) if key in row]
        return [row['step' if validation else 'iter'] for row in rows], [row[key] for row in rows]

    def summary(self) -> str:
        """Describe the log in one line: its steps, its runs, and losses that are not finite."""
        steps = [row['iter'] for row in self.rows.training]
        runs = f'{self.runs} runs joined' if self.runs > 1 else 'one run'
        broken = sum(not math.isfinite(loss) for loss in self.curve('loss', False)[1])
        warning = f'; {broken} rows have a NaN or infinite loss' if broken else ''
        return f'{self.label}: steps {steps[0]:,.0f} to {steps[-1]:,.0f}, {runs}{warning}'


def read_run(path: Path) -> Run:
    """Read the rows of a scalars.json; broken lines, as an interrupted write leaves them, are counted and skipped.

    Raises:
        UsageError: the file cannot be read.
    """
    run, broken = Run(), 0
    try:
        lines = path.read_text(errors='replace').splitlines()
    except OSError as error:
        raise UsageError(f'{path}: cannot be read ({error.strerror})') from None
    for line in filter(str.strip, lines):
        try:
            content: Any = json.loads(line)
        except json.JSONDecodeError:
            content = None
        row = _numbers(content) if isinstance(content, dict) else {}
        if 'step' not in row:
            broken += 1
        else:
            (run.training if 'iter' in row else run.validation).append(row)
    if broken:
        print(f'{path}: skipped {broken} of {len(lines)} lines, which are not JSON objects with a step')
    return run


def _numbers(content: dict[str, Any]) -> Row:
    """Return the numbers of a row, without the prefixes train/ and val/ of MMEngine's log_with_hierarchy."""
    return {
        key.removeprefix('train/').removeprefix('val/'): value
        for key, value in content.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool)
    }


def scalar_files(path: Path) -> list[Path]:
    """Find the files of a log's runs, oldest first: run folders are named by the time at which the run began.

    Raises:
        UsageError: it does not exist or holds no log.
    """
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise UsageError(f'{path}: no such work dir or log')
    for pattern in ('vis_data/scalars.json', '*/vis_data/scalars.json', '*/vis_data/*.json', 'vis_data/*.json'):
        if files := sorted(path.glob(pattern)):
            return files
    raise UsageError(f'{path}: expected an MMEngine log (vis_data/*.json or */vis_data/*.json), got none')


def read_log(path: Path, label: str) -> Log:
    """Read the newest run of a log, joined with the runs that it resumed.

    Raises:
        UsageError: there is no log, or no training step in it.
    """
    files = scalar_files(path)
    runs = [run for run in map(read_run, files) if run.training]
    if not runs:
        raise UsageError(f'{path}: no training step was logged in {listed(files)}')
    joined, count = runs[-1], 1
    for older in reversed(runs[:-1]):
        if _from_scratch(joined, _logging_interval(joined) or _logging_interval(older)):
            break
        joined, count = _joined(older, joined), count + 1
    return Log(label, joined, count, 'epoch' if _by_epoch(joined) else 'step')


def _logging_interval(run: Run) -> float:
    """Return the steps between a run's first two rows, 0 if there is only one."""
    steps = [row['iter'] for row in run.training[:2]]
    return steps[-1] - steps[0]


def _from_scratch(run: Run, interval: float) -> bool:
    """Whether a run began at step 1: its first logged step is within one logging interval."""
    first = run.training[0]
    return first.get('epoch', 1) == 1 and first['iter'] <= (interval or first['iter'])


def _by_epoch(run: Run) -> bool:
    """Whether validation rows count epochs: then none is beyond the last epoch of training."""
    last_epoch = max(row.get('epoch', 0) for row in run.training)
    return all(row['step'] <= last_epoch for row in run.validation)


def _joined(older: Run, newer: Run) -> Run:
    """Join two runs: of the older one, keep rows before the first step (or validated epoch) of the newer one."""
    first = newer.training[0]
    bound = first['epoch'] if _by_epoch(older) and 'epoch' in first else first['iter']
    return Run(
        [row for row in older.training if row['iter'] < first['iter']] + newer.training,
        [row for row in older.validation if row['step'] < bound] + newer.validation,
    )


def labels(paths: list[Path]) -> list[str]:
    """Return a short name for each path: its last part, or as many parts as make the names distinct.

    Raises:
        UsageError: a path is given twice.
    """
    for parts in range(1, max(len(path.resolve().parts) for path in paths) + 1):
        names = ['/'.join(path.resolve().parts[-parts:]) for path in paths]
        if len(set(names)) == len(names):
            return names
    raise UsageError(f'{listed(paths)}: the same log twice')
