"""Run a benchmark suite: check that all variants compute the same function, then time them in turn.

    python -m benchmarks.run SUITE [--device cpu|cuda] [--repeats N]

Writes benchmarks/results/MACHINE/SUITE.json and prints a table; benchmarks/README.md describes
suites and columns.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Callable, Iterator

import torch

from benchmarks.image_size import image_size
from benchmarks.measure import ParityError
from benchmarks.networks import backbones, layer, zoo
from benchmarks.operators import attention
from benchmarks.records import ROOT, Row, commit, processor, results_folder, table
from benchmarks.sequences import sequences
from mmpola.files import write_atomically

SUITES: dict[str, Callable[[str, int], Iterator[Row]]] = {
    'attention': attention,
    'backbones': backbones,
    'image_size': image_size,
    'zoo': zoo,
    'sequences': sequences,
    'layer': layer,
}
"""Each yields rows, given the device and the number of rounds."""


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
    args = parser.parse_args()

    is_cpu = args.device == 'cpu'
    repeats = args.repeats or (3 if is_cpu else 20)
    if is_cpu:
        machine = f'cpu-{torch.get_num_threads()}-threads'
        name = processor()
    else:
        machine = torch.cuda.get_device_name()
        name = machine

    torch.manual_seed(0)
    try:
        rows = list(SUITES[args.suite](args.device, repeats))
    except ParityError as error:
        print(
            f'error: the variants compute different functions, so nothing is timed: {error}',
            file=sys.stderr,
        )
        return 1
    record = {
        'machine': machine,
        'processor': name,
        'commit': commit(),
        'torch': torch.__version__,
        'python': platform.python_version(),
        'repeats': repeats,
        'rows': rows,
    }
    path = results_folder(machine) / f'{args.suite}.json'
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(record, indent=1) + '\n')
    print(table(rows))
    print(f'written to {path.relative_to(ROOT)}')
    return 0


if __name__ == '__main__':
    sys.exit(main())
