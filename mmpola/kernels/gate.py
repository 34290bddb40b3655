"""Check the kernels in processes of their own, and keep the record that `backend='auto'` follows.

`mmpola gpu` shows the result; `mmpola train`, `test` and `predict` call `ensure_checked` first.
"""

from __future__ import annotations

import os
import sys
from itertools import product

import torch
from filelock import FileLock

from mmpola.kernels.check import CHECKED, DTYPES, HEAD_DIMS, all_cases
from mmpola.kernels.children import run_jobs
from mmpola.kernels.record import (
    Case,
    Results,
    float32_name,
    read_record,
    record_path,
    write_record,
)
from mmpola.ops import triton as triton_backend

COMMAND = (sys.executable, '-m', 'mmpola.kernels.check')
"""The child process."""

NETWORK_HEAD_DIMS = (32, 64)
"""Head dimensions of the published networks that the kernels support."""

MOST_CHILDREN = 12
BYTES_PER_CHILD = 2**31
"""Memory of the GPU for each process: CUDA's own, and the tensors of a check."""


def ensure_checked(dtype: str) -> None:
    """Check what networks need in a dtype on every kind of GPU here; print why if that fails.

    What the record has already is not checked again. Several processes that start together run one
    check: the others wait for its record.

    Args:
        dtype: of the tokens, such as 'float16'.
    """
    if triton_backend.missing():
        return
    dtypes = {dtype}
    if dtype == 'float32':
        dtypes.add(float32_name())
    cases = [
        case for case in all_cases() if case.head_dim in NETWORK_HEAD_DIMS and case.dtype in dtypes
    ]
    for device in different_gpus():
        try:
            check_gpu(device, cases)
        except (OSError, RuntimeError) as error:
            print(f'the kernels could not be checked, attention runs in plain PyTorch: {error}')


def different_gpus() -> list[torch.device]:
    """Return one device of each GPU model that torch sees."""
    devices: dict[str, torch.device] = {}
    for number in range(torch.cuda.device_count()):
        device = torch.device('cuda', number)
        devices.setdefault(torch.cuda.get_device_name(device), device)
    return list(devices.values())


def check_gpu(device: torch.device, cases: list[Case], again: bool = False) -> Results:
    """Check the cases that the record of a GPU lacks, and return the record with them.

    What an interrupted check has found is kept.

    Args:
        device: the GPU.
        cases: what is needed.
        again: check all of them, including cases that the record has already.

    Raises:
        OSError: the record cannot be written.
        RuntimeError: no child process can start, or somebody has stopped one.
    """
    results = read_record(device)
    if not again and all(str(case) in results for case in cases):
        return results  # also where the cache folder cannot be written
    path = record_path(device)
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_suffix('.lock')):
        results = read_record(device)
        wanted = [case for case in cases if again or str(case) not in results]
        if wanted:
            name = torch.cuda.get_device_name(device)
            print(
                f'checking {len(wanted)} kernels on {name}, once: this may take minutes', flush=True
            )
            try:
                run_check(device, wanted, results)
            finally:
                write_record(device, results)
    return results


def run_check(device: torch.device, cases: list[Case], results: Results) -> None:
    """Check and time cases in child processes, and enter each result once it is known.

    Most of a check is compilation: the children share the checks, then one process times the cases
    that are right, while nothing else runs on the GPU.

    Raises:
        RuntimeError: no process can start, or somebody has stopped one.
    """
    command = [*COMMAND, str(device)]
    right = []
    for case, found in run_jobs([*command, 'check'], cases, number_of_children(device)):
        if found['failure']:
            results[str(case)] = {'failure': found['failure'], 'speedup': {}}
        else:
            right.append(case)
    for case, found in run_jobs([*command, 'time'], right):
        results[str(case)] = {'failure': '', 'speedup': {}} | found


def number_of_children(device: torch.device, bytes_per_child: int = BYTES_PER_CHILD) -> int:
    """Return how many processes have a core and enough of the GPU's memory each."""
    memory = torch.cuda.get_device_properties(device).total_memory
    return max(1, min(MOST_CHILDREN, len(os.sched_getaffinity(0)), memory // bytes_per_child))


def table(results: Results) -> str:
    """Return the record as text: for each operator and head dimension, a column per dtype.

    A cell says how much faster than plain PyTorch a training step of the operator is, for the
    shorter and for the longer sequence, or that the kernels are wrong; failures follow below.
    """
    lines = [f'{"operator":<14}{"D":>3}' + ''.join(f'{dtype:>18}' for dtype in DTYPES)]
    for operator, head_dim in product(CHECKED, HEAD_DIMS):
        line = f'{operator:<14}{head_dim:>3}'
        for dtype in DTYPES:
            result = results.get(str(Case(operator, head_dim, dtype)))
            text = ''
            if result is not None:
                speedup = result['speedup'].values()
                text = ' / '.join(f'{factor:.1f}' for factor in speedup)
                if result['failure']:
                    text = 'failed'
                elif min(speedup) <= 1:
                    text += ' (off)'
            line += f'{text:>18}'
        lines.append(line)
    for case, result in results.items():
        if result['failure']:
            lines.append(f'{case}: {result["failure"]}')
    return '\n'.join(lines)
