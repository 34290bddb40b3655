"""Show that a run that was killed and resumed ends with the weights of one that was not."""

from __future__ import annotations

import json
import re
import signal
import time
from pathlib import Path
from typing import Any

import psutil
import torch

from benchmarks.experiments.plan import Run
from benchmarks.experiments.results import RESULTS
from benchmarks.experiments.running import CODE, TRAINED, call, start, training_command
from benchmarks.records import trees
from mmpola.checkpoint.safe_load import read_checkpoint
from mmpola.files import write_atomically
from mmpola.openmmlab.screen.curves import read_scalars
from mmpola.openmmlab.start.choose import newest_checkpoint

RUN = Run('segment_pola_swin', 0)
"""A run whose batches depend on random crops and flips."""

STEPS = 300
OPTIONS = [
    f'train_cfg.max_iters={STEPS}',
    'train_cfg.val_interval=300',
    'default_hooks.logger.interval=25',
    'default_hooks.checkpoint.interval=50',
]
KILLED_AFTER = 175
"""The logged step after which the process gets SIGKILL, between two checkpoints."""

Record = dict[str, Any]


def check_resume(runs: Path) -> Record:
    """Train the beginning of a run twice, once killed in the middle and resumed; compare the ends.

    Args:
        runs: folder of all runs; the two are in `resume-check`.

    Returns:
        What is written to RESULTS/resume.json.
    """
    whole = runs / 'resume-check' / 'whole'
    killed = runs / 'resume-check' / 'killed'
    killed_at = None
    for folder in (whole, killed):
        folder.mkdir(parents=True, exist_ok=True)
        if (folder / TRAINED).exists():
            continue
        if folder == killed:
            killed_at = train_until_killed(folder)
        if call(training_command(RUN, folder, OPTIONS), folder) != 0:
            raise RuntimeError(f'{folder}: training failed, see output.log')
        (folder / TRAINED).touch()
    record = {
        'run': RUN.name,
        'steps': STEPS,
        'trees': trees(CODE),
        'killed_after_step': killed_at,
        'resumed_from_step': resumed_from(killed),
        'tensors': len(final_state(whole)),
        'differing': differing_tensors(whole, killed),
    }
    RESULTS.mkdir(parents=True, exist_ok=True)
    write_atomically(RESULTS / 'resume.json', json.dumps(record, indent=1) + '\n')
    return record


def train_until_killed(folder: Path) -> int:
    """Train until `KILLED_AFTER` is logged, then kill the process; return the last logged step."""
    with open(folder / 'output.log', 'ab') as output:
        process: psutil.Popen = start(training_command(RUN, folder, OPTIONS), output)
        while True:
            time.sleep(1)
            lines = [line for line in read_scalars(folder) if 'loss' in line]
            if lines and lines[-1]['step'] >= KILLED_AFTER:
                process.send_signal(signal.SIGKILL)
                process.wait()
                return int(lines[-1]['step'])
            if process.poll() is not None:
                raise RuntimeError(f'{folder}: training ended too early, see output.log')


def resumed_from(folder: Path) -> int | None:
    """Return the step of the checkpoint that training printed it resumes from."""
    output = (folder / 'output.log').read_text(errors='replace')
    steps = re.findall(r'^--resume: .*iter_(\d+)\.pth', output, re.MULTILINE)
    return int(steps[-1]) if steps else None


def final_state(folder: Path) -> dict[str, Any]:
    """Return the tensors of a run's last checkpoint: weights and the optimizer's moments."""
    path = newest_checkpoint(folder)
    assert path is not None
    content = read_checkpoint(path)
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
