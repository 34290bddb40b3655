"""Start training runs one after another, and continue those that were interrupted."""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any

import psutil

from benchmarks.experiments.plan import Run, experiment_of
from benchmarks.experiments.sampling import AREAS, BOXES
from benchmarks.records import ROOT, processor, trees
from mmpola.files import write_atomically

CODE = ('mmpola', 'configs', 'benchmarks/experiments')
"""Folders whose files make a result; records name their tree ids.

Not the whole folder `benchmarks`, which each result that is committed changes.
"""

JOURNAL = 'journal.json'
"""In a run's folder: one entry for each time that the run was started."""

TRAINED = 'trained'
"""An empty file in a run's folder: training has ended."""

TESTED = 'test'
"""The folder of the evaluation on the test split, in a run's folder."""

STARTS = 3
"""How often a run is started by one command before the next run begins."""

POLL_SECONDS = 5.0


def is_trained(folder: Path) -> bool:
    """Return whether the run in this folder has been trained to its end."""
    return (folder / TRAINED).exists()


def is_finished(folder: Path) -> bool:
    """Return whether the run in this folder has been trained and tested."""
    return is_trained(folder) and bool(list((folder / TESTED).glob('*/*.json')))


def status(folder: Path) -> str:
    """Return 'finished', 'interrupted' or 'not run yet'."""
    if is_finished(folder):
        return 'finished'
    if (folder / JOURNAL).exists():
        return 'interrupted'
    return 'not run yet'


def training_command(run: Run, folder: Path, options: list[str]) -> list[str]:
    """Return the script and the arguments that train a run, from its newest checkpoint if any."""
    options = ['--cfg-options', f'randomness.seed={run.seed}', *options]
    return ['train.py', str(run.config), '--work-dir', str(folder), '--resume', *options]


def train_and_test(run: Run, folder: Path, options: list[str]) -> bool:
    """Train and test one run, from where it was interrupted.

    Args:
        run: what to run.
        folder: its work dir.
        options: further `--cfg-options`.

    Returns:
        Whether it has finished. Output goes to output.log in the folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for _ in range(STARTS):
        if is_trained(folder):
            break
        if call(training_command(run, folder, options), folder) == 0:
            (folder / TRAINED).touch()
    if not is_trained(folder):
        return False
    # The validation split has chosen it; of several files, left by a move, it is the newest.
    best = newest(folder, 'best_*.pth')
    command = ['test.py', str(run.config), str(best), '--work-dir', str(folder / TESTED)]
    options = ['--cfg-options', f'randomness.seed={run.seed}', *options]
    experiment = experiment_of(run.variant)
    if experiment.finds_boxes:
        options.append(f'test_evaluator.outfile_prefix={folder / TESTED / BOXES}')
    if experiment.labels_pixels:
        options.append(f'test_evaluator.kept={folder / TESTED / AREAS}')
    call([*command, *options], folder)
    return is_finished(folder)


def newest(folder: Path, pattern: str) -> Path:
    """Return the file of this pattern that was written last."""
    return max(folder.glob(pattern), key=lambda path: path.stat().st_mtime)


def start(command: list[str], output: IO[bytes]) -> psutil.Popen:
    """Start a script of tools/ with one thread, in the repository."""
    environment = dict(os.environ, PYTHONPATH=str(ROOT), OMP_WAIT_POLICY='PASSIVE')
    for name in ('OMP_NUM_THREADS', 'MKL_NUM_THREADS'):
        environment[name] = '1'
    script = [sys.executable, str(ROOT / 'tools' / command[0]), *command[1:]]
    return psutil.Popen(script, cwd=ROOT, env=environment, stdout=output, stderr=output)


def call(command: list[str], folder: Path) -> int:
    """Run a script of tools/; the journal counts its minutes as they pass.

    Args:
        command: the script and its arguments.
        folder: of the journal and the output.

    Returns:
        The exit status.
    """
    journal = read_journal(folder)
    entry: dict[str, Any] = {
        'script': command[0],
        'trees': trees(CODE),
        'started': time.strftime('%Y-%m-%d %H:%M:%S'),
        'wall_minutes': 0.0,
        'cpu_minutes': 0.0,
        'exit_status': None,
        **machine(),
    }
    journal.append(entry)
    started = time.monotonic()
    with open(folder / 'output.log', 'ab') as output:
        process = start(command, output)
        while entry['exit_status'] is None:
            try:
                entry['exit_status'] = process.wait(timeout=POLL_SECONDS)
            except psutil.TimeoutExpired:
                times = process.cpu_times()
                seconds = times.user + times.system + times.children_user + times.children_system
                entry['cpu_minutes'] = round(seconds / 60, 2)
            entry['wall_minutes'] = round((time.monotonic() - started) / 60, 2)
            write_journal(folder, journal)
    return int(entry['exit_status'])


def read_journal(folder: Path) -> list[dict[str, Any]]:
    """Return the entries of a run's journal; none if it has not been started."""
    path = folder / JOURNAL
    if not path.exists():
        return []
    entries: list[dict[str, Any]] = json.loads(path.read_text())
    return entries


def write_journal(folder: Path, entries: list[dict[str, Any]]) -> None:
    """Write the journal whole or not at all."""
    write_atomically(folder / JOURNAL, json.dumps(entries, indent=1))


def machine() -> dict[str, str]:
    """Return processor and versions."""
    return {
        'processor': processor(),
        'python': platform.python_version(),
        'torch': version('torch'),
        'mmdet': version('mmdet'),
        'mmsegmentation': version('mmsegmentation'),
    }
