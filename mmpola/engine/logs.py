"""Training logs as MMEngine writes them: rows of scalars, the runs of a work dir joined."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mmpola.messages import UsageError

POSITIONS = ('iter', 'step', 'epoch')

Row = dict[str, float]


@dataclass
class Run:
    """Rows of one file in the order written: `training`, which have a step `iter`, and `validation`."""

    training: list[Row] = field(default_factory=list)
    validation: list[Row] = field(default_factory=list)


@dataclass
class Log:
    """One LOG, its runs joined. `unit` is what the validation rows' `step` counts: 'epoch' or 'step'."""

    label: str
    rows: Run
    runs: int
    unit: str

    def keys(self, validation: bool) -> list[str]:
        """Names of what was logged, in the order of their first row."""
        rows = self.rows.validation if validation else self.rows.training
        return list(dict.fromkeys(key for row in rows for key in row if key not in POSITIONS))

    def curve(self, key: str, validation: bool) -> tuple[list[float], list[float]]:
        """(positions, values) of the rows that have the key."""
        rows = [row for row in (self.rows.validation if validation else self.rows.training) if key in row]
        return [row['step' if validation else 'iter'] for row in rows], [row[key] for row in rows]


def read_run(path: Path) -> Run:
    """The rows of a scalars.json; lines that are no row, as an interrupted write leaves, are counted and skipped.

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
        print(f'{path}: {broken} of {len(lines)} lines are no JSON row with a step; skipped')
    return run


def _numbers(content: dict[str, Any]) -> Row:
    """The numbers of a row; with MMEngine's log_with_hierarchy names begin with train/ or val/."""
    return {
        key.removeprefix('train/').removeprefix('val/'): value
        for key, value in content.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool)
    }


def scalar_files(path: Path) -> list[Path]:
    """The files of a LOG's runs, oldest first: run folders are named by the time at which they began.

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
    raise UsageError(f'{path}: no MMEngine log in it (looked for vis_data/*.json and */vis_data/*.json)')


def read_log(path: Path, label: str) -> Log:
    """The newest run of a LOG, joined with those that it resumed.

    Raises:
        UsageError: there is no log, or no training step in it.
    """
    files = scalar_files(path)
    runs = [run for run in map(read_run, files) if run.training]
    if not runs:
        raise UsageError(f'{path}: no training step was logged in {listed(map(str, files))}')
    joined, count = runs[-1], 1
    for older in reversed(runs[:-1]):
        if _from_scratch(joined, _spacing(joined) or _spacing(older)):
            break
        joined, count = _joined(older, joined), count + 1
    return Log(label, joined, count, 'epoch' if _by_epoch(joined) else 'step')


def _spacing(run: Run) -> float:
    """Steps from a run's first row to its second, 0 where there is none."""
    steps = [row['iter'] for row in run.training[:2]]
    return steps[-1] - steps[0]


def _from_scratch(run: Run, spacing: float) -> bool:
    """Whether a run began at step 1: its first row then stands no further in than rows stand apart."""
    first = run.training[0]
    return first.get('epoch', 1) == 1 and first['iter'] <= (spacing or first['iter'])


def _by_epoch(run: Run) -> bool:
    """Whether validation rows count epochs: none is beyond the last epoch of training."""
    last_epoch = max(row.get('epoch', 0) for row in run.training)
    return all(row['step'] <= last_epoch for row in run.validation)


def _joined(older: Run, newer: Run) -> Run:
    """Both runs' rows; of the older, those before the newer's first step, or epoch where validation counts epochs."""
    first = newer.training[0]
    bound = first['epoch'] if _by_epoch(older) and 'epoch' in first else first['iter']
    return Run(
        [row for row in older.training if row['iter'] < first['iter']] + newer.training,
        [row for row in older.validation if row['step'] < bound] + newer.validation,
    )


def labels(paths: list[Path]) -> list[str]:
    """A short name of each LOG: its last part, or as much of the path as it takes to tell them apart."""
    for parts in range(1, max(len(path.resolve().parts) for path in paths) + 1):
        names = ['/'.join(path.resolve().parts[-parts:]) for path in paths]
        if len(set(names)) == len(names):
            return names
    raise UsageError(f'{listed(map(str, paths))}: the same log twice')


def listed(names: Iterable[str]) -> str:
    return ', '.join(names)
