"""Check the kernels in processes of their own, and keep the record that `backend='auto'` follows.

`mmpola gpu` shows the result; `mmpola train`, `test` and `predict` call `ensure_checked` first.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Collection, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import closing, suppress
from pathlib import Path

import torch
from filelock import FileLock
from tqdm import tqdm

from mmpola.checkpoint.write import write_atomically
from mmpola.ops import triton as triton_backend
from mmpola.ops.kernel_check import (
    DTYPES,
    HEAD_DIMS,
    NETWORK_HEAD_DIMS,
    READY,
    Case,
    Row,
    all_cases,
    case_of,
    row_of,
)
from mmpola.ops.kernel_record import (
    float32_name,
    read_record,
    record_key,
    record_path,
    rows_by_case,
)

COMMAND = (sys.executable, '-m', 'mmpola.ops.kernel_check')
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
    content = json.dumps({'key': key, 'rows': rows}, indent=1) + '\n'
    write_atomically(path, content.encode())
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
    count = min(number_of_children(device), len(cases))
    children = [Child(device, is_tiny) for _ in range(count)]
    try:
        # A GPU may have too little memory for all, or admit one process only.
        ready = [child for child in children if child.is_ready()]
        if not ready:
            raise RuntimeError(children[0].last_words())
        for of_networks in (True, False):
            group = [row_of(case) for case in cases if case.is_of_networks == of_networks]
            right = []
            for row in share('check', group, ready):
                if row['failure']:
                    yield row
                else:
                    right.append(row)
            right.sort(key=group.index)
            yield from share('time', right, ready[:1])
    finally:
        for child in children:
            child.stop()


def number_of_children(device: torch.device) -> int:
    """Return how many processes have a core and enough of the GPU's memory each."""
    memory = torch.cuda.get_device_properties(device).total_memory
    return max(1, min(MOST_CHILDREN, len(os.sched_getaffinity(0)), memory // BYTES_PER_CHILD))


class Child:
    """A process that does one task after the other."""

    def __init__(self, device: torch.device, is_tiny: bool) -> None:
        self.command = [*COMMAND, '--device', str(device)]
        if is_tiny:
            self.command.append('--tiny')
        self.start()

    def start(self) -> None:
        """Start the process, and do not wait until it is ready."""
        self.errors = tempfile.TemporaryFile('w+', errors='replace')  # noqa: SIM115
        self.process = subprocess.Popen(
            self.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            errors='replace',
            env={**os.environ, 'OMP_NUM_THREADS': '1'},
        )

    def is_ready(self) -> bool:
        """Wait until the process has started; return False if it could not."""
        return self.read(READY.keys()) is not None

    def run(self, task: str, row: Row) -> Row:
        """Return a row with the result of a task; how the process ended, if it did, is the failure.

        After a failure the next task has a new process: nothing on the GPU works in a process after
        an illegal address.

        Raises:
            RuntimeError: the new process cannot start, or somebody has stopped this one.
        """
        if self.process.poll() is not None:
            self.start()
            if not self.is_ready():
                raise RuntimeError(self.last_words())
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # reading then finds that the process has ended
            self.process.stdin.write(json.dumps([task, row]) + '\n')
            self.process.stdin.flush()
        found = self.read(row.keys())
        if found is None:
            found = row | {'failure': self.last_words()}
        if found['failure']:
            self.stop()
        return found

    def read(self, names: Collection[str]) -> Row | None:
        """Return the next message that has these names; None if the process ends before.

        It is ended after LONGEST_CASE seconds.
        """
        assert self.process.stdout is not None
        timer = threading.Timer(LONGEST_CASE, self.process.kill)
        timer.start()
        try:
            for line in self.process.stdout:
                message = read_message(line)
                if message.keys() == names:
                    return message
            return None
        finally:
            timer.cancel()

    def last_words(self) -> str:
        """Return the last line of errors of a process that has ended, or its status.

        Raises:
            RuntimeError: somebody has stopped it, which says nothing about the kernels.
        """
        status = self.process.wait()
        if status in (-signal.SIGINT, -signal.SIGTERM):
            raise RuntimeError('the check was stopped')
        self.errors.seek(0)
        lines = self.errors.read().strip().splitlines()
        if lines:
            return lines[-1]
        return f'the process ended with status {status}'

    def stop(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.wait()


def share(task: str, rows: list[Row], children: list[Child]) -> Iterator[Row]:
    """Do a task on every row, and yield each row that is done; the children work side by side."""
    if not rows:
        return
    idle = list(children)

    def run(row: Row) -> Row:
        child = idle.pop()
        found = child.run(task, row)
        idle.append(child)
        return found

    with ThreadPoolExecutor(len(children)) as threads:
        running = [threads.submit(run, row) for row in rows]
        bar = tqdm(total=len(rows), desc=f'{task} kernels', disable=None)
        try:
            for done, future in enumerate(as_completed(running), 1):
                bar.update()
                if bar.disable and (done % 10 == 0 or done == len(rows)):  # no terminal
                    print(f'{task} kernels: {done} of {len(rows)}', flush=True)
                yield future.result()
        except BaseException:  # Ctrl-C too
            threads.shutdown(wait=False, cancel_futures=True)
            for child in children:
                child.stop()
            raise
        finally:
            bar.close()


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
