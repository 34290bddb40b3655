"""Check the kernels in a process of their own, and keep the record that `backend='auto'` follows.

`mmpola gpu` shows the result; `mmpola train`, `test` and `predict` call `ensure_checked` first.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from typing import Any

import torch
from filelock import FileLock
from tqdm import tqdm

from mmpola.checkpoint.write import write_atomically
from mmpola.ops import triton as triton_backend
from mmpola.ops.kernel_check import DTYPES, HEAD_DIMS, all_cases, row_of
from mmpola.ops.kernel_record import read_record, record_key, record_path, rows_by_case

COMMAND = (sys.executable, '-m', 'mmpola.ops.kernel_check')
"""The child process."""

LONGEST_CASE = 600.0
"""Seconds after which a case that says nothing is ended."""

Row = dict[str, Any]


def ensure_checked() -> None:
    """Check the kernels on every kind of GPU here that has no record; print why if one cannot be.

    Several processes that start together run one check: the others wait for its record.
    """
    if triton_backend.missing():
        return
    for device in different_gpus():
        try:
            check_gpu(device)
        except (OSError, RuntimeError) as error:
            print(f'the kernels could not be checked, attention runs in plain PyTorch: {error}')


def different_gpus() -> list[torch.device]:
    """Return one device of each GPU model that torch sees."""
    devices: dict[str, torch.device] = {}
    for number in range(torch.cuda.device_count()):
        device = torch.device('cuda', number)
        devices.setdefault(torch.cuda.get_device_name(device), device)
    return list(devices.values())


def check_gpu(device: torch.device, again: bool = False) -> list[Row]:
    """Return the record of a GPU; check its kernels if there is none.

    Args:
        device: the GPU.
        again: check although there is a record.

    Raises:
        OSError: the record cannot be written.
        RuntimeError: the child process cannot start.
    """
    key = record_key(device)
    path = record_path(key)
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_suffix('.lock')):
        rows = read_record(key)
        if rows is None or again:
            print(f'checking the kernels on {key["gpu"]}, once: a few minutes')
            rows = run_check(device)
            content = json.dumps({'key': key, 'rows': rows}, indent=1) + '\n'
            write_atomically(path, content.encode())
            rows_by_case.cache_clear()
    return rows


def run_check(device: torch.device, is_tiny: bool = False) -> list[Row]:
    """Check and time all cases in child processes; return a row for each.

    A case whose process ends, hangs or prints something else is a row with the failure, and another
    process goes on behind it.

    Raises:
        RuntimeError: a process has ended before it began a case.
    """
    cases = all_cases()
    rows: list[Row] = []
    with tqdm(total=len(cases), desc='kernels', disable=None) as bar:

        def add(row: Row) -> None:
            rows.append(row)
            bar.update()

        while len(rows) < len(cases):
            first = len(rows)
            begun, reason = run_child(device, first, is_tiny, add)
            if len(rows) == len(cases):
                break
            if begun < len(rows):
                if len(rows) == first:
                    raise RuntimeError(reason)
                continue  # it has ended between two cases
            add({**row_of(cases[len(rows)]), 'failure': reason})
    return rows


def run_child(
    device: torch.device, first: int, is_tiny: bool, add: Callable[[Row], None]
) -> tuple[int, str]:
    """Run the cases from number `first` on in a process, and pass on each row.

    Returns:
        The number of the last case that has begun, or -1; and how the process ended.
    """
    command = [*COMMAND, '--device', str(device), '--first', str(first)]
    if is_tiny:
        command.append('--tiny')
    begun = -1
    keys = row_of(all_cases()[0]).keys()
    with tempfile.TemporaryFile('w+') as errors:
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
        assert child.stdout is not None
        while True:
            timer = threading.Timer(LONGEST_CASE, child.kill)
            timer.start()
            line = child.stdout.readline()
            timer.cancel()
            if not line:
                break
            message = read_message(line)
            if 'begun' in message:
                begun = message['begun']
            elif message.keys() == keys:
                add(message)
        status = child.wait()
        errors.seek(0)
        last_words = errors.read().strip().splitlines()
    if last_words:
        return begun, last_words[-1]
    return begun, f'the process ended with status {status}'


def read_message(line: str) -> Row:
    """Return what a line of a child says; empty for other output, such as a library's."""
    try:
        message = json.loads(line)
    except ValueError:
        return {}
    if not isinstance(message, dict):
        return {}
    return message


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
