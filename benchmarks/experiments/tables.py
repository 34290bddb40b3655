"""The tables and sentences of docs/results.md about collected results."""

from __future__ import annotations

import math
import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import combinations
from statistics import mean
from typing import Any

from benchmarks.experiments.floors import Floor
from benchmarks.experiments.networks import KINDS, NETWORKS
from benchmarks.experiments.plan import SEEDS, Experiment
from benchmarks.experiments.results import Record
from benchmarks.records import markdown_table
from mmpola.messages import counted

NOT_RUN = 'not run'
LINE = 128
"""Characters in a line of the pages."""


def records_of(experiment: Experiment, variant: str, records: dict[str, Record]) -> list[Record]:
    """Return the records of one variant, by seed; fewer if not all runs have finished."""
    assert variant in experiment.rows
    names = [f'{variant}-{seed}' for seed in SEEDS]
    return [records[name] for name in names if name in records]


def has_results(experiment: Experiment, records: dict[str, Record]) -> bool:
    """Return whether any run of an experiment has finished."""
    return any(records_of(experiment, variant, records) for variant in experiment.rows)


def cell(values: list[float]) -> str:
    """Return mean and range, such as '50.8 (50.1 to 51.6)'."""
    if not values:
        return NOT_RUN
    if len(values) == 1:
        return f'{values[0]:.1f}'
    return f'{mean(values):.1f} ({min(values):.1f} to {max(values):.1f})'


def table(experiment: Experiment, records: dict[str, Record], floors: Sequence[Floor] = ()) -> str:
    """Return the Markdown table of an experiment: one row per variant, then one per floor."""
    titles = [metric.title for metric in experiment.metrics]
    columns = ['', 'seeds', 'parameters', *titles, 'CPU minutes a run']
    rows = []
    for variant, name in experiment.rows.items():
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
    for floor in floors:
        rows.append(
            [f'*{floor["name"]}*', '', '', *(f'{floor[title]:.1f}' for title in titles), '']
        )
    return markdown_table(columns, rows)


def verdict(experiment: Experiment, records: dict[str, Record]) -> str:
    """Return which pairs of variants the first metric tells apart, and how many were compared.

    A pair is told apart if all seeds of one are above all seeds of the other, and the gap between
    the nearest two exceeds the sampling error. If that is not known, the gaps are named only.
    """
    metric = experiment.metrics[0].title
    runs: dict[str, list[Record]] = {}
    for variant, name in experiment.rows.items():
        own = records_of(experiment, variant, records)
        if len(own) == len(SEEDS):
            runs[name] = own
    results = {name: [record['test'][metric] for record in own] for name, own in runs.items()}
    ordered = sorted(results, key=lambda name: -mean(results[name]))
    if len(ordered) < 2:
        return 'Nothing can be compared before two variants have all three seeds.'
    pairs = list(combinations(ordered, 2))
    apart = []
    gaps = []
    unknown = 0
    for better, worse in pairs:
        error = sampling_error(experiment, [*runs[better], *runs[worse]])
        gap = min(results[better]) - max(results[worse])
        pair = f'{better} above {worse}'
        if error is None:
            unknown += 1
            if gap > 0:
                gaps.append(f'{pair} by {gap:.1f}')
        elif gap > error:
            apart.append(
                f'{pair} (a gap of {gap:.1f} between the nearest seeds, sampling error {error:.1f})'
            )
    number = counted(len(pairs), 'pair')
    found = f'with a gap between their nearest seeds: {"; ".join(gaps) or "none"}'
    reason = 'because these runs kept no predictions'
    if unknown == len(pairs):
        text = (
            f'Nothing is told apart by {metric}: the sampling error of the test split is not '
            f'known, {reason}. {number} compared, {found}.'
        )
    else:
        text = f'Told apart by {metric}, of {number} compared: {"; ".join(apart) or "none"}.'
        if unknown:
            pairs_unknown = counted(unknown, 'pair')
            text += f' Of {pairs_unknown} the sampling error is not known, {reason}; {found}.'
    return textwrap.fill(text, LINE)


def sampling_error(experiment: Experiment, records: Sequence[Record]) -> float | None:
    """Return the standard error of the difference of two results, in points; None: not known.

    For independent networks, which is too large for networks that err on the same images. An
    accuracy is a mean over images, whose error follows from their number. That of AP is in the
    records of runs that kept their boxes.
    """
    metric = experiment.metrics[0].title
    if experiment.test_images is not None:
        share = mean([record['test'][metric] for record in records]) / 100
        return 100 * math.sqrt(2 * share * (1 - share) / experiment.test_images)
    if not all(knows_error(record) for record in records):
        return None
    return math.sqrt(2 * mean([record['standard_error'][metric] ** 2 for record in records]))


def account(experiment: Experiment, records: dict[str, Record]) -> str:
    """Return sentences on the runs: how many, their minutes, resumes, machine and code."""
    own: list[Record] = []
    for variant in experiment.rows:
        own.extend(records_of(experiment, variant, records))
    total = len(experiment.rows) * len(SEEDS)
    cpu = sum(record['cpu_minutes'] for record in own)
    wall = sum(record['wall_minutes'] for record in own)
    resumes = counted(sum(record['resumed'] for record in own), 'resume')
    lost = sum(not record['trees'] for record in own)
    processors = Counter(record['machine']['processor'] for record in own)
    machines = ', '.join(f'{name} ({count})' for name, count in processors.most_common())
    versions = ', '.join(sorted({record['machine']['torch'] for record in own}))
    text = (
        f'{len(own)} of {total} runs have finished: {cpu:.0f} minutes of CPU in {wall:.0f} minutes '
        f'beside other work on the same cores, with {resumes} after interruptions. '
        f'Machines (runs): {machines}; one thread, torch {versions}.'
    )
    if lost:
        text += (
            f' The code of {lost} of them is no longer in the history, so that they cannot be '
            f'repeated exactly.'
        )
    return textwrap.fill(text, LINE)


def knows_error(record: Record) -> bool:
    """Whether a record has the standard error of its first metric; older ones have no entry."""
    return bool(record.get('standard_error'))


def starts_table(experiments: Iterable[Experiment], records: dict[str, Record]) -> str:
    """Return the table of a pretrained start: one row per data set and metric."""
    columns = ['data, metric', 'pretrained', 'random weights', 'Ultralytics, random weights']
    rows = []
    for experiment in experiments:
        own = [records_of(experiment, variant, records) for variant in experiment.rows]
        lines = {}
        for metric in experiment.metrics:
            lines[metric.title] = [[record['test'][metric.title] for record in one] for one in own]
        lines['CPU minutes a run'] = [[record['cpu_minutes'] for record in one] for one in own]
        for title, values in lines.items():
            rows.append([f'{experiment.title}, {title}', *map(cell, values)])
        main = experiment.metrics[0].title
        row = [f'{experiment.title}, standard error of {main}']
        for one in own:
            known = [record['standard_error'][main] for record in one if knows_error(record)]
            row.append(cell(known) if known else '')
        if any(row[1:]):
            rows.append(row)
    for row in rows:
        row += [''] * (len(columns) - len(row))
    return markdown_table(columns, rows)


def earlier_table(experiments: Iterable[Experiment], earlier: Sequence[Record]) -> str:
    """Return the table of the runs that newer ones have replaced; '' if there are none.

    The runs of one variant, day and code are a set and share a row, with their first metric.
    """
    rows = []
    for experiment in experiments:
        metric = experiment.metrics[0].title
        for variant, name in experiment.rows.items():
            sets: dict[str, list[Record]] = {}
            for record in earlier:
                if record['variant'] == variant:
                    day = record['started'].partition(' ')[0]
                    sets.setdefault(f'{day} {record["trees"]}', []).append(record)
            for own in sets.values():
                scores = [record['test'][metric] for record in own]
                cells = [f'{experiment.title}, {name}: {metric}', f'{mean(scores):.1f}']
                cells.append(', '.join(f'{score:.1f}' for score in scores))
                cells.append(own[0]['started'].partition(' ')[0])
                rows.append([*cells, own[0]['processor'], own[0]['note']])
    if not rows:
        return ''
    columns = ['runs that were made again', 'mean', 'seeds', 'day', 'machine', 'what was different']
    return markdown_table(columns, rows)


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
        for key in ('correlation', 'token_correlation'):
            low, high = row[f'{key}_range']
            cells.append(f'{row[key]:+.2f} ({low:+.2f} to {high:+.2f})')
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
    correlations = [bound for row in rows for bound in row['correlation_range']]
    of_tokens = [bound for row in rows for bound in row['token_correlation_range']]
    one_sign = sum(low > 0 or high < 0 for low, high in (row['correlation_range'] for row in rows))
    exponents = [exponent for row in rows for exponent in row['exponents']]
    numbers = sorted({row['networks'] for row in rows})
    text = (
        f'The means are over {rows[0]["images"]} images and {" or ".join(map(str, numbers))} of 3 '
        f'seeds; in parentheses the smallest and the largest of any image and seed. Of the '
        f'{len(rows)} layers, both streams together have a lower entropy than elu + 1 in '
        f'{below_linear}, than ReLU in {below_relu} and than softmax in {below_softmax}. Entry by '
        f'entry the halves of the gate correlate by {min(correlations):+.2f} to '
        f'{max(correlations):+.2f}, with one sign for all images and seeds in {one_sign} of the '
        f'layers; their means of tokens by {min(of_tokens):+.2f} to {max(of_tokens):+.2f}. The '
        f'exponents lie between {min(exponents):.2f} and {max(exponents):.2f}.'
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
