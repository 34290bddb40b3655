"""Show that a run that was killed and resumed ends with the weights of one that was not."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import Any

import psutil
import torch

from benchmarks.experiments.plan import Run
from benchmarks.experiments.results import RESULTS, logged
from benchmarks.experiments.running import (
    is_finished,
    is_trained,
    read_journal,
    start,
    train_and_test,
    training_command,
)
from mmpola.engine.resume import newest_checkpoint

Record = dict[str, Any]


def check_resume(run: Run, runs: Path, kill_after: int) -> Record:
    """Train a run a second time, kill it in the middle, resume it, and compare the weights.

    Args:
        run: one that has finished, never interrupted.
        runs: folder of all runs; the second one gets the suffix '-killed'.
        kill_after: the logged step after which the process gets SIGKILL.

    Returns:
        What is written to RESULTS/resume.json.

    Raises:
        ValueError: the first run has not finished, or was itself resumed.
    """
    first = runs / run.name
    starts = [entry for entry in read_journal(first) if entry['script'] == 'train.py']
    if not is_finished(first) or len(starts) != 1:
        raise ValueError(f'{first}: expected a run that has finished and was never interrupted')
    second = runs / f'{run.name}-killed'
    second.mkdir(parents=True, exist_ok=True)
    killed_at = None
    if not is_trained(second):
        killed_at = train_until_killed(run, second, kill_after)
        train_and_test(run, second, [])
    differing = differing_tensors(first, second)
    record = {
        'run': run.name,
        'killed_after_step': killed_at,
        'resumed_from': resumed_from(second),
        'tensors': len(final_state(first)),
        'differing': differing,
    }
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / 'resume.json').write_text(json.dumps(record, indent=1) + '\n')
    return record


def train_until_killed(run: Run, folder: Path, step: int) -> int:
    """Train until a step of at least `step` is logged, then kill the process; return the step."""
    with open(folder / 'output.log', 'ab') as output:
        process: psutil.Popen = start(training_command(run, folder, []), output)
        while True:
            time.sleep(1)
            lines = [line for line in logged(folder) if 'loss' in line]
            if lines and lines[-1]['step'] >= step:
                process.send_signal(signal.SIGKILL)
                process.wait()
                return int(lines[-1]['step'])
            if process.poll() is not None:
                raise ValueError(f'{folder}: training ended before step {step} was logged')


def resumed_from(folder: Path) -> str:
    """Return what training printed about the checkpoint that it resumed from, without the path."""
    found = ''
    for line in (folder / 'output.log').read_text(errors='replace').splitlines():
        if line.startswith('--resume:') and ', after ' in line:
            found = line.rpartition('/')[2]
    return found


def final_state(folder: Path) -> dict[str, Any]:
    """Return the tensors of a run's last checkpoint: weights and the optimizer's moments."""
    path = newest_checkpoint(folder)
    assert path is not None
    content = torch.load(path, map_location='cpu', weights_only=False)
    tensors = {f'weights.{name}': x for name, x in content['state_dict'].items()}
    for number, state in content['optimizer']['state'].items():
        for name, x in state.items():
            tensors[f'optimizer.{number}.{name}'] = x
    return tensors


def differing_tensors(first: Path, second: Path) -> list[str]:
    """Return the names of the tensors of two runs' last checkpoints that differ in any bit."""
    a = final_state(first)
    b = final_state(second)
    names = [name for name in a if name not in b or not torch.equal(a[name], b[name])]
    return names + [name for name in b if name not in a]
