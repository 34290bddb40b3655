"""Write the tables of docs/results.md and draw its figures from the collected results."""

from __future__ import annotations

import json
import re
import textwrap
from itertools import combinations
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.experiments.networks import KINDS, NETWORKS
from benchmarks.experiments.plan import EXPERIMENTS, SEEDS, Experiment
from benchmarks.experiments.results import RESULTS, Record, load
from benchmarks.records import ROOT

PAGE = ROOT / 'docs' / 'results.md'
README = ROOT / 'README.md'
README_SENTENCES = (
    (
        'e1',
        'detect_pola_swin',
        'A small Faster R-CNN on Pola-Swin that we trained from random weights on 205 photographs '
        'of blood cells, in {minutes} minutes of one CPU core, reaches {scores} on the test split '
        '({seeds}).',
    ),
    (
        'e2',
        'segment_pola_swin',
        'A small Semantic FPN on Pola-Swin reaches {scores} on the eleven classes of CamVid after '
        '{minutes} minutes ({seeds}).',
    ),
)
"""Experiment, variant, and what README.md says of it once it has results."""

COLOURS = ('#0072b2', '#d55e00', '#009e73', '#cc79a7', '#444444')
NOT_RUN = 'not run yet'


def records_of(experiment: Experiment, variant: str, records: dict[str, Record]) -> list[Record]:
    """Return the records of one variant, by seed; fewer if not all runs have finished."""
    assert variant in experiment.variants
    names = [f'{variant}-{seed}' for seed in SEEDS]
    return [records[name] for name in names if name in records]


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
    lines = [f'| {" | ".join(columns)} |', '| --- ' * len(columns) + '|']
    for variant, name in experiment.variants.items():
        own = records_of(experiment, variant, records)
        cells = [name, f'{len(own)} of {len(SEEDS)}']
        if own:
            cells.append(f'{own[0]["parameters"] / 1e6:.2f} M')
        else:
            cells.append('')
        for title in titles:
            cells.append(cell([record['test'][title] for record in own]))
        minutes = [record['cpu_minutes'] for record in own]
        cells.append(f'{mean(minutes):.1f}' if minutes else '')
        lines.append(f'| {" | ".join(cells)} |')
    return '\n'.join(lines)


def verdict(experiment: Experiment, records: dict[str, Record]) -> str:
    """Return which variants the first metric tells apart: those whose ranges do not overlap."""
    metric = experiment.metrics[0].title
    results: dict[str, list[float]] = {}
    for variant, name in experiment.variants.items():
        own = records_of(experiment, variant, records)
        if len(own) == len(SEEDS):
            results[name] = [record['test'][metric] for record in own]
    ordered = sorted(results, key=lambda name: -mean(results[name]))
    apart = []
    alike = []
    for better, worse in combinations(ordered, 2):
        if min(results[better]) > max(results[worse]):
            apart.append(f'{better} above {worse}')
        else:
            alike.append(f'{better} and {worse}')
    sentences = []
    if apart:
        sentences.append(f'Told apart by {metric}: {"; ".join(apart)}.')
    if alike:
        sentences.append(f'Cannot be told apart: {"; ".join(alike)}.')
    if not sentences:
        sentences.append('Nothing can be compared before two variants have all three seeds.')
    return ' '.join(sentences)


def account(experiment: Experiment, records: dict[str, Record]) -> str:
    """Return a sentence on the runs: how many, their minutes, resumes, commits and machine."""
    own: list[Record] = []
    for variant in experiment.variants:
        own.extend(records_of(experiment, variant, records))
    total = len(experiment.variants) * len(SEEDS)
    if not own:
        return f'0 of {total} runs have finished.'
    cpu = sum(record['cpu_minutes'] for record in own)
    wall = sum(record['wall_minutes'] for record in own)
    resumed = sum(record['resumed'] for record in own)
    commits = sorted({commit for record in own for commit in record['commits']})
    machine = own[-1]['machine']
    return (
        f'{len(own)} of {total} runs have finished: {cpu:.0f} minutes of CPU in {wall:.0f} minutes '
        f'beside other work on the same cores; resumed after interruptions: {resumed}. '
        f'{machine["processor"]}, one thread, torch {machine["torch"]}; commits '
        f'{", ".join(commits)}.'
    )


def draw(experiment: Experiment, records: dict[str, Record], path: Path) -> None:
    """Draw the curves on the validation split, and the seeds' results on the test split."""
    import matplotlib

    matplotlib.use('Agg')
    from matplotlib import pyplot

    figure, (curves, points) = pyplot.subplots(
        1, 2, figsize=(9, 3.6), width_ratios=(3, 2), layout='constrained'
    )
    metric = experiment.metrics[0]
    names: list[str] = []
    for index, (variant, name) in enumerate(experiment.variants.items()):
        own = records_of(experiment, variant, records)
        if not own:
            continue
        colour = COLOURS[index]
        for number, record in enumerate(own):
            steps, values = zip(*record['validation'], strict=True)
            label = name if number == 0 else None
            curves.plot(steps, values, color=colour, linewidth=1.4, label=label)
        tested = [record['test'][metric.title] for record in own]
        points.plot(tested, [len(names)] * len(tested), 'o', color=colour, alpha=0.8)
        points.plot([mean(tested)], [len(names)], '|', color=colour, markersize=18)
        names.append(name)
    curves.set_xlabel(experiment.steps)
    curves.set_ylabel(f'{metric.title}, validation split')
    curves.legend(frameon=False, fontsize=9)
    points.set_yticks(range(len(names)), names)
    points.set_ylim(len(names) - 0.5, -0.5)
    points.set_xlabel(f'{metric.title}, test split: each seed, and the mean')
    for axes in (curves, points):
        axes.grid(alpha=0.25)
        axes.spines[['top', 'right']].set_visible(False)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def replace_block(text: str, key: str, block: str) -> str:
    """Return a page with what lies between the markers of `key` replaced by `block`.

    Raises:
        ValueError: the page has no such markers.
    """
    pattern = re.compile(rf'(<!-- {key}: [^>]* -->\n).*?(<!-- end of {key} -->)', re.DOTALL)
    if not pattern.search(text):
        raise ValueError(f'{key}: expected markers of its results in the page, got none')
    return pattern.sub(lambda match: f'{match[1]}\n{block}\n\n{match[2]}', text)


def experiment_block(key: str, experiment: Experiment, records: dict[str, Record]) -> str:
    """Return what the page says of an experiment: table, verdict, figure, account."""
    parts = [table(experiment, records), verdict(experiment, records)]
    if has_results(experiment, records):
        alternative = f'{experiment.title}: {experiment.metrics[0].title} over {experiment.steps}'
        parts.append(f'![{alternative}]({figure_path(key).name})')
    parts.append(account(experiment, records))
    return '\n\n'.join(parts)


def has_results(experiment: Experiment, records: dict[str, Record]) -> bool:
    """Return whether any run of an experiment has finished."""
    return any(records_of(experiment, variant, records) for variant in experiment.variants)


def figure_path(key: str) -> Path:
    """Return the file of an experiment's figure."""
    return PAGE.parent / f'results_{key.replace("-", "_")}.png'


def page_with_results(text: str, records: dict[str, Record]) -> str:
    """Return the page with the blocks of all experiments as the records say."""
    for key, experiment in EXPERIMENTS.items():
        text = replace_block(text, key, experiment_block(key, experiment, records))
    rows = json.loads((RESULTS / 'networks.json').read_text())
    return replace_block(text, 'e6', networks_table(rows))


def readme_with_results(text: str, records: dict[str, Record]) -> str:
    """Return README.md with a sentence on each of the first experiments that has results."""
    sentences = []
    for key, variant, sentence in README_SENTENCES:
        experiment = EXPERIMENTS[key]
        own = records_of(experiment, variant, records)
        if not own:
            continue
        scores = []
        for metric in experiment.metrics[:2]:
            score = mean([record['test'][metric.title] for record in own])
            scores.append(f'{metric.title} {score:.1f}')
        minutes = mean([record['cpu_minutes'] for record in own])
        seeds = f'mean of {len(own)} seeds' if len(own) > 1 else 'one seed so far'
        joined = ' and '.join(scores)
        sentences.append(sentence.format(scores=joined, minutes=f'{minutes:.0f}', seeds=seeds))
    sentences.append('[Results of our own](docs/results.md) compares them with softmax attention.')
    return replace_block(text, 'own', textwrap.fill(' '.join(sentences), 128))


def networks_table(rows: list[dict[str, Any]]) -> str:
    """Return the table of what the trained networks' attention does with test images."""
    columns = (
        'network, layer',
        'networks',
        'softmax',
        'same-signed',
        'opposite-signed',
        'both',
        'ReLU',
        'elu + 1',
        'gate: entries',
        'gate: means of tokens',
        'exponents',
    )
    lines = [f'| {" | ".join(columns)} |', '| --- ' * len(columns) + '|']
    for row in rows:
        stage, block = re.findall(r'\d+', row['layer'])
        name = f'{NETWORKS[row["variant"]]}, stage {int(stage) + 1}, block {int(block) + 1}'
        cells = [name, str(row['networks'])]
        cells.extend(f'{row[kind]:.3f}' for kind in KINDS)
        for key in ('correlation', 'token_correlation'):
            low, high = row[f'{key}_range']
            cells.append(f'{row[key]:+.2f} ({low:+.2f} to {high:+.2f})')
        smallest, largest = row['exponents']
        cells.append(f'{smallest:.2f} to {largest:.2f}')
        lines.append(f'| {" | ".join(cells)} |')
    return '\n'.join([*lines, '', networks_summary(rows)])


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
    text = (
        f'Of these {len(rows)} layers, both streams together have a lower entropy than elu + 1 in '
        f'{below_linear}, than ReLU in {below_relu} and than softmax in {below_softmax}. Entry by '
        f'entry the halves of the gate correlate by {min(correlations):+.2f} to '
        f'{max(correlations):+.2f}, their means of tokens by {min(of_tokens):+.2f} to '
        f'{max(of_tokens):+.2f}. The exponents lie between {min(exponents):.2f} and '
        f'{max(exponents):.2f}.'
    )
    return textwrap.fill(text, 128)


def report() -> None:
    """Write the tables and sentences into the pages, and draw the figures."""
    records = load()
    PAGE.write_text(page_with_results(PAGE.read_text(), records))
    README.write_text(readme_with_results(README.read_text(), records))
    for key, experiment in EXPERIMENTS.items():
        if has_results(experiment, records):
            draw(experiment, records, figure_path(key))
