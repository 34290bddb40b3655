"""Runs a benchmark suite: first checks that all variants compute the same function, then times them in turn.

Columns: the peer's time over ours (above 1: ours is faster), our peak memory over the peer's (below 1: ours needs
less), and the bytes that must be moved over our time, as a share of the copy bandwidth measured in the same run.

    python -m benchmarks.run attention|mix_and_gate|backbones|scaling|image_size|zoo|sequences|layer|host
        [--device cpu|cuda] [--repeats N] [--peers NAME …]

Writes benchmarks/results/MACHINE/SUITE.json and prints a table.
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

from benchmarks.layers import layer
from benchmarks.measure import ParityError
from benchmarks.networks import backbones, image_size, zoo
from benchmarks.operators import host, operator_suite, scaling
from benchmarks.records import ROOT, Row, commit, results_folder, table
from benchmarks.sequences import sequences

SUITES: dict[str, Callable[[str, int, list[str]], Iterator[Row]]] = {
    'attention': partial(operator_suite, 'attention'),
    'mix_and_gate': partial(operator_suite, 'mix_and_gate'),
    'backbones': backbones,
    'scaling': scaling,
    'image_size': image_size,
    'zoo': zoo,
    'sequences': sequences,
    'layer': layer,
    'host': host,
}
ROUNDS = {('image_size', 'cpu'): 3, ('zoo', 'cpu'): 3}
"""(suite, device) -> default of --repeats; 20 for all others. A pass at a large image takes half a minute on a CPU."""

PEERS = {
    'attention': ['literal', 'compiled literal', 'torch', 'compiled torch', 'softmax', 'published port'],
    'mix_and_gate': ['literal', 'compiled literal', 'torch'],
    'backbones': ['compiled', 'literal', 'mmdet', 'timm Swin-T', 'compiled timm Swin-T'],
    'scaling': [],
    'image_size': ['mmdet'],
    'zoo': [],
    'sequences': ['stored softmax', 'pola_plus', 'linear'],
    'layer': ['softmax', 'literal'],
    'host': ['literal'],
}
"""What each suite is compared with."""

ON_CPU = {
    'attention': ['literal'],
    'mix_and_gate': ['literal'],
    'backbones': ['literal', 'mmdet', 'timm Swin-T'],
}
"""The same by default on a CPU, where compiled peers, and softmax over 66,800 tokens, take minutes each."""


def main() -> int:
    parser = argparse.ArgumentParser(description='Compare implementations in time and memory within one run')
    parser.add_argument('suite', choices=SUITES)
    parser.add_argument('--device', choices=('cpu', 'cuda'), default='cuda' if torch.cuda.is_available() else 'cpu')
    parser.add_argument(
        '--repeats',
        type=int,
        help='rounds in which every variant runs once (default: 20; 3 for image_size and zoo on a CPU)',
    )
    parser.add_argument('--peers', nargs='+', metavar='NAME', help=f'some of {PEERS}')
    args = parser.parse_args()
    every = PEERS[args.suite]
    usual = ON_CPU.get(args.suite, every) if args.device == 'cpu' else every
    if unknown := set(args.peers or []) - set(every):
        parser.error(f'--peers: expected some of {every}, got {sorted(unknown)}')
    repeats = args.repeats or ROUNDS.get((args.suite, args.device), 20)
    torch.manual_seed(0)
    try:
        rows = list(SUITES[args.suite](args.device, repeats, args.peers or usual))
    except ParityError as error:
        print(f'error: the variants compute different functions, so nothing is timed: {error}', file=sys.stderr)
        return 1
    machine = torch.cuda.get_device_name() if args.device == 'cuda' else f'cpu-{torch.get_num_threads()}-threads'
    record = {
        'machine': machine,
        'processor': _processor(args.device),
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


def _processor(device: str) -> str:
    """Return the name of the GPU, or of the CPU as Linux gives it."""
    if device == 'cuda':
        return torch.cuda.get_device_name()
    lines = Path('/proc/cpuinfo').read_text().splitlines()
    return next((line.partition(': ')[2] for line in lines if line.startswith('model name')), platform.machine())


if __name__ == '__main__':
    sys.exit(main())
