"""Write the tables of docs/results.md and draw its figures from the collected results."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from statistics import mean

from benchmarks.experiments import recall
from benchmarks.experiments.figures import COLOURS, panels
from benchmarks.experiments.floors import load_floors
from benchmarks.experiments.plan import EXPERIMENTS, SEEDS, STARTS, Experiment
from benchmarks.experiments.results import RESULTS, Record, load, load_earlier
from benchmarks.experiments.tables import (
    LINE,
    NOT_RUN,
    account,
    earlier_table,
    has_results,
    networks_table,
    records_of,
    resume_sentence,
    starts_table,
    table,
    verdict,
)
from benchmarks.records import ROOT, replace_block
from mmpola.files import write_atomically
from mmpola.messages import listed

PAGE = ROOT / 'docs' / 'results.md'
README = ROOT / 'README.md'
README_SENTENCES = {
    'e7-cells': 'A small Faster R-CNN that starts from the weights of `pola_swin_nano` and learns '
    'from 205 photographs of blood cells reaches AP {} on the test split, and {} from random '
    'weights, which so small a split does not tell apart.',
    'e7-raccoons': 'With 115 photographs of raccoons it is AP {} and {}.',
    'e7-streets': 'A small Semantic FPN, on the streets of CamVid, reaches mIoU {} and {}; the '
    'error of these two is not known.',
}
"""Experiment -> what README.md says of it: with the pretrained start, and from random weights."""

SMALLEST_SPAN = 5.0
"""Points of a metric that the figure of the test split shows at least."""


def draw(experiment: Experiment, records: dict[str, Record], path: Path) -> None:
    """Draw the curves on the validation split, and the seeds' results on the test split."""
    rows = 0.3 * len(experiment.rows)
    with panels(path, 2, 4.6 + rows, (3, rows)) as (curves, points):
        metric = experiment.metrics[0]
        names: list[str] = []
        for index, (variant, name) in enumerate(experiment.rows.items()):
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
        curves.xaxis.get_major_locator().set_params(integer=True)
        curves.set_ylabel(f'{metric.title}, validation split')
        curves.legend(frameon=False)
        low, high = points.get_xlim()
        middle = (low + high) / 2
        half = max(high - low, SMALLEST_SPAN) / 2  # so that small differences look small
        points.set_xlim(middle - half, middle + half)
        points.set_yticks(range(len(names)), names)
        points.set_ylim(len(names) - 0.5, -0.5)
        points.set_xlabel(f'{metric.title}, test split: each seed, and the mean')


def draw_starts(experiments: list[Experiment], records: dict[str, Record], path: Path) -> None:
    """Draw the curves on the validation split over CPU minutes, a panel for each data set."""
    with panels(path, len(experiments), 0.6 + 2.5 * len(experiments)) as all_axes:
        for axes, experiment in zip(all_axes, experiments, strict=True):
            for index, (variant, name) in enumerate(experiment.variants.items()):
                for number, record in enumerate(records_of(experiment, variant, records)):
                    steps, values = zip(*record['validation'], strict=True)
                    minutes = [record['cpu_minutes'] * step / steps[-1] for step in steps]
                    label = name if number == 0 else None
                    axes.plot(minutes, values, color=COLOURS[index], linewidth=1.4, label=label)
            axes.set_title(experiment.title, fontsize=12)
            axes.set_ylabel(experiment.metrics[0].title)
        all_axes[0].legend(frameon=False)
        all_axes[-1].set_xlabel('CPU minutes (validation and test included)')


def trained_starts(records: dict[str, Record]) -> list[Experiment]:
    """Return the experiments on a pretrained start that have such a run."""
    starts = [EXPERIMENTS[key] for key in STARTS]
    return [start for start in starts if records_of(start, next(iter(start.variants)), records)]


def starts_block(records: dict[str, Record]) -> str:
    """Return what the page says of a pretrained start: table and figure."""
    experiments = [EXPERIMENTS[key] for key in STARTS]
    parts = [starts_table(experiments, records)]
    for experiment in experiments:
        text = f'{experiment.title}. {verdict(experiment, records)}'
        parts.append(textwrap.fill(text, LINE))
    if trained_starts(records):
        parts.append(f'![Validation over CPU minutes]({figure_path("e7").name})')
    parts.append(earlier_table(experiments, load_earlier()))
    return '\n\n'.join(parts)


def experiment_block(key: str, experiment: Experiment, records: dict[str, Record]) -> str:
    """Return what the page says of an experiment: table, verdict, figure, account."""
    if not has_results(experiment, records):
        return f'{NOT_RUN.capitalize()}: {listed(list(experiment.rows.values()))}.'
    alternative = f'{experiment.title}: {experiment.metrics[0].title} over {experiment.steps}'
    parts = [
        table(experiment, records, load_floors().get(key, ())),
        verdict(experiment, records),
        f'![{alternative}]({figure_path(key).name})',
        account(experiment, records),
        earlier_table([experiment], load_earlier()),
    ]
    return '\n\n'.join(part for part in parts if part)


def figure_path(key: str) -> Path:
    """Return the file of an experiment's figure."""
    return PAGE.parent / f'results_{key.replace("-", "_")}.png'


def page_with_results(text: str, records: dict[str, Record]) -> str:
    """Return the page with the blocks of all experiments as the records say."""
    for key, experiment in EXPERIMENTS.items():
        if key not in STARTS:
            text = replace_block(text, key, experiment_block(key, experiment, records))
    text = replace_block(text, 'e7', starts_block(records))
    text = replace_block(text, 'recall', recall.block(recall.load(), figure_path('recall')))
    resumed = RESULTS / 'resume.json'
    sentence = f'Exact resuming: {NOT_RUN}.'
    if resumed.exists():
        sentence = resume_sentence(json.loads(resumed.read_text()))
    text = replace_block(text, 'resume', sentence)
    rows = json.loads((RESULTS / 'networks.json').read_text())
    return replace_block(text, 'e6', networks_table(rows))


def readme_with_results(text: str, records: dict[str, Record]) -> str:
    """Return README.md with a sentence on each of these experiments that has run whole."""
    sentences = []
    minutes = []
    for key, sentence in README_SENTENCES.items():
        experiment = EXPERIMENTS[key]
        title = experiment.metrics[0].title
        both = [records_of(experiment, variant, records) for variant in experiment.variants]
        if all(len(own) == len(SEEDS) for own in both):
            scores = [mean([record['test'][title] for record in own]) for own in both]
            sentences.append(sentence.format(*(f'{score:.1f}' for score in scores)))
            minutes += [record['cpu_minutes'] for own in both for record in own]
    longest = max(minutes, default=0)
    sentences.append(
        f'These are means of {len(SEEDS)} seeds, at most {longest:.0f} minutes of one CPU core '
        'each. [Results of our own](docs/results.md) has all of them, and softmax attention beside '
        'ours.'
    )
    return replace_block(text, 'own', textwrap.fill(' '.join(sentences), LINE))


def report() -> None:
    """Write the tables and sentences into the pages, and draw the figures."""
    records = load()
    write_atomically(PAGE, page_with_results(PAGE.read_text(), records))
    write_atomically(README, readme_with_results(README.read_text(), records))
    for key, experiment in EXPERIMENTS.items():
        if key not in STARTS and has_results(experiment, records):
            draw(experiment, records, figure_path(key))
    if trained_starts(records):
        draw_starts(trained_starts(records), records, figure_path('e7'))
    if recall.load():
        recall.draw(recall.load(), figure_path('recall'))
