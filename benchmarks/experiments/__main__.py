"""Run our own experiments, continue them, and report their results.

    python -m benchmarks.experiments list [EXPERIMENT …]
    python -m benchmarks.experiments run [EXPERIMENT …] [--seeds N …] [--variants CONFIG …]
    python -m benchmarks.experiments collect
    python -m benchmarks.experiments report
    python -m benchmarks.experiments networks
    python -m benchmarks.experiments floors
    python -m benchmarks.experiments check-resume

`run` trains and tests what `list` shows, one run after the other, each in a folder of
work_dirs/experiments. It skips what has finished and continues what was interrupted: after an
interruption, give the same command again. `collect` writes one JSON file for each finished run to
benchmarks/results/experiments. `networks` analyzes the attention of the trained networks.
`floors` measures what a table and a linear model score. `report` writes tables and sentences into
docs/results.md and README.md, and draws the figures. `check-resume` kills one of two equal runs,
resumes it and compares the weights.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.experiments.floors import measure_floors
from benchmarks.experiments.networks import analyze_networks
from benchmarks.experiments.plan import EXPERIMENTS, SEEDS, Run, runs_of
from benchmarks.experiments.report import report
from benchmarks.experiments.results import collect, save
from benchmarks.experiments.resume_check import check_resume
from benchmarks.experiments.running import is_finished, status, train_and_test


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description='Run our own experiments', allow_abbrev=False)
    actions = ('list', 'run', 'collect', 'networks', 'floors', 'report', 'check-resume')
    parser.add_argument('action', choices=actions)
    parser.add_argument(
        'experiments',
        nargs='*',
        metavar='EXPERIMENT',
        help=f'some of {", ".join(EXPERIMENTS)} (default: all)',
    )
    parser.add_argument(
        '--runs', type=Path, default=Path('work_dirs/experiments'), help='folder of all runs'
    )
    parser.add_argument('--variants', nargs='+', metavar='CONFIG', help='some of the configs')
    parser.add_argument('--seeds', nargs='+', type=int, metavar='N', help='some of the seeds')
    parser.add_argument('--cfg-options', nargs='+', default=[], help='of all these runs')
    args = parser.parse_args()
    for key in args.experiments:
        if key not in EXPERIMENTS:
            parser.error(f'EXPERIMENT: expected some of {", ".join(EXPERIMENTS)}, got {key}')
    if not selected(args):
        chosen = runs_of(args.experiments or EXPERIMENTS)
        variants = ', '.join(dict.fromkeys(run.variant for run in chosen))
        parser.error(
            f'--variants, --seeds: expected some of {variants} and of the seeds '
            f'{", ".join(map(str, SEEDS))}, got no run of them'
        )
    return args


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


def run_all(args: argparse.Namespace) -> int:
    """Train and test the selected runs; return the exit status."""
    failed = []
    for run in selected(args):
        folder = args.runs.resolve() / run.name
        if not is_finished(folder):
            print(f'{run.name}: starts', flush=True)
            if not train_and_test(run, folder, args.cfg_options):
                failed.append(run.name)
        print(f'{run.name}: {status(folder)}', flush=True)
    if failed:
        print(f'did not finish: {", ".join(failed)}; see output.log in their folders')
    return int(bool(failed))


def main() -> int:
    args = parse_args()
    if args.action == 'run':
        return run_all(args)
    if args.action == 'networks':
        analyze_networks(args.runs)
    if args.action == 'floors':
        measure_floors()
    if args.action == 'report':
        report()
    if args.action == 'check-resume':
        print(check_resume(args.runs.resolve()))
    if args.action in ('list', 'collect'):
        for run in selected(args):
            folder = args.runs / run.name
            print(f'{run.name}: {status(folder)}')
            if args.action == 'collect' and is_finished(folder):
                save(collect(run, folder))
    return 0


if __name__ == '__main__':
    sys.exit(main())
