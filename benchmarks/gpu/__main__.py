"""Check the kernels on the GPU of this machine, then measure operator and training steps.

    python -m benchmarks.gpu [--only checks|operator|networks]
    python -m benchmarks.gpu --sweep power|rotary D    prints launches, the fastest first
    python -m benchmarks.gpu --dry-run                 tiny shapes on a CPU; the times are made up

Writes run.json and report.md into benchmarks/results/GPU after each part. The exit status is 1 if a
check fails.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

from benchmarks.records import ROOT, commit, results_folder, table
from mmpola.checkpoint.write import write_atomically

PARTS = ('checks', 'operator', 'networks')

NOTES = """Columns of other implementations are their time over ours: above 1, ours is faster. Their
own times and memory are in run.json. GB is the peak of a run, without tensors that exist before it
(weights, optimizer state, inputs). 'step' is forward and backward; 'training step' is forward,
backward and AdamW."""

MADE_UP = '**Dry run on a CPU: all times and memory sizes below are MADE UP.**'


def main() -> None:
    parser = argparse.ArgumentParser(
        prog='python -m benchmarks.gpu', description=(__doc__ or '').splitlines()[0]
    )
    parser.add_argument('--only', choices=PARTS, help='one part of the run (default: all)')
    parser.add_argument(
        '--sweep', nargs=2, metavar=('MAP', 'D'), help='power or rotary, and channels per head'
    )
    parser.add_argument(
        '--dry-run', action='store_true', help='tiny shapes on a CPU, with times that are made up'
    )
    parser.add_argument('--results', type=Path, metavar='FOLDER')
    args = parser.parse_args()
    if args.dry_run:
        os.environ['TRITON_INTERPRET'] = '1'  # before Triton is imported
        warnings.simplefilter('ignore', RuntimeWarning)  # NumPy, which interprets log2(0)
    sys.exit(run(args))


def run(args: argparse.Namespace) -> int | str:
    """Run the parts and return the exit status, or a line that says why nothing can run."""
    import torch
    import triton

    from benchmarks.gpu.checks import check_rows
    from benchmarks.gpu.networks import network_rows
    from benchmarks.gpu.operator import operator_rows
    from benchmarks.gpu.sweep import sweep
    from mmpola.ops import triton as backend

    reasons = backend.missing()
    if reasons:
        return f'error: no GPU to measure: {"; ".join(reasons)}; --dry-run needs none'
    torch.manual_seed(0)
    gpu = 'dry run' if args.dry_run else torch.cuda.get_device_name()
    if args.sweep:
        feature_map, dim = args.sweep
        sweep(feature_map, int(dim), args.dry_run)
        return 0

    folder = args.results or results_folder(gpu)
    if args.dry_run and not args.results:
        folder = ROOT / 'work_dirs' / 'gpu-dry-run'
    folder.mkdir(parents=True, exist_ok=True)
    record: dict[str, Any] = {
        'gpu': gpu,
        'times are made up': args.dry_run,
        'commit': commit(),
        'torch': torch.__version__,
        'triton': triton.__version__,
    }
    rows_of_part = {'checks': check_rows, 'operator': operator_rows, 'networks': network_rows}
    for part in PARTS:
        if args.only and part != args.only:
            continue
        record[part] = []
        for row in rows_of_part[part](args.dry_run):
            record[part].append(row)
            print(table([row]).splitlines()[-1], flush=True)
        write_atomically(folder / 'run.json', json.dumps(record, indent=1) + '\n')
        write_atomically(folder / 'report.md', report(record))
    print(f'written to {folder}')
    return int(any(row['failure'] for row in record.get('checks', [])))


def report(record: dict[str, Any]) -> str:
    """Return the report of a run in Markdown."""
    versions = f'torch {record["torch"]}, triton {record["triton"]}, commit {record["commit"]}.'
    text = [f'# {record["gpu"]}', versions]
    if record['times are made up']:
        text.append(MADE_UP)
    text.append(NOTES)
    for part in PARTS:
        if part in record:
            text.append(f'## {part.capitalize()}\n\n{table(record[part])}')
    return '\n\n'.join(text) + '\n'


if __name__ == '__main__':
    main()
