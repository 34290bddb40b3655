"""The tables and sentences of docs/results.md about collected results."""

from __future__ import annotations

import re
import textwrap
from itertools import combinations
from statistics import mean
from typing import Any

from benchmarks.experiments.networks import KINDS, NETWORKS
from benchmarks.experiments.plan import SEEDS, Experiment
from benchmarks.experiments.results import Record
from benchmarks.records import markdown_table

NOT_RUN = 'to be run'
LINE = 128
"""Characters in a line of the pages."""


def records_of(experiment: Experiment, variant: str, records: dict[str, Record]) -> list[Record]:
    """Return the records of one variant, by seed; fewer if not all runs have finished."""
    assert variant in experiment.variants
    names = [f'{variant}-{seed}' for seed in SEEDS]
    return [records[name] for name in names if name in records]


def has_results(experiment: Experiment, records: dict[str, Record]) -> bool:
    """Return whether any run of an experiment has finished."""
    return any(records_of(experiment, variant, records) for variant in experiment.variants)


def cell(values: list[float]) -> str:
    """Return mean and range, such as '50.8 (50.1 to 51.6)'."""
    if not values:
        return NOT_RUN
    if len(values) == 1:
        return f'{values[0]:.1f}'
    return f'{mean(values):.1f} ({min(values):.1f} to {max(values):.1f})'


def table(experiment: Experiment, records: dict[str, Record]) -> str:
    """Return the Markdown table of an experiment: one row per variant."""
    titles = [metric.title for metric in experiment.metrics]
    columns = ['', 'seeds', 'parameters', *titles, 'CPU minutes a run']
    rows = []
    for variant, name in experiment.variants.items():
        own = records_of(experiment, variant, records)
        cells = [name, f'{len(own)} of {len(SEEDS)}']
        if own:
            cells.append(f'{own[0]["parameters"] / 1e6:.2f} M')
        else:
            cells.append('')
        for number, title in enumerate(titles):
            values = [record['test'][title] for record in own]
            cells.append(cell(values) if own or number == 0 else '')
        minutes = [record['cpu_minutes'] for record in own]
        cells.append(f'{mean(minutes):.1f}' if minutes else '')
        rows.append(cells)
    return markdown_table(columns, rows)


def verdict(experiment: Experiment, records: dict[str, Record]) -> str:
    """Return which variants the first metric tells apart: those whose ranges do not overlap."""
    metric = experiment.metrics[0].title
    results: dict[str, list[float]] = {}
    for variant, name in experiment.variants.items():
        own = records_of(experiment, variant, records)
        if len(own) == len(SEEDS):
            results[name] = [record['test'][metric] for record in own]
    ordered = sorted(results, key=lambda name: -mean(results[name]))
    if len(ordered) < 2:
        return 'Nothing can be compared before two variants have all three seeds.'
    pairs = list(combinations(ordered, 2))
    apart = []
    for better, worse in pairs:
        if min(results[better]) > max(results[worse]):
            apart.append(f'{better} above {worse}')
    if not apart:
        return f'No two of these can be told apart by {metric}: {"; ".join(ordered)}.'
    text = f'Told apart by {metric}: {"; ".join(apart)}.'
    if len(apart) < len(pairs):
        text += ' No other two of the variants with all three seeds can be told apart.'
    return text


def account(experiment: Experiment, records: dict[str, Record]) -> str:
    """Return a sentence on the runs: how many, their minutes, resumes, commits and machine."""
    own: list[Record] = []
    for variant in experiment.variants:
        own.extend(records_of(experiment, variant, records))
    total = len(experiment.variants) * len(SEEDS)
    cpu = sum(record['cpu_minutes'] for record in own)
    wall = sum(record['wall_minutes'] for record in own)
    resumed = sum(record['resumed'] for record in own)
    commits = sorted({commit for record in own for commit in record['commits']})
    machine = own[-1]['machine']
    text = (
        f'{len(own)} of {total} runs have finished: {cpu:.0f} minutes of CPU in {wall:.0f} minutes '
        f'beside other work on the same cores; resumed after interruptions: {resumed}. '
        f'{machine["processor"]}, one thread, torch {machine["torch"]}; commits '
        f'{", ".join(commits)}.'
    )
    return textwrap.fill(text, LINE)


def networks_table(rows: list[dict[str, Any]]) -> str:
    """Return the table of what the trained networks' attention does with test images."""
    columns = (
        'network, layer',
        'softmax',
        'same-signed',
        'opposite-signed',
        'both',
        'ReLU',
        'elu + 1',
        'gate, entries',
        'gate, tokens',
        'exponents',
    )
    table = []
    for row in rows:
        stage, block = re.findall(r'\d+', row['layer'])
        name = f'{NETWORKS[row["variant"]]}, stage {int(stage) + 1}, block {int(block) + 1}'
        cells = [name, *(f'{row[kind]:.3f}' for kind in KINDS)]
        cells.append(f'{row["correlation"]:+.2f}')
        cells.append(f'{row["token_correlation"]:+.2f}')
        smallest, largest = row['exponents']
        cells.append(f'{smallest:.2f} to {largest:.2f}')
        table.append(cells)
    return f'{markdown_table(columns, table)}\n\n{networks_summary(rows)}'


def networks_summary(rows: list[dict[str, Any]]) -> str:
    """Return how many layers have a lower entropy than linear attention, and the extremes."""
    if not rows:
        return NOT_RUN
    below_linear = sum(row['both'] < row['linear'] for row in rows)
    below_relu = sum(row['both'] < row['relu'] for row in rows)
    below_softmax = sum(row['both'] < row['softmax'] for row in rows)
    correlations = [row['correlation'] for row in rows]
    of_tokens = [row['token_correlation'] for row in rows]
    exponents = [exponent for row in rows for exponent in row['exponents']]
    numbers = sorted({row['networks'] for row in rows})
    text = (
        f'The means are over {rows[0]["images"]} images and {" or ".join(map(str, numbers))} of 3 '
        f'seeds. Of the {len(rows)} layers, both streams together have a lower entropy than '
        f'elu + 1 in {below_linear}, than ReLU in {below_relu} and than softmax in '
        f'{below_softmax}. Entry by entry the halves of the gate correlate by '
        f'{min(correlations):+.2f} to {max(correlations):+.2f}, their means of tokens by '
        f'{min(of_tokens):+.2f} to {max(of_tokens):+.2f}. The exponents lie between '
        f'{min(exponents):.2f} and {max(exponents):.2f}.'
    )
    return textwrap.fill(text, LINE)


def resume_sentence(record: dict[str, Any]) -> str:
    """Return what `check-resume` found."""
    equal = f'all {record["tensors"]} tensors of weights and optimizer are equal bit for bit'
    if record['differing']:
        equal = f'{len(record["differing"])} of {record["tensors"]} tensors differ'
    text = (
        f'Resuming is exact on a CPU: the first {record["steps"]} steps of {record["run"]} were '
        f'trained twice, once without an interruption, once killed (SIGKILL) after step '
        f'{record["killed_after_step"]} and resumed from the checkpoint of step '
        f'{record["resumed_from_step"]}. At the end, {equal}.'
    )
    return textwrap.fill(text, LINE)
