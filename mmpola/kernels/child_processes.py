"""Do tasks in child processes, which may die, hang or print anything.

A child calls `serve`. The parent starts children with `started`, and `share` gives them tasks: each
is a word and a row, a dict of JSON with 'failure', '' until something fails.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from typing import Any

from tqdm import tqdm

Row = dict[str, Any]

READY = {'ready': True}
"""The first message of a child that can do tasks."""


def serve(run: Callable[[str, Row], Row]) -> None:
    """In a child: do the tasks that the parent sends, until it closes its end.

    Args:
        run: returns a row with the result of a task.
    """
    print(json.dumps(READY), flush=True)
    for line in sys.stdin:
        task, row = json.loads(line)
        found = json.dumps(run(task, row))
        print(f'\n{found}', flush=True)  # a library may have begun a line


@contextmanager
def started(command: Sequence[str], count: int, longest: float) -> Iterator[list[Child]]:
    """Start children and yield those that are ready; all end with the context.

    Args:
        command: that of a child.
        count: number of children. A GPU may have too little memory for all, or admit one only.
        longest: seconds after which a child that says nothing is ended.

    Raises:
        RuntimeError: no child can start, or somebody has stopped one.
    """
    children: list[Child] = []
    try:
        for _ in range(count):
            children.append(Child(command, longest))
        ready = [child for child in children if child.is_ready()]
        if not ready:
            raise RuntimeError(children[0].last_words())
        yield ready
    finally:
        for child in children:
            child.stop()


class Child:
    """A process that does one task after the other."""

    def __init__(self, command: Sequence[str], longest: float) -> None:
        self.command = command
        self.longest = longest
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

        It is ended when it says nothing for too long.
        """
        assert self.process.stdout is not None
        timer = threading.Timer(self.longest, self.process.kill)
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
            RuntimeError: somebody has stopped it, which says nothing about its task.
        """
        status = self.process.wait()
        if status in (-signal.SIGINT, -signal.SIGTERM):
            raise RuntimeError('a process was stopped')
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
    """Do a task on every row, and yield each row that is done; the children work side by side.

    Args:
        task: also what the progress bar shows, or a line per ten rows where there is no terminal.
        rows: may be empty.
        children: processes of one kind.

    Raises:
        RuntimeError: a process cannot start again, or somebody has stopped one.
    """
    if not rows:
        return
    idle = list(children)

    def run(row: Row) -> Row:
        child = idle.pop()
        try:
            return child.run(task, row)
        finally:
            idle.append(child)

    with ThreadPoolExecutor(len(children)) as threads:
        running = [threads.submit(run, row) for row in rows]
        bar = tqdm(total=len(rows), desc=task, disable=None)
        try:
            for done, future in enumerate(as_completed(running), 1):
                bar.update()
                if bar.disable and (done % 10 == 0 or done == len(rows)):  # no terminal
                    print(f'{task}: {done} of {len(rows)}', flush=True)
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
