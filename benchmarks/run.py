"""Run a benchmark suite: check that all variants compute the same function, then time them in turn.

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
from pathlib import Path
from typing import NamedTuple

import torch

from benchmarks.image_size import image_size
from benchmarks.measure import ParityError
from benchmarks.networks import backbones, layer, zoo
from benchmarks.operators import attention
from benchmarks.records import ROOT, Row, commit, results_folder, table
from benchmarks.sequences import sequences


class Suite(NamedTuple):
    """A suite and what it is compared with.

    Attributes:
        measure: yields rows, given the device, the number of rounds and the names of the peers.
        peers: names of all peers.
        cpu_peers: those that run by default on a CPU, where compiled peers, and softmax over 66,800
            tokens, take minutes each; None: all.
    """

    measure: Callable[[str, int, list[str]], Iterator[Row]]
    peers: list[str]
    cpu_peers: list[str] | None = None


SUITES = {
    'attention': Suite(
        attention,
        ['literal', 'compiled literal', 'softmax', 'published port'],
        cpu_peers=['literal'],
    ),
    'backbones': Suite(
        backbones,
        ['compiled', 'literal', 'mmdet', 'timm Swin-T', 'compiled timm Swin-T'],
        cpu_peers=['literal', 'mmdet', 'timm Swin-T'],
    ),
    'image_size': Suite(image_size, ['mmdet']),
    'zoo': Suite(zoo, []),
    'sequences': Suite(sequences, ['stored softmax', 'polaformer_pp', 'linear']),
    'layer': Suite(layer, ['softmax', 'literal']),
}


def main() -> int:
    default_device = 'cuda' if torch.cuda.is_available() else 'cpu'
    parser = argparse.ArgumentParser(
        description='Compare implementations in time and memory within one run'
    )
    parser.add_argument('suite', choices=SUITES)
    parser.add_argument('--device', choices=('cpu', 'cuda'), default=default_device)
    parser.add_argument(
        '--repeats',
        type=int,
        help='rounds in which every variant runs once (default: 20 on a GPU, 3 on a CPU)',
    )
    peers_of_suites = {name: suite.peers for name, suite in SUITES.items() if suite.peers}
    parser.add_argument('--peers', nargs='+', metavar='NAME', help=f'some of {peers_of_suites}')
    args = parser.parse_args()

    suite = SUITES[args.suite]
    is_cpu = args.device == 'cpu'
    peers = suite.peers
    if args.peers:
        unknown = sorted(set(args.peers) - set(suite.peers))
        if unknown:
            parser.error(f'--peers: expected some of {suite.peers}, got {unknown}')
        peers = args.peers
    elif is_cpu and suite.cpu_peers is not None:
        peers = suite.cpu_peers
    repeats = args.repeats or (3 if is_cpu else 20)
    if is_cpu:
        machine = f'cpu-{torch.get_num_threads()}-threads'
        processor = _processor()
    else:
        machine = torch.cuda.get_device_name()
        processor = machine

    torch.manual_seed(0)
    try:
        rows = list(suite.measure(args.device, repeats, peers))
    except ParityError as error:
        print(
            f'error: the variants compute different functions, so nothing is timed: {error}',
            file=sys.stderr,
        )
        return 1
    record = {
        'machine': machine,
        'processor': processor,
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
    for line in Path('/proc/cpuinfo').read_text().splitlines():
        if line.startswith('model name'):
            return line.partition(': ')[2]
    return platform.machine()


if __name__ == '__main__':
    sys.exit(main())
