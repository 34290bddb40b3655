"""Collect what finished runs have written: one small JSON file per run."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.experiments.plan import Run, experiment_of
from benchmarks.experiments.running import TESTED, newest, read_journal
from benchmarks.experiments.sampling import AREAS, standard_error
from benchmarks.records import ROOT
from mmpola.checkpoint.safe_load import read_checkpoint
from mmpola.files import write_atomically
from mmpola.openmmlab.screen.curves import read_scalars

RESULTS = ROOT / 'benchmarks' / 'results' / 'experiments'
EARLIER = 'earlier.json'
"""What is left of records that others have replaced."""

Record = dict[str, Any]

MACHINE_KEYS = ('processor', 'python', 'torch', 'mmdet', 'mmsegmentation')
LOSSES = 60
"""How many losses a record keeps."""

REFUSED = 2
"""Exit status of a script that has refused its arguments or its data, and has trained nothing."""


def collect(run: Run, folder: Path) -> Record:
    """Return the record of a finished run from its folder."""
    experiment = experiment_of(run.variant)
    tested = json.loads(newest(folder / TESTED, '*/*.json').read_text())
    test = {}
    for metric in experiment.metrics:
        test[metric.title] = round(tested[metric.key] * metric.scale, 2)
    main = experiment.metrics[0]
    errors = {}
    error = standard_error(folder / TESTED)
    if error is not None:
        errors[main.title] = error
    kept = {}
    if (folder / TESTED / AREAS).exists():
        kept['areas_of_images'] = np.load(folder / TESTED / AREAS).tolist()
    lines = read_scalars(folder)
    curve = by_logged_step(lines, main.key, main.scale)
    losses = by_logged_step(lines, 'loss')
    step, best = max(curve, key=lambda point: point[1])
    journal = read_journal(folder)
    training = [
        entry
        for entry in journal
        if entry['script'] == 'train.py' and entry['exit_status'] != REFUSED
    ]
    return {
        'run': run.name,
        'variant': run.variant,
        'seed': run.seed,
        'test': test,
        'standard_error': errors,
        'best_on_validation': {experiment.steps: step, main.title: best},
        'parameters': parameters(newest(folder, 'best_*.pth')),
        'cpu_minutes': round(sum(entry['cpu_minutes'] for entry in journal), 1),
        'wall_minutes': round(sum(entry['wall_minutes'] for entry in journal), 1),
        'resumed': len(training) - 1,
        'trees': code_of(journal),
        'started': journal[0]['started'],
        'machine': {key: journal[-1].get(key, '') for key in MACHINE_KEYS},
        'validation': curve,
        'loss': losses[:: math.ceil(len(losses) / LOSSES)],
        **kept,
    }


def code_of(journal: list[dict[str, Any]]) -> list[dict[str, str]]:
    """Return the tree ids of each state of the code that a run used; [] if one is not known."""
    states: list[dict[str, str]] = []
    for entry in journal:
        state = entry.get('trees')  # {} without git
        if not state:
            return []
        if state not in states:
            states.append(state)
    return states


def by_logged_step(
    lines: list[dict[str, Any]], key: str, scale: float = 1.0
) -> list[tuple[int, float]]:
    """Return (step, value) of a metric: MMEngine logs epochs or training steps as `step`."""
    values = {}
    for line in lines:
        value = line.get(key)
        if value is not None and math.isfinite(value):
            values[int(line['step'])] = round(value * scale, 4)
    return sorted(values.items())


def parameters(checkpoint: Path) -> int:
    """Return the number of weights in a checkpoint; the networks have no averaged statistics."""
    weights = read_checkpoint(checkpoint)['state_dict']
    return sum(x.numel() for x in weights.values() if x.is_floating_point())


def save(record: Record, results: Path = RESULTS) -> Path:
    """Write a record; that of an earlier run of the same name moves to EARLIER.

    So the page shows both.
    """
    path = results / f'{record["run"]}.json'
    if path.exists():
        replaced = json.loads(path.read_text())
        if replaced['started'] != record['started']:
            save_earlier([*load_earlier(results), shortened(replaced)], results)
    return write_record(record, results)


def write_record(record: Record, results: Path) -> Path:
    """Write a record as RESULTS/RUN.json, with a list of points on one line; return the path."""
    results.mkdir(parents=True, exist_ok=True)
    lines = []
    for key, value in record.items():
        lines.append(f' {json.dumps(key)}: {json.dumps(value)}')
    path = results / f'{record["run"]}.json'
    write_atomically(path, '{\n' + ',\n'.join(lines) + '\n}\n')
    return path


def shortened(record: Record) -> Record:
    """Return what EARLIER keeps of a record; `note` says how these runs differed, if they did."""
    short = {key: record[key] for key in ('run', 'variant', 'seed', 'test', 'trees', 'started')}
    return {**short, 'processor': record['machine']['processor'], 'note': ''}


def save_earlier(records: list[Record], results: Path = RESULTS) -> None:
    """Write the records that others have replaced, one on a line."""
    lines = ',\n'.join(json.dumps(record) for record in records)
    write_atomically(results / EARLIER, f'[\n{lines}\n]\n')


def load_earlier(results: Path = RESULTS) -> list[Record]:
    """Return the records that others have replaced, in the order in which that happened."""
    path = results / EARLIER
    if not path.exists():
        return []
    records: list[Record] = json.loads(path.read_text())
    return records


def load(results: Path = RESULTS) -> dict[str, Record]:
    """Return the records of all runs, by the runs' names."""
    records = {}
    for path in sorted(results.glob('*-[0-9].json')):
        record = json.loads(path.read_text())
        records[record['run']] = record
    return records
