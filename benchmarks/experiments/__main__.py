"""Run our own experiments, continue them, collect their results.

    python -m benchmarks.experiments list
    python -m benchmarks.experiments run [EXPERIMENT …] [--seeds N …] [--variants NAME …]

`run` skips what has finished and continues what was interrupted: the same command again after an
interruption. Runs are in work_dirs/experiments, one folder each.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.experiments.plan import EXPERIMENTS, Run, runs_of
from benchmarks.experiments.running import execute, is_finished, status


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description='Run our own experiments', allow_abbrev=False)
    parser.add_argument('action', choices=('list', 'run'))
    parser.add_argument(
        'experiments',
        nargs='*',
        metavar='EXPERIMENT',
        help=f'{", ".join(EXPERIMENTS)}; default: all',
    )
    parser.add_argument('--runs', type=Path, default=Path('work_dirs/experiments'))
    parser.add_argument('--variants', nargs='+')
    parser.add_argument('--seeds', nargs='+', type=int)
    parser.add_argument('--cfg-options', nargs='+', default=[], help='for all runs')
    return parser.parse_args()


def selected(args: argparse.Namespace) -> list[Run]:
    """Return the runs that the arguments select, in the order of the plan."""
    runs = []
    for run in runs_of(args.experiments or EXPERIMENTS):
        if args.variants is not None and run.variant not in args.variants:
            continue
        if args.seeds is not None and run.seed not in args.seeds:
            continue
        runs.append(run)
    return runs


def main() -> int:
    args = parse_args()
    failed = []
    for run in selected(args):
        folder = args.runs.resolve() / run.name
        if args.action == 'list' or is_finished(folder):
            print(f'{run.name}: {status(folder)}')
            continue
        print(f'{run.name}: starts', flush=True)
        if not execute(run, folder, args.cfg_options):
            failed.append(run.name)
        print(f'{run.name}: {status(folder)}', flush=True)
    if failed:
        print(f'did not finish: {", ".join(failed)}; see output.log in their folders')
    return int(bool(failed))


if __name__ == '__main__':
    sys.exit(main())
