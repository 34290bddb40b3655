"""Check, compile or time one row: what the child processes of `python -m benchmarks.gpu` run.

python -m benchmarks.gpu.child [--dry-run]
"""

from __future__ import annotations

import argparse
import gc
import sys
import warnings
from collections.abc import Callable

import torch
import torch._inductor.config

from benchmarks.gpu import networks, operator, sweep
from benchmarks.gpu.checks import check_row
from benchmarks.records import Row
from mmpola.kernels.check import is_usable
from mmpola.kernels.child_processes import serve
from mmpola.messages import first_line

COMPILE: dict[str, Callable[[Row, str, bool], None]] = {
    'compile networks': networks.compile_network,
    'compile operator': operator.compile_operator,
    'compile launches': sweep.compile_launch,
}
TIME: dict[str, Callable[[Row, dict[str, str], bool], Row]] = {
    'time networks': networks.time_networks,
    'time operator': operator.time_operator,
    'time launches': sweep.time_launch,
}


def run(task: str, job: Row, dry_run: bool) -> Row:
    """Return a job of `stages` with its result, or with the error that it raised as the failure."""
    torch.manual_seed(0)
    row = job['row']
    try:
        if task in COMPILE:
            COMPILE[task](row, job['variant'], dry_run)
            return job
        if task in TIME:
            row = TIME[task](row, job['failures'], dry_run)
        else:
            row = check_row(row, dry_run)
    except torch.OutOfMemoryError as error:
        if task in COMPILE:  # others use the GPU, too; then it is compiled when it is timed
            return job
        return job | {'failure': first_line(error)}
    except Exception as error:  # compilers and drivers may raise anything
        return job | {'failure': first_line(error)}
    return job | {'row': row, 'failure': row['failure']}


def main() -> None:
    parser = argparse.ArgumentParser(description='Check, compile or time rows on the GPU')
    parser.add_argument('--dry-run', action='store_true')
    args = parser.parse_args()
    if args.dry_run:
        warnings.simplefilter('ignore', RuntimeWarning)  # NumPy, which interprets log2(0)
    elif not is_usable(torch.device('cuda')):
        sys.exit('the GPU does not answer')
    # Inductor stores which of its kernels were fastest; while others compile, that means nothing.
    torch._inductor.config.autotune_local_cache = False

    def run_and_clean_up(task: str, job: Row) -> Row:
        found = run(task, job, args.dry_run)
        torch.compiler.reset()  # Dynamo compiles at most 8 kinds of inputs of a function
        gc.collect()
        torch.cuda.empty_cache()
        return found

    serve(run_and_clean_up)


if __name__ == '__main__':
    main()
