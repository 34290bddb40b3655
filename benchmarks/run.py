"""Benchmarks, as ratios within one run; parity is checked first, and without it no number is printed.

Columns: times of the peer over ours (above 1 is faster), memory of ours over the literal equations' (below 1 is
leaner), the bytes that must move over our time as a share of the copy bandwidth measured in the same run.

    python -m benchmarks.run attention|mix_and_gate|backbones|scaling [--device cpu|cuda] [--repeats 20]
        [--peers NAME …]

Writes benchmarks/results/MACHINE/SUITE.json and prints a table.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.measure import ParityError
from benchmarks.networks import backbones
from benchmarks.operators import attention, mix_and_gate_suite, scaling

ROOT = Path(__file__).resolve().parent.parent
SUITES = {'attention': attention, 'mix_and_gate': mix_and_gate_suite, 'backbones': backbones, 'scaling': scaling}

PEERS = {
    'cuda': {
        'attention': ['literal', 'compiled literal', 'reference', 'compiled reference', 'softmax', 'published port'],
        'mix_and_gate': ['literal', 'compiled literal', 'reference'],
        'backbones': ['literal', 'mmdet', 'timm Swin-T'],
        'scaling': [],
    },
    # Compilers and softmax over 66,800 tokens take minutes each here: named by --peers they run.
    'cpu': {
        'attention': ['literal'],
        'mix_and_gate': ['literal'],
        'backbones': ['literal', 'mmdet', 'timm Swin-T'],
        'scaling': [],
    },
}
"""What a suite is compared with unless --peers says otherwise."""


def main() -> int:
    parser = argparse.ArgumentParser(description='Measure ratios against peers in one run')
    parser.add_argument('suite', choices=SUITES)
    parser.add_argument('--device', choices=('cpu', 'cuda'), default='cuda' if torch.cuda.is_available() else 'cpu')
    parser.add_argument('--repeats', type=int, default=20, help='rounds in which every variant runs once')
    parser.add_argument('--peers', nargs='+', metavar='NAME', help=f'some of {PEERS["cuda"]}')
    args = parser.parse_args()
    every, usual = PEERS['cuda'][args.suite], PEERS[args.device][args.suite]
    if unknown := set(args.peers or []) - set(every):
        parser.error(f'--peers: expected some of {every}, got {sorted(unknown)}')
    torch.manual_seed(0)
    try:
        rows = list(SUITES[args.suite](args.device, args.repeats, args.peers or usual))
    except ParityError as error:
        print(f'no parity, no numbers: {error}', file=sys.stderr)
        return 1
    machine = torch.cuda.get_device_name() if args.device == 'cuda' else f'cpu-{torch.get_num_threads()}-threads'
    record = {
        'machine': machine,
        'commit': _commit(),
        'torch': torch.__version__,
        'python': platform.python_version(),
        'repeats': args.repeats,
        'rows': rows,
    }
    path = ROOT / 'benchmarks' / 'results' / machine.replace(' ', '-') / f'{args.suite}.json'
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1) + '\n')
    Console(width=180).print(_table(f'{args.suite} on {machine}', rows))
    print(f'written to {path.relative_to(ROOT)}')
    return 0


def _table(title: str, rows: list[dict[str, Any]]) -> Table:
    columns = [key for key, value in rows[0].items() if not isinstance(value, dict)]
    table = Table(title=title)
    for column in columns:
        table.add_column(column)
    for row in rows:
        table.add_row(*(f'{row[c]:.2f}' if isinstance(row[c], float) else str(row[c]) for c in columns))
    return table


def _commit() -> str:
    """The commit that is measured; with '+' where files differ from it."""
    described = subprocess.run(
        ['git', 'describe', '--always', '--dirty=+', '--abbrev=10'],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return described.stdout.strip() or 'unknown'


if __name__ == '__main__':
    sys.exit(main())
