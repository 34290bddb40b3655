"""Runs a benchmark suite: first checks that all variants compute the same function, then times them
in turn.

    python -m benchmarks.run SUITE [--device cpu|cuda] [--repeats N] [--peers NAME …]

Writes benchmarks/results/MACHINE/SUITE.json and prints a table; benchmarks/README.md describes
suites and columns.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch

from benchmarks.measure import ParityError
from benchmarks.networks import backbones, image_size, layer, zoo
from benchmarks.operators import host, operator_suite, scaling
from benchmarks.records import ROOT, Row, commit, results_folder, table
from benchmarks.sequences import sequences

Suite = Callable[[str, int, list[str]], Iterator[Row]]
"""Yields rows, given the device, the number of rounds and the names of the peers."""

OPERATOR_PEERS = ['literal', 'compiled literal', 'torch']

SUITES: dict[str, tuple[Suite, list[str]]] = {
    'attention': (
        partial(operator_suite, 'attention'),
        [*OPERATOR_PEERS, 'compiled torch', 'softmax', 'published port'],
    ),
    'mix_and_gate': (partial(operator_suite, 'mix_and_gate'), OPERATOR_PEERS),
    'backbones': (
        backbones,
        ['compiled', 'literal', 'mmdet', 'timm Swin-T', 'compiled timm Swin-T'],
    ),
    'scaling': (scaling, []),
    'image_size': (image_size, ['mmdet']),
    'zoo': (zoo, []),
    'sequences': (sequences, ['stored softmax', 'polaformer_pp', 'linear']),
    'layer': (layer, ['softmax', 'literal']),
    'host': (host, ['literal']),
}
"""Each suite, and what it is compared with."""

ON_CPU = {
    'attention': ['literal'],
    'mix_and_gate': ['literal'],
    'backbones': ['literal', 'mmdet', 'timm Swin-T'],
}
"""The same by default on a CPU, where compiled peers, and softmax over 66,800 tokens, take minutes
each.
"""

SLOW_ON_CPU = ('image_size', 'zoo')
"""Suites in which a pass at a large image takes half a minute on a CPU."""


def main() -> int:
    parser = argparse.ArgumentParser(
        description='Compare implementations in time and memory within one run'
    )
    parser.add_argument('suite', choices=SUITES)
    parser.add_argument(
        '--device', choices=('cpu', 'cuda'), default='cuda' if torch.cuda.is_available() else 'cpu'
    )
    parser.add_argument(
        '--repeats',
        type=int,
        help='rounds in which every variant runs once (default: 20; 3 for image_size and zoo on '
        'a CPU)',
    )
    names = {suite: peers for suite, (_, peers) in SUITES.items() if peers}
    parser.add_argument('--peers', nargs='+', metavar='NAME', help=f'some of {names}')
    args = parser.parse_args()
    suite, every = SUITES[args.suite]
    if unknown := set(args.peers or []) - set(every):
        parser.error(f'--peers: expected some of {every}, got {sorted(unknown)}')
    peers = args.peers or (ON_CPU.get(args.suite, every) if args.device == 'cpu' else every)
    repeats = args.repeats or (3 if args.suite in SLOW_ON_CPU and args.device == 'cpu' else 20)
    torch.manual_seed(0)
    try:
        rows = list(suite(args.device, repeats, peers))
    except ParityError as error:
        print(
            f'error: the variants compute different functions, so nothing is timed: {error}',
            file=sys.stderr,
        )
        return 1
    machine = (
        f'cpu-{torch.get_num_threads()}-threads'
        if args.device == 'cpu'
        else torch.cuda.get_device_name()
    )
    record = {
        'machine': machine,
        'processor': _processor() if args.device == 'cpu' else machine,
        'commit': commit(),
        'torch': torch.__version__,
        'python': platform.python_version(),
        'repeats': repeats,
        'rows': rows,
    }
    path = results_folder(machine) / f'{args.suite}.json'
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1) + '\n')
    print(table(rows))
    print(f'written to {path.relative_to(ROOT)}')
    return 0


def _processor() -> str:
    """Return the name of the CPU as Linux gives it."""
    lines = Path('/proc/cpuinfo').read_text().splitlines()
    return next(
        (line.partition(': ')[2] for line in lines if line.startswith('model name')),
        platform.machine(),
    )


if __name__ == '__main__':
    sys.exit(main())
