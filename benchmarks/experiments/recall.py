"""Recall: does an attention layer find one of many?

    python -m benchmarks.experiments.recall

A sequence is n pairs of a key and a value, one token each, then a query with one of the keys; the
answer is its value. One block reads it, with 16 queries at once, which do not read each other. This
chooses each variant's learning rate on the validation split, then trains all cases. It skips what
has a record in benchmarks/results/recall, so after an interruption give the same command again.
`python -m benchmarks.experiments report` writes its table and draws its figure.
"""

from __future__ import annotations

import argparse
import json
import textwrap
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from timm.layers import Mlp
from torch import Tensor, nn

from benchmarks.experiments.figures import panels
from benchmarks.experiments.plan import SEEDS
from benchmarks.experiments.results import save
from benchmarks.experiments.running import CODE, machine
from benchmarks.experiments.tables import LINE, NOT_RUN, cell
from benchmarks.records import ROOT, markdown_table, trees
from mmpola.layers import (
    EluSequenceAttention,
    PolaSequenceAttention,
    SequenceAttention,
    SoftmaxSequenceAttention,
)

RESULTS = ROOT / 'benchmarks' / 'results' / 'recall'
Record = dict[str, Any]

# ---- The task

KEYS = 128
VALUES = 32
PAIRS = (32, 64, 128)
QUERIES = 16
VALIDATION = (1001, 128)
TEST = (1002, 512)
"""Seed and number of sequences of a split; a training run draws its own sequences at each step."""


class Batch(NamedTuple):
    """Sequences of n pairs and their queries: keys, values [B, n]; asked, answers [B, QUERIES]."""

    keys: Tensor
    values: Tensor
    asked: Tensor
    answers: Tensor


def draw_batch(number: int, pairs: int, generator: torch.Generator) -> Batch:
    """Draw sequences; the keys of one differ from each other, its values need not."""
    order = torch.rand(number, KEYS, generator=generator).argsort(dim=1)
    keys = order[:, :pairs]
    values = torch.randint(VALUES, (number, pairs), generator=generator)
    places = torch.randint(pairs, (number, QUERIES), generator=generator)
    return Batch(keys, values, keys.gather(1, places), values.gather(1, places))


def split(seed: int, number: int, pairs: int) -> Batch:
    """Return the sequences of a split, always the same ones."""
    return draw_batch(number, pairs, torch.Generator().manual_seed(seed))


# ---- The network

DIM = 64
HEADS = 2


class ReluSequenceAttention(EluSequenceAttention):
    """Linear attention with the features ReLU(x)."""

    def features(self, x: Tensor) -> Tensor:
        return F.relu(x)


def gated(plus: bool, gate_init: str) -> Callable[..., SequenceAttention]:
    """Return PolaFormer's layer, or PolaFormer++'s, with an initial value of its gate."""
    return partial(PolaSequenceAttention, plus=plus, gate_init=gate_init)


VARIANTS: dict[str, tuple[str, Callable[..., SequenceAttention]]] = {
    'softmax': ('softmax', SoftmaxSequenceAttention),
    'elu': ('linear (elu + 1)', EluSequenceAttention),
    'relu': ('linear (ReLU)', ReluSequenceAttention),
    'pola_kaiming': ("PolaFormer, the authors' gate", gated(False, 'kaiming')),
    'pola_zeros': ('PolaFormer, zeros', gated(False, 'zeros')),
    'pola_open': ('PolaFormer, open', gated(False, 'open')),
    'plus_kaiming': ("PolaFormer++, the authors' gate", gated(True, 'kaiming')),
    'plus_zeros': ('PolaFormer++, zeros', gated(True, 'zeros')),
    'plus_open': ('PolaFormer++, open', gated(True, 'open')),
}
"""The name of a variant in files -> its name in tables, and its layer."""


class Network(nn.Module):
    """One pre-norm transformer block on sums of two embeddings.

    Args:
        variant: one of VARIANTS.
        pairs: of a sequence.
    """

    def __init__(self, variant: str, pairs: int) -> None:
        super().__init__()
        self.key = nn.Embedding(KEYS, DIM)
        self.value = nn.Embedding(VALUES + 1, DIM)  # the last one marks the query
        self.norm1 = nn.LayerNorm(DIM)
        self.attn = VARIANTS[variant][1](DIM, HEADS, pairs + QUERIES)
        self.norm2 = nn.LayerNorm(DIM)
        self.mlp = Mlp(DIM, 2 * DIM)
        self.norm = nn.LayerNorm(DIM)
        self.head = nn.Linear(DIM, VALUES)

    def forward(self, batch: Batch) -> Tensor:
        """Return logits [B, QUERIES, VALUES]."""
        pairs = self.key(batch.keys) + self.value(batch.values)
        queries = self.key(batch.asked) + self.value.weight[VALUES]
        tokens = torch.cat([pairs, queries], dim=1)
        is_pair = torch.arange(tokens.shape[1]) < pairs.shape[1]
        x = tokens + self.attn(self.norm1(tokens), is_pair.expand(tokens.shape[:2]))
        x = x[:, pairs.shape[1] :]
        x = x + self.mlp(self.norm2(x))
        return self.head(self.norm(x))


# ---- A run

RATES = (1e-3, 3e-3, 1e-2)
CHOICE = 64
"""Pairs of the runs that choose the rate, with the first seed."""

BATCH = 16
WARM_UP = 100
EVERY = 100
LEAST_STEPS = 1500
MOST_STEPS = 3000
WINDOW = 1000
GAIN = 0.5
"""A curve is flat if its last 1,000 steps gain less than these points."""

ENOUGH = 99.9
"""Training ends at this accuracy."""


class Case(NamedTuple):
    """One training run."""

    variant: str
    pairs: int
    rate: float
    seed: int

    @property
    def name(self) -> str:
        """The name of its record."""
        return f'{self.variant}-{self.pairs}-{self.rate:g}-{self.seed}'


def accuracy(network: Network, batch: Batch) -> float:
    """Return the percentage of right answers."""
    with torch.no_grad():
        right = network(batch).argmax(-1) == batch.answers
    return 100 * right.float().mean().item()


def is_over(curve: list[tuple[int, float]]) -> bool:
    """Return whether training ends after these points (step, accuracy)."""
    step, last = curve[-1]
    if last >= ENOUGH or step >= MOST_STEPS:
        return True
    if step < LEAST_STEPS:
        return False
    before = max(value for at, value in curve if at <= step - WINDOW)
    recent = max(value for at, value in curve if at > step - WINDOW)
    return recent < before + GAIN


def train(case: Case) -> Record:
    """Train and test one case; return its record."""
    started = time.strftime('%Y-%m-%d %H:%M:%S')
    cpu = time.process_time()
    torch.manual_seed(case.seed)
    network = Network(case.variant, case.pairs)
    optimizer = torch.optim.Adam(network.parameters(), lr=case.rate)
    warm_up = torch.optim.lr_scheduler.LinearLR(optimizer, 0.01, total_iters=WARM_UP)
    generator = torch.Generator().manual_seed(case.seed)
    validation = split(*VALIDATION, case.pairs)
    curve: list[tuple[int, float]] = []
    while not curve or not is_over(curve):
        for _ in range(EVERY):
            batch = draw_batch(BATCH, case.pairs, generator)
            loss = F.cross_entropy(network(batch).flatten(0, 1), batch.answers.flatten())
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimizer.step()
            warm_up.step()
        step = EVERY * (len(curve) + 1)
        curve.append((step, round(accuracy(network, validation), 2)))
        print(f'{case.name}: step {step}, accuracy {curve[-1][1]:.1f}', flush=True)
    return {
        'run': case.name,
        **case._asdict(),
        'test': round(accuracy(network, split(*TEST, case.pairs)), 2),
        'parameters': sum(x.numel() for x in network.parameters()),
        'cpu_minutes': round((time.process_time() - cpu) / 60, 2),
        'trees': [trees(CODE)],
        'started': started,
        'machine': machine(),
        'validation': curve,
    }


def load(results: Path = RESULTS) -> dict[str, Record]:
    """Return the records of all runs, by the runs' names."""
    records = {}
    for path in sorted(results.glob('*.json')):
        record = json.loads(path.read_text())
        records[record['run']] = record
    return records


def choice_cases(variant: str) -> list[Case]:
    """Return the runs that choose a variant's learning rate."""
    return [Case(variant, CHOICE, rate, SEEDS[0]) for rate in RATES]


def chosen_rate(variant: str, records: dict[str, Record]) -> float | None:
    """Return the best rate; None before all have run.

    It has the best validation accuracy at the end. Of rates that reach `ENOUGH`, it is the fastest.
    """
    ranks = {}
    for case in choice_cases(variant):
        if case.name not in records:
            return None
        step, last = records[case.name]['validation'][-1]
        ranks[case.rate] = (min(last, ENOUGH), -step)
    return max(ranks, key=lambda rate: ranks[rate])


def run_all() -> None:
    """Train what has no record yet: first the choice of the rates, then one seed after another."""
    for case in [case for variant in VARIANTS for case in choice_cases(variant)]:
        run(case)
    records = load(RESULTS)
    for seed in SEEDS:
        for pairs in PAIRS:
            for variant in VARIANTS:
                rate = chosen_rate(variant, records)
                assert rate is not None
                run(Case(variant, pairs, rate, seed))


def run(case: Case) -> None:
    """Train a case and write its record, unless it has one."""
    if not (RESULTS / f'{case.name}.json').exists():
        save(train(case), RESULTS)


# ---- Table and figure


def records_of(variant: str, pairs: int, records: dict[str, Record]) -> list[Record]:
    """Return the records with the chosen rate, by seed; fewer if not all runs have finished."""
    rate = chosen_rate(variant, records)
    if rate is None:
        return []
    names = [Case(variant, pairs, rate, seed).name for seed in SEEDS]
    return [records[name] for name in names if name in records]


def most_frequent(pairs: int) -> float:
    """Return the accuracy on the test split of always giving the sequence's most frequent value."""
    batch = split(*TEST, pairs)
    answer = batch.values.mode(dim=1, keepdim=True).values
    return 100 * (answer == batch.answers).float().mean().item()


def steps_to(target: float, record: Record) -> str:
    """Return the steps at which the validation accuracy first was `target`; '-' if never."""
    for step, value in record['validation']:
        if value >= target:
            return f'{step:,}'
    return '-'


def choice_table(records: dict[str, Record]) -> str:
    """Return the test accuracy and the steps to 90 % of the runs that choose the rates."""
    rows = []
    for variant, (name, _) in VARIANTS.items():
        cells = [name]
        for case in choice_cases(variant):
            record = records.get(case.name)
            if record is None:
                cells.append(NOT_RUN)
            else:
                cells.append(f'{record["test"]:.1f} ({steps_to(90, record)})')
        rows.append(cells)
    columns = [f'{CHOICE} pairs, first seed', *(f'rate {rate:g}' for rate in RATES)]
    heading = 'The runs that choose the rate: accuracy, and in parentheses the steps to 90 %.'
    return f'{heading}\n\n{markdown_table(columns, rows)}'


def block(records: dict[str, Record], figure: Path) -> str:
    """Return what docs/results.md says of recall: tables, figure and account of the runs."""
    columns = ['', 'rate', *(f'{pairs} pairs' for pairs in PAIRS), f'steps to 90 %, {CHOICE} pairs']
    rows = []
    found = 0
    minutes = sum(record['cpu_minutes'] for record in records.values())
    for variant, (name, _) in VARIANTS.items():
        rate = chosen_rate(variant, records)
        cells = [name, NOT_RUN if rate is None else f'{rate:g}']
        for pairs in PAIRS:
            own = records_of(variant, pairs, records)
            found += len(own)
            seeds = '' if len(own) in (0, len(SEEDS)) else f', {len(own)} of {len(SEEDS)} seeds'
            cells.append(cell([record['test'] for record in own]) + seeds)
        steps = [steps_to(90, record) for record in records_of(variant, CHOICE, records)]
        rows.append([*cells, ' / '.join(steps)])
    frequent = [f'{most_frequent(pairs):.1f}' for pairs in PAIRS]
    rows.append(["*the sequence's most frequent value*", '', *frequent, ''])
    rows.append(['*one of the values at random*', '', *[f'{100 / VALUES:.1f}'] * len(PAIRS), ''])
    total = len(VARIANTS) * len(PAIRS) * len(SEEDS)
    text = (
        f'{found} of {total} runs have finished; with those that choose the rate, {len(records)} '
        f'runs in {minutes:.0f} CPU minutes.'
    )
    parts = [markdown_table(columns, rows), choice_table(records)]
    if found:
        parts.append(f'![Recall: accuracy over pairs and over steps]({figure.name})')
    return '\n\n'.join([*parts, textwrap.fill(text, LINE)])


def draw(records: dict[str, Record], path: Path) -> None:
    """Draw the accuracy over the number of pairs, and the curves of `CHOICE` pairs."""
    with panels(path, 2, 8.4) as (over_pairs, curves):
        for variant, (name, _) in VARIANTS.items():
            kind, _, gate = variant.partition('_')
            style: dict[str, Any] = {'color': COLOURS[kind], 'linestyle': LINES[gate]}
            points = []
            for pairs in PAIRS:
                tested = [record['test'] for record in records_of(variant, pairs, records)]
                if tested:
                    points.append((pairs, mean(tested)))
                    over_pairs.plot([pairs] * len(tested), tested, '.', color=COLOURS[kind])
            if not points:
                continue
            over_pairs.plot(*zip(*points, strict=True), label=name, **style)
            for record in records_of(variant, CHOICE, records):
                curves.plot(*zip(*record['validation'], strict=True), linewidth=1.2, **style)
        over_pairs.set_xscale('log', base=2)
        over_pairs.set_xticks(PAIRS, PAIRS)
        over_pairs.set_xlabel('pairs; each seed, and the mean as a line')
        over_pairs.set_ylabel('accuracy, test split')
        over_pairs.legend(frameon=False, fontsize=9)
        curves.set_xlabel(f'steps, {CHOICE} pairs, each seed')
        curves.set_ylabel('accuracy, validation split')
        for axes in (over_pairs, curves):
            axes.set_ylim(0, 102)


COLOURS = {
    'softmax': '#444444',
    'elu': '#0072b2',
    'relu': '#56b4e9',
    'pola': '#d55e00',
    'plus': '#009e73',
}
LINES = {'': '-', 'open': '-', 'kaiming': '--', 'zeros': ':'}

if __name__ == '__main__':
    argparse.ArgumentParser(description='Run all cases of recall that have no record.').parse_args()
    torch.set_num_threads(1)
    run_all()
