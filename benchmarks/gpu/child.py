"""Check, compile or time one row: what the child processes of `python -m benchmarks.gpu` run.

python -m benchmarks.gpu.child TASK dry|'' JOBS
"""

from __future__ import annotations

import gc
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress

import torch
import torch._inductor.config

from benchmarks.gpu import networks, operator, sweep
from benchmarks.gpu.checks import check_row
from benchmarks.records import Row
from mmpola.kernels.children import serve

LONGEST = 900
"""Seconds after which a job ends its process; it may compile beside many others."""

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
    """Return the result of a job of `stages`; nothing if it only compiles."""
    torch.manual_seed(0)
    if task == 'check kernels':
        return check_row(job, dry_run)
    if task in TIME:
        return TIME[task](job['row'], job['failures'], dry_run)
    # Others use the GPU, too: what needs too much memory now is compiled when it is timed.
    with suppress(torch.OutOfMemoryError):
        COMPILE[task](job['row'], job['variant'], dry_run)
    return {}


def main() -> None:
    _, task, mode, jobs = sys.argv
    dry_run = mode == 'dry'
    if dry_run:
        warnings.simplefilter('ignore', RuntimeWarning)  # NumPy, which interprets log2(0)
    # Inductor stores which of its kernels were fastest; while others compile, that means nothing.
    torch._inductor.config.autotune_local_cache = False

    def run_and_clean_up(job: Row) -> Row:
        found = run(task, job, dry_run)
        torch.compiler.reset()  # Dynamo compiles at most 8 kinds of inputs of a function
        gc.collect()
        torch.cuda.empty_cache()
        return found

    device = 'cpu' if dry_run else 'cuda'
    serve(lambda: torch.ones(1, device=device).item(), run_and_clean_up, jobs, LONGEST)


if __name__ == '__main__':
    main()
