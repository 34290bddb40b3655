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

from benchmarks.experiments.figures import COLOURS as FIGURE_COLOURS
from benchmarks.experiments.figures import panels
from benchmarks.experiments.plan import SEEDS
from benchmarks.experiments.results import write_record
from benchmarks.experiments.running import CODE, machine
from benchmarks.experiments.tables import LINE, NOT_RUN, cell
from benchmarks.records import ROOT, markdown_table, trees
from mmpola.layers.attention import LearnedPowerMap, mask_padding
from mmpola.ops import polarity_attention
from mmpola.papers.lra.attention import (
    EluSequenceAttention,
    PolaSequenceAttention,
    SequenceAttention,
    SequenceMixAndGate,
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
ALPHA = 3


class ReluSequenceAttention(EluSequenceAttention):
    """Linear attention with the features ReLU(x)."""

    def features(self, x: Tensor) -> Tensor:
        return F.relu(x)


def elu_features(x: Tensor) -> Tensor:
    """Return elu(x) + 1."""
    return F.elu(x) + 1


def flatten_features(x: Tensor) -> Tensor:
    """Return ReLU(x) cubed, with its former norm (FLatten, Han et al., ICCV 2023)."""
    positive = F.relu(x) + 1e-6
    cubed = positive**3
    former_norm = positive.norm(dim=-1, keepdim=True)
    return cubed * (former_norm / cubed.norm(dim=-1, keepdim=True))


class OneHeadSequenceAttention(EluSequenceAttention):
    """Linear attention with elu + 1 and one head of all channels; the values' heads are joined."""

    def __init__(self, dim: int, num_heads: int, length: int) -> None:
        super().__init__(dim, 1, length)


class PowerFeatures(nn.Module):
    """PolaFormer's learned powers of ReLU(x) (E4, E5): one sign instead of both."""

    def __init__(self) -> None:
        super().__init__()
        self.powers = LearnedPowerMap(DIM, 1, ALPHA)

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, 1, N, DIM] to the same shape."""
        exponent, scale = self.powers(x)
        return (F.relu(x) / scale[:, None]).pow(exponent[:, None])


class OtherFeatures(EluSequenceAttention):
    """PolaFormer's layer, its gate open, with other features that have no signs.

    One head of all channels reads. So the state has as many numbers as PolaFormer's, whose heads
    have two features a channel.

    Args:
        dim, num_heads, length: see `SequenceAttention`; the heads share the convolution.
        features: a function or a module, [B, 1, N, C] -> the same shape.
    """

    def __init__(self, dim: int, num_heads: int, length: int, features: Callable[[], Any]) -> None:
        super().__init__(dim, num_heads, length)
        self.map = features()
        self.gate = nn.Linear(dim, dim)
        nn.init.zeros_(self.gate.weight)
        nn.init.ones_(self.gate.bias)
        self.dwc = SequenceMixAndGate(dim // num_heads, 5)

    def features(self, x: Tensor) -> Tensor:
        return self.map(x)

    def attend(self, x: Tensor, q: Tensor, k: Tensor, v: Tensor, valid: Tensor | None) -> Tensor:
        """Attend, add the convolved values and multiply by the gate (E14)."""
        assert valid is not None
        v = mask_padding(v, ~valid)
        whole_q, whole_k, whole_v = (part.flatten(2).unsqueeze(2) for part in (q, k, v))
        attended = super().attend(x, whole_q, whole_k, whole_v, valid)
        return self.dwc(attended.unflatten(-1, v.shape[2:]), v, self.gate(x))


class BareSequenceAttention(PolaSequenceAttention):
    """PolaFormer's layer without its convolution and its gate."""

    def __init__(self, dim: int, num_heads: int, length: int) -> None:
        super().__init__(dim, num_heads, length, alpha=ALPHA)
        del self.dwc, self.gate

    def attend(self, x: Tensor, q: Tensor, k: Tensor, v: Tensor, valid: Tensor | None) -> Tensor:
        """Attend (E1-E8)."""
        assert valid is not None
        k = mask_padding(k, ~valid)
        return polarity_attention(q, k, v, self.feature_map.map_for(q)).flatten(2)


def gated(plus: bool, gate_init: str) -> Callable[..., SequenceAttention]:
    """Return PolaFormer's layer, or PolaFormer++'s, with an initial value of its gate."""
    return partial(PolaSequenceAttention, plus=plus, alpha=ALPHA, gate_init=gate_init)


Variants = dict[str, tuple[str, Callable[..., SequenceAttention]]]

VARIANTS: Variants = {
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

GATES = ('pola_kaiming', 'pola_zeros', 'pola_open')

PARTS: Variants = {
    'bare': (
        'without convolution and gate',
        BareSequenceAttention,
    ),
    'no_power': (
        'without the power: exponents of 1',
        partial(PolaSequenceAttention, alpha=1e-6, gate_init='open'),
    ),
    'power': (
        'without signs: the power of ReLU',
        partial(OtherFeatures, features=PowerFeatures),
    ),
    'flatten': (
        "with FLatten's features",
        partial(OtherFeatures, features=lambda: flatten_features),
    ),
    'elu_parts': (
        'with the features elu + 1',
        partial(OtherFeatures, features=lambda: elu_features),
    ),
    'elu_one_head': (
        'linear (elu + 1), one head',
        OneHeadSequenceAttention,
    ),
}
"""Layers between PolaFormer with an open gate and linear attention, as `VARIANTS`."""

LAYERS = {**VARIANTS, **PARTS}

COMPARED = ('pola_open', *PARTS, 'elu', 'relu', 'plus_open')
"""PolaFormer, open, and what is compared with it at equal rates."""


class Network(nn.Module):
    """One pre-norm transformer block on sums of two embeddings.

    Args:
        variant: one of LAYERS.
        pairs: of a sequence.
    """

    def __init__(self, variant: str, pairs: int) -> None:
        super().__init__()
        self.key = nn.Embedding(KEYS, DIM)
        self.value = nn.Embedding(VALUES + 1, DIM)  # the last one marks the query
        self.norm1 = nn.LayerNorm(DIM)
        self.attn = LAYERS[variant][1](DIM, HEADS, pairs + QUERIES)
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

LADDER = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1)
RATES = (1e-3, 3e-3, 1e-2)
"""Of the ladder, the rates that are tried first; more if the best of them is at the end."""

EQUAL_RATES = (1e-3, 3e-3)
"""The rates of the comparisons with most pairs, whatever rate a layer's own choice is."""

CHOICE = 64
"""Pairs of the runs that choose the rate, with the first seed."""

BATCH = 16
WARM_UP = 100
EVERY = 100
LEAST_STEPS = 1500
MOST_STEPS = 10_000
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
    return curve[-1][0] >= MOST_STEPS or is_flat(curve)


def is_flat(curve: list[tuple[int, float]]) -> bool:
    """Return whether a curve no longer rises, or has reached `ENOUGH`."""
    step, last = curve[-1]
    if last >= ENOUGH:
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


def choice_cases(variant: str, records: dict[str, Record]) -> list[Case]:
    """Return the runs that choose a variant's learning rate, also those that have yet to run.

    While the best of the rates is the smallest or the largest one, the next one is tried too.
    """
    first = LADDER.index(RATES[0])
    last = LADDER.index(RATES[-1])
    while True:
        rates = LADDER[first : last + 1]
        cases = [Case(variant, CHOICE, rate, SEEDS[0]) for rate in rates]
        if any(case.name not in records for case in cases):
            return cases
        best = best_case(cases, records).rate
        if best == rates[0] and first > 0:
            first -= 1
        elif best == rates[-1] and last < len(LADDER) - 1:
            last += 1
        else:
            return cases


def best_case(cases: list[Case], records: dict[str, Record]) -> Case:
    """Return the run with the best validation accuracy at its end.

    Of runs that reach `ENOUGH`, it is the fastest.
    """

    def rank(case: Case) -> tuple[float, int]:
        step, last = records[case.name]['validation'][-1]
        return min(last, ENOUGH), -step

    return max(cases, key=rank)


def chosen_rate(variant: str, records: dict[str, Record]) -> float | None:
    """Return the best rate; None before all have run."""
    cases = choice_cases(variant, records)
    if any(case.name not in records for case in cases):
        return None
    return best_case(cases, records).rate


def equal_cases(variant: str) -> list[Case]:
    """Return the runs that compare a layer with others at equal rates."""
    return [Case(variant, PAIRS[-1], rate, seed) for rate in EQUAL_RATES for seed in SEEDS]


def cases_of(variant: str, records: dict[str, Record]) -> list[Case]:
    """Return the runs of a variant that are known to be needed, in their order."""
    cases = choice_cases(variant, records)
    rate = chosen_rate(variant, records)
    if rate is not None:
        pairs_tried = PAIRS if variant in VARIANTS else PAIRS[-1:]
        cases += [Case(variant, pairs, rate, seed) for pairs in pairs_tried for seed in SEEDS]
    if variant in GATES or variant in COMPARED:
        cases += equal_cases(variant)
    return list(dict.fromkeys(cases))


def run_all() -> None:
    """Train what has no record yet, and what a record of fewer steps left rising."""
    for variant in LAYERS:
        while True:
            records = load(RESULTS)
            left = [case for case in cases_of(variant, records) if not has_ended(case, records)]
            if not left:
                break
            write_record(train(left[0]), RESULTS)


def has_ended(case: Case, records: dict[str, Record]) -> bool:
    """Return whether a case has a record that ended by the rules above."""
    return case.name in records and is_over(records[case.name]['validation'])


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


def scores(records: list[Record]) -> str:
    """Return mean and range of the seeds' accuracies, and whether a run was still rising."""
    missing = '' if len(records) in (0, len(SEEDS)) else f', {len(records)} of {len(SEEDS)} seeds'
    return cell([record['test'] for record in records]) + rising(records) + missing


def rising(records: list[Record]) -> str:
    """Return ', rising' if training was ended before one of the curves was flat."""
    if all(is_flat(record['validation']) for record in records):
        return ''
    return ', rising'


def choice_table(records: dict[str, Record]) -> str:
    """Return the test accuracy and the steps to 90 % of the runs that choose the rates."""
    choices = {variant: choice_cases(variant, records) for variant in LAYERS}
    rates = sorted({case.rate for cases in choices.values() for case in cases})
    rows = []
    for variant, (name, _) in LAYERS.items():
        row = dict.fromkeys(rates, '')
        for case in choices[variant]:
            row[case.rate] = NOT_RUN
            if case.name in records:
                record = records[case.name]
                steps = steps_to(90, record)
                row[case.rate] = f'{record["test"]:.1f}{rising([record])} ({steps})'
        rows.append([name, *row.values()])
    columns = [f'{CHOICE} pairs, first seed', *(f'rate {rate:g}' for rate in rates)]
    heading = 'The runs that choose the rate: accuracy, and in parentheses the steps to 90 %.'
    return f'{heading}\n\n{markdown_table(columns, rows)}'


def at_rate(variant: str, rate: float, records: dict[str, Record]) -> list[Record]:
    """Return the records with most pairs and this rate, by seed."""
    names = [Case(variant, PAIRS[-1], rate, seed).name for seed in SEEDS]
    return [records[name] for name in names if name in records]


def gate_table(records: dict[str, Record]) -> str:
    """Return the gates at equal rates, with most pairs: accuracy and steps to 90 %."""
    rows = []
    for variant in GATES:
        cells = [VARIANTS[variant][0]]
        for rate in EQUAL_RATES:
            own = at_rate(variant, rate, records)
            cells += [scores(own), ' / '.join(steps_to(90, record) for record in own)]
        rows.append(cells)
    columns = [f'{PAIRS[-1]} pairs']
    for rate in EQUAL_RATES:
        columns += [f'rate {rate:g}', 'steps to 90 %']
    return f'The three gates at equal rates.\n\n{markdown_table(columns, rows)}'


def rates_compared(records: dict[str, Record]) -> list[float]:
    """Return the rates that one of COMPARED has a record of with most pairs."""
    found = []
    for rate in LADDER:
        if any(at_rate(variant, rate, records) for variant in COMPARED):
            found.append(rate)
    return found


def parts_table(records: dict[str, Record]) -> str:
    """Return what PolaFormer's layer and others reach with most pairs, at each rate tried."""
    rates = rates_compared(records)
    rows = []
    for variant in COMPARED:
        found = [at_rate(variant, rate, records) for rate in rates]
        sizes = {f'{record["parameters"]:,}' for own in found for record in own}
        rows.append([LAYERS[variant][0], *map(scores, found), ''.join(sizes)])
    columns = [f'{PAIRS[-1]} pairs', *(f'rate {rate:g}' for rate in rates), 'parameters']
    heading = 'Parts of PolaFormer, open, and other layers at equal rates.'
    return f'{heading}\n\n{markdown_table(columns, rows)}'


def block(records: dict[str, Record], figure: Path) -> str:
    """Return what docs/results.md says of recall: tables, figure and account of the runs."""
    columns = ['', 'rate', *(f'{pairs} pairs' for pairs in PAIRS), f'steps to 90 %, {CHOICE} pairs']
    rows = []
    for variant, (name, _) in VARIANTS.items():
        rate = chosen_rate(variant, records)
        cells = [name, NOT_RUN if rate is None else f'{rate:g}']
        for pairs in PAIRS:
            cells.append(scores(records_of(variant, pairs, records)))
        steps = [steps_to(90, record) for record in records_of(variant, CHOICE, records)]
        rows.append([*cells, ' / '.join(steps)])
    frequent = [f'{most_frequent(pairs):.1f}' for pairs in PAIRS]
    rows.append(["*the sequence's most frequent value*", '', *frequent, ''])
    rows.append(['*one of the values at random*', '', *[f'{100 / VALUES:.1f}'] * len(PAIRS), ''])
    parts = [markdown_table(columns, rows)]
    parts += [gate_table(records), parts_table(records), choice_table(records)]
    if any(at_rate(variant, rate, records) for variant in LAYERS for rate in LADDER):
        alt = 'Recall: accuracy over pairs, over steps, and of parts at each rate'
        parts.append(f'![{alt}]({figure.name})')
    return '\n\n'.join([*parts, textwrap.fill(account(records), LINE)])


def account(records: dict[str, Record]) -> str:
    """Return a sentence on the runs: how many have ended, been cut, are left, their minutes."""
    needed = {case for variant in LAYERS for case in cases_of(variant, records)}
    ended = sum(has_ended(case, records) for case in needed)
    minutes = sum(record['cpu_minutes'] for record in records.values())
    cut = sum(not is_flat(record['validation']) for record in records.values())
    return (
        f'{ended} of {len(needed)} runs have ended by the rules above; of the {len(records)} that '
        f'have a record, in {minutes:.0f} CPU minutes, {cut} are marked as rising, because they '
        f'were ended before their curve was flat.'
    )


def draw(records: dict[str, Record], path: Path) -> None:
    """Draw the accuracy over pairs, the curves of `CHOICE` pairs, and the parts at equal rates."""
    with panels(path, 3, 12) as (over_pairs, curves, parts):
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
        draw_parts(records, parts)


def draw_parts(records: dict[str, Record], axes: Any) -> None:
    """Draw the accuracy of each seed of COMPARED with most pairs, a line for each layer."""
    rates = rates_compared(records)
    for index, rate in enumerate(rates):
        tested: list[float] = []
        places: list[int] = []
        for place, variant in enumerate(COMPARED):
            own = [record['test'] for record in at_rate(variant, rate, records)]
            tested += own
            places += [place] * len(own)
        style = {'color': FIGURE_COLOURS[index], 'alpha': 0.7, 'label': f'rate {rate:g}'}
        axes.plot(tested, places, 'os^vD'[index], **style)
    for place, variant in enumerate(COMPARED):
        axes.text(1, place - 0.15, LAYERS[variant][0], fontsize=10)
    axes.set_yticks(range(len(COMPARED)), [''] * len(COMPARED))
    axes.set_ylim(len(COMPARED) - 0.5, -0.8)
    axes.set_xlim(0, 102)
    axes.set_xlabel(f'accuracy, test split, {PAIRS[-1]} pairs, each seed')
    if rates:
        axes.legend(frameon=False, loc='lower center', bbox_to_anchor=(0.5, 1), ncol=len(rates))


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
