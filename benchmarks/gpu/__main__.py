"""Prove, tune and measure the kernels on the GPU of this machine, within a budget of time.

    python -m benchmarks.gpu [--minutes 8] [--fresh] [--results FOLDER]
    python -m benchmarks.gpu --dry-run      tiny shapes in Triton's interpreter, on a CPU

Writes run.json, report.md and launches.json into benchmarks/results/GPU; the operators read the
last, a launch table, where MMPOLA_LAUNCHES names it. The exit status is 1 if a check against
float64 fails, a kernel has no launches to choose from or the GPU stops answering, and 2 without a
usable GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import warnings
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from benchmarks.records import ROOT, results_folder
from mmpola.messages import UsageError, run_main

if TYPE_CHECKING:
    from benchmarks.gpu.session import Session

# Processes that compile and check import this module again: torch and Triton are imported when they
# are needed.

TABLE = 'launches.json'


def main() -> None:
    parser = argparse.ArgumentParser(
        prog='python -m benchmarks.gpu', description=(__doc__ or '').splitlines()[0]
    )
    parser.add_argument('--minutes', type=float, default=8, help='budget of time (default: 8)')
    parser.add_argument('--fresh', action='store_true', help='repeat what earlier runs measured')
    parser.add_argument(
        '--results', type=Path, metavar='FOLDER', help='default: benchmarks/results/GPU'
    )
    parser.add_argument(
        '--dry-run', action='store_true', help="tiny shapes in Triton's interpreter, on a CPU"
    )
    args = parser.parse_args()
    if args.minutes <= 0:
        raise UsageError(f'--minutes: expected more than 0, got {args.minutes:g}')
    if args.dry_run:
        os.environ['TRITON_INTERPRET'] = '1'
        os.environ['PYTHONWARNINGS'] = (
            'ignore::RuntimeWarning'  # NumPy, which interprets the kernels, warns of log2(0)
        )
        warnings.simplefilter('ignore', RuntimeWarning)
    elif os.environ.get('TRITON_INTERPRET') == '1':
        raise UsageError('TRITON_INTERPRET: expected to be unset, got 1, which --dry-run is for')
    sys.exit(run(args))


def run(args: argparse.Namespace) -> int:
    """Run all parts and return the exit status."""
    start = time.monotonic()
    from mmpola.ops.triton import backend

    if reasons := backend.missing():
        raise UsageError(
            f'GPU: expected one that can run the kernels, got {"; ".join(reasons)}; '
            '--dry-run needs none'
        )
    import torch

    from benchmarks.gpu.processes import Checker
    from benchmarks.gpu.report import write_report
    from benchmarks.gpu.session import (
        HARD_STOP,
        DeviceLostError,
        Session,
        earlier_parts,
        environment_of,
        hard_stop,
    )

    device = torch.device('cpu' if args.dry_run else f'cuda:{torch.cuda.current_device()}')
    torch.manual_seed(0)
    environment = environment_of(device)
    usual = (
        ROOT / 'work_dirs' / 'gpu-dry-run' if args.dry_run else results_folder(environment['gpu'])
    )
    folder = args.results or usual
    folder.mkdir(parents=True, exist_ok=True)
    parts = {} if args.fresh else earlier_parts(folder, environment)
    session = Session(
        folder, device, args.dry_run, start, 60 * args.minutes, environment, parts, Checker(device)
    )

    def report() -> int:
        required, targets = write_report(session)
        for verdict in [
            *required,
            *([] if args.dry_run else targets),
        ]:  # tiny shapes say nothing about speed
            print(f'{verdict["result"]:12} {verdict["target"]}: {verdict["worst result"]}')
        print(
            f'written to {folder}; MMPOLA_LAUNCHES={folder / TABLE} makes the operators use '
            'the launches'
        )
        return int(any(verdict['result'] == 'not reached' for verdict in required))

    def stopped() -> int:
        session.say('out of time: run the command again to measure what is missing')
        return report()

    timer = hard_stop(session.left(HARD_STOP), stopped)
    try:
        measure(session)
    except DeviceLostError as error:
        session.say(f'{error}; run the command again to measure what is missing')
        return report() or 1
    finally:
        timer.cancel()
    return report()


def measure(session: Session) -> None:
    """Run the three parts; after the tuning, write the launch table."""
    from benchmarks.gpu.checks import calls
    from benchmarks.gpu.processes import COMPILING, compile_call, start_pool
    from benchmarks.gpu.results import results
    from benchmarks.gpu.tuning import table_content, targets, tune
    from mmpola.checkpoint.write import write_atomically
    from mmpola.ops.triton.tables import parse_table, use_table

    capability: Any = tuple(session.environment['capability'])
    checks, every = (
        calls(session.dry_run),
        {target.name: target for target in targets(session.dry_run)},
    )
    pool = start_pool(1 if session.dry_run else max(1, len(os.sched_getaffinity(0)) - 1))
    compiling = partial(compile_call, (9, 0) if session.dry_run else capability)
    try:
        with use_table({}):  # earlier tables must not decide on what is called today's launch
            with mock.patch.dict(os.environ, COMPILING):
                # All compilations start now, so that those of the tuning run beside the checks.
                untried = [] if session.dry_run else session.missing('correctness', checks)
                compiled = {name: [pool.submit(compiling, checks[name], {})] for name in untried}
                tried = {}
                for name in session.missing('tuning', every):
                    gate, keys = every[name].gate, every[name].keys
                    launches = [dict.fromkeys(keys, launch) for launch in every[name].candidates]
                    tried[name] = [pool.submit(compiling, gate, x) for x in launches]
            items = {
                name: partial(session.checker.check, call, {}) for name, call in checks.items()
            }
            session.perform('correctness', items, compiled)
            before = table_content(session)
            tuned = {
                name: partial(tune, session, target, tried.get(name, []))
                for name, target in every.items()
            }
            session.perform(
                'tuning', tuned, {name: futures[-1:] for name, futures in tried.items()}
            )
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        session.checker.close()
    content = table_content(session)
    if content != before:
        session.parts.pop('results', None)  # measured with other launches
    if content['launches']:
        write_atomically(session.folder / TABLE, f'{json.dumps(content, indent=1)}\n'.encode())
    with use_table(parse_table(content, capability)):
        session.perform('results', results(session))


if __name__ == '__main__':
    run_main(main)
