"""Check the kernels in processes of their own, and keep the record that `backend='auto'` follows.

`mmpola gpu` shows the result; `mmpola train`, `test` and `predict` call `ensure_checked` first.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Generator
from contextlib import closing
from pathlib import Path

import torch
from filelock import FileLock

from mmpola.kernels.check import (
    DTYPES,
    HEAD_DIMS,
    NETWORK_HEAD_DIMS,
    Case,
    all_cases,
    case_of,
    row_of,
)
from mmpola.kernels.child_processes import Row, share, started
from mmpola.kernels.record import (
    float32_name,
    read_record,
    record_key,
    record_path,
    rows_by_case,
)
from mmpola.ops import triton as triton_backend

COMMAND = (sys.executable, '-m', 'mmpola.kernels.check')
"""The child process."""

LONGEST_CASE = 300.0
"""Seconds after which a process that says nothing is ended; it may share its core with others."""

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
        dtypes.add(float32_name(triton_backend.product_precision(torch.float32)))
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


def check_gpu(device: torch.device, cases: list[Case], again: bool = False) -> list[Row]:
    """Check the cases that the record of a GPU lacks, and return the record.

    The record is written after each case: a check that is interrupted goes on where it was.

    Args:
        device: the GPU.
        cases: what is needed.
        again: check all of them, also those of the record.

    Raises:
        OSError: the record cannot be written.
        RuntimeError: no child process can start, or somebody has stopped them.
    """
    key = record_key(device)
    recorded = read_record(key) or []
    if not again and set(cases) <= {case_of(row) for row in recorded}:
        return recorded  # also where the cache folder cannot be written
    path = record_path(key)
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_suffix('.lock')):
        rows = {case_of(row): row for row in read_record(key) or []}
        wanted = [case for case in cases if again or case not in rows]
        if wanted:
            print(f'checking {len(wanted)} kernels on {key["gpu"]}, once', flush=True)
        with closing(run_check(device, wanted)) as found:
            for row in found:
                rows[case_of(row)] = row
                write_record(path, key, list(rows.values()))
    return list(rows.values())


def write_record(path: Path, key: dict[str, str], rows: list[Row]) -> None:
    """Replace the file of a record; `backend='auto'` follows it from now on."""
    partial = path.with_suffix('.partial')
    partial.write_text(json.dumps({'key': key, 'rows': rows}, indent=1) + '\n')
    partial.replace(path)
    rows_by_case.cache_clear()


def run_check(
    device: torch.device, cases: list[Case], is_tiny: bool = False
) -> Generator[Row, None, None]:
    """Check and time cases in child processes; yield the row of each once it is known.

    Most of a check is compilation: the children share the checks, then one of them times the cases
    that are right, alone on the GPU. What networks need is finished before the others begin.

    Raises:
        RuntimeError: no process can start, or somebody has stopped them.
    """
    if not cases:
        return
    command = [*COMMAND, '--device', str(device)]
    if is_tiny:
        command.append('--tiny')
    count = min(number_of_children(device), len(cases))
    with started(command, count, LONGEST_CASE) as children:
        for of_networks in (True, False):
            group = [row_of(case) for case in cases if case.is_of_networks == of_networks]
            right = []
            for row in share('check kernels', group, children):
                if row['failure']:
                    yield row
                else:
                    right.append(row)
            right.sort(key=group.index)
            yield from share('time kernels', right, children[:1])


def number_of_children(device: torch.device, bytes_per_child: int = BYTES_PER_CHILD) -> int:
    """Return how many processes have a core and enough of the GPU's memory each."""
    memory = torch.cuda.get_device_properties(device).total_memory
    return max(1, min(MOST_CHILDREN, len(os.sched_getaffinity(0)), memory // bytes_per_child))


def table(rows: list[Row]) -> str:
    """Return the record as text: for each operator and head dimension, a column per dtype.

    A cell says how much faster than plain PyTorch a training step of the operator is, for the
    shorter and for the longer sequence, or that the kernels are wrong; failures follow below.
    """
    by_case = {(row['operator'], row['head_dim'], row['dtype']): row for row in rows}
    operators = list(dict.fromkeys(row['operator'] for row in rows))
    lines = [f'{"operator":<14}{"D":>3}' + ''.join(f'{name:>18}' for name in DTYPES)]
    for operator in operators:
        for head_dim in HEAD_DIMS:
            line = f'{operator:<14}{head_dim:>3}'
            for dtype in DTYPES:
                line += f'{cell(by_case.get((operator, head_dim, dtype))):>18}'
            lines.append(line)
    for row in rows:
        if row['failure']:
            case = f'{row["operator"]}, D={row["head_dim"]}, {row["dtype"]}'
            lines.append(f'{case}: {row["failure"]}')
    return '\n'.join(lines)


def cell(row: Row | None) -> str:
    """Return the cell of a row."""
    if row is None:
        return ''
    if row['failure']:
        return 'failed'
    times = ' / '.join(f'{value:.1f}' for value in row['speedup'].values())
    if min(row['speedup'].values()) <= 1:
        return f'{times} (off)'
    return times
