"""Check, tune and measure the kernels on the GPU of this machine, within a budget of time.

    python -m benchmarks.gpu [--minutes 8] [--fresh] [--results FOLDER]
    python -m benchmarks.gpu --dry-run      tiny shapes in Triton's interpreter, on a CPU

Writes run.json, report.md and launches.json into benchmarks/results/GPU. launches.json is a launch
table: the operators use it where MMPOLA_LAUNCHES names it. The exit status is 1 if a check against
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
    from concurrent.futures import Future, ProcessPoolExecutor

    from benchmarks.gpu.session import Session

# Processes that compile and check import this module again, so torch and Triton are only imported
# in functions.

TABLE = 'launches.json'

CAPABILITY_OF_DRY_RUN = (9, 0)
"""The compute capability that a dry run compiles for."""


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
        # NumPy, which interprets the kernels, warns of log2(0), here and in other processes.
        os.environ['PYTHONWARNINGS'] = 'ignore::RuntimeWarning'
        warnings.simplefilter('ignore', RuntimeWarning)
    elif os.environ.get('TRITON_INTERPRET') == '1':
        raise UsageError('TRITON_INTERPRET: expected to be unset, got 1, which --dry-run is for')
    sys.exit(run(args))


def run(args: argparse.Namespace) -> int:
    """Run all parts and return the exit status."""
    start = time.monotonic()
    from mmpola.ops.triton import backend

    reasons = backend.missing()
    if reasons:
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

    device = torch.device('cpu')
    if not args.dry_run:
        device = torch.device(f'cuda:{torch.cuda.current_device()}')
    torch.manual_seed(0)
    environment = environment_of(device)
    if args.results:
        folder = args.results
    elif args.dry_run:
        folder = ROOT / 'work_dirs' / 'gpu-dry-run'
    else:
        folder = results_folder(environment['gpu'])
    folder.mkdir(parents=True, exist_ok=True)
    parts = {} if args.fresh else earlier_parts(folder, environment)
    session = Session(
        folder=folder,
        device=device,
        dry_run=args.dry_run,
        start=start,
        seconds=60 * args.minutes,
        environment=environment,
        parts=parts,
        checker=Checker(device),
    )

    def report() -> int:
        required, targets = write_report(session)
        verdicts = list(required)
        if not args.dry_run:  # tiny shapes say nothing about speed
            verdicts += targets
        for verdict in verdicts:
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
        report()
        return 1
    finally:
        timer.cancel()
    return report()


def measure(session: Session) -> None:
    """Check, tune, write the launch table, and measure with it."""
    from benchmarks.gpu.processes import start_pool
    from benchmarks.gpu.results import results
    from benchmarks.gpu.tuning import table_content
    from mmpola.checkpoint.write import write_atomically
    from mmpola.ops.triton.tables import parse_table, use_table

    workers = 1 if session.dry_run else max(1, len(os.sched_getaffinity(0)) - 1)
    pool = start_pool(workers)
    content_before = table_content(session)
    try:
        with use_table({}):  # earlier tables must not decide on what is called today's launch
            check_and_tune(session, pool)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        session.checker.close()

    content = table_content(session)
    if content != content_before:
        session.parts.pop('results', None)  # measured with other launches
    if content['launches']:
        write_atomically(session.folder / TABLE, f'{json.dumps(content, indent=1)}\n'.encode())
    capability: Any = tuple(session.environment['capability'])
    with use_table(parse_table(content, capability)):
        session.perform('results', results(session))


def check_and_tune(session: Session, pool: ProcessPoolExecutor) -> None:
    """Run the checks and the tuning; `pool` compiles their kernels meanwhile.

    All compilations start first, so that those of the tuning run beside the checks.
    """
    from benchmarks.gpu.checks import calls_to_check
    from benchmarks.gpu.processes import COMPILING, compile_call
    from benchmarks.gpu.tuning import tune, tuning_targets

    capability: Any = tuple(session.environment['capability'])
    if session.dry_run:
        capability = CAPABILITY_OF_DRY_RUN
    calls = calls_to_check(session.dry_run)
    targets = {target.name: target for target in tuning_targets(session.dry_run)}

    compiled_calls: dict[str, list[Future[Any]]] = {}
    compiled_candidates: dict[str, list[Future[Any]]] = {}
    with mock.patch.dict(os.environ, COMPILING):
        if not session.dry_run:
            for name in session.missing('correctness', calls):
                compiled_calls[name] = [pool.submit(compile_call, capability, calls[name], {})]
        for name in session.missing('tuning', targets):
            target = targets[name]
            compiled_candidates[name] = []
            for launch in target.candidates:
                launches = dict.fromkeys(target.keys, launch)
                future = pool.submit(compile_call, capability, target.call_before_timing, launches)
                compiled_candidates[name].append(future)

    checks = {}
    for name, call in calls.items():
        checks[name] = partial(session.checker.check, call, {})
    session.perform('correctness', checks, compiled_calls)

    tunings = {}
    for name, target in targets.items():
        tunings[name] = partial(tune, session, target, compiled_candidates.get(name, []))
    # The pool takes jobs in their order: when the last candidate is compiled, most others are, too.
    last_candidates = {name: futures[-1:] for name, futures in compiled_candidates.items()}
    session.perform('tuning', tunings, last_candidates)


if __name__ == '__main__':
    run_main(main)
