"""Do jobs in child processes, which may die, hang or print anything.

A job is a value of JSON. The parent calls `run_jobs`, and its child processes call `serve`. This
module needs only the standard library.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator, Sequence
from typing import Any

Row = dict[str, Any]

READY = 'ready'
"""What a child process prints first, once it can do jobs."""


def serve(prepare: Callable[[], Any], run: Callable[[Any], Row], jobs: str, longest: int) -> None:
    """In a child process: print the result of each job, until one fails.

    Nothing on the GPU works in a process after an illegal address: `run_jobs` starts another one.

    Args:
        prepare: raises an error if the process cannot do any job.
        run: returns the result of a job; it failed if that has a 'failure', or with an exception.
        jobs: their list in JSON, the last argument of the command.
        longest: seconds after which a job ends the process, even if it hangs in a driver's call.
    """
    sys.excepthook = lambda kind, error, _: print(
        f'{kind.__name__}: {error}'.splitlines()[0], file=sys.stderr
    )
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    results = os.fdopen(os.dup(1), 'w')
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what libraries print is no result
    signal.alarm(longest)
    prepare()
    print(READY, file=results, flush=True)
    for job in json.loads(jobs):
        signal.alarm(longest)
        result = run(job)
        print(json.dumps(result), file=results, flush=True)
        if result.get('failure'):
            break


def run_jobs(
    command: Sequence[str], jobs: Sequence[Any], count: int = 1
) -> Generator[tuple[Any, Row], None, None]:
    """Yield each job with its result, or with {'failure': how its child process ended}.

    The jobs after one that failed get a new process. A GPU may admit fewer processes than `count`:
    the jobs of one that cannot start wait until the others have ended.

    Args:
        command: starts a child process; the list of its jobs is appended.
        jobs: all of them.
        count: number of child processes that work side by side.

    Raises:
        RuntimeError: no process can start, or somebody has stopped one, which says nothing about
            its job.
    """
    parts = [jobs[first::count] for first in range(min(count, len(jobs)))]
    while parts:
        children: list[ChildProcess] = []
        try:
            for part in parts:
                children.append(ChildProcess(command, part))
            for child in children:
                yield from child.results()
        finally:
            for child in children:
                child.kill()
        if not any(child.is_ready for child in children):
            raise RuntimeError(children[-1].reason)
        parts = [child.jobs for child in children if child.jobs]


class ChildProcess:
    """A child process with jobs.

    Args:
        command: see `run_jobs`.
        jobs: of this process.

    Attributes:
        jobs: without a result yet.
        is_ready: whether it could do jobs.
        reason: how it ended.
    """

    def __init__(self, command: Sequence[str], jobs: Sequence[Any]) -> None:
        self.jobs = list(jobs)
        self.is_ready = False
        self.reason = ''
        self.errors = tempfile.TemporaryFile('w+', errors='replace')  # noqa: SIM115
        self.process = subprocess.Popen(
            [*command, json.dumps(jobs)],
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            env={**os.environ, 'OMP_NUM_THREADS': '1'},
        )

    def results(self) -> Generator[tuple[Any, Row], None, None]:
        """Yield each job with its result, until the process ends; see `run_jobs`."""
        assert self.process.stdout is not None
        self.is_ready = self.process.stdout.readline() == f'{READY}\n'
        result: Row = {}
        for line in self.process.stdout:
            result = json.loads(line)
            yield self.jobs.pop(0), result
        status = self.process.wait()
        if status in (-signal.SIGINT, -signal.SIGTERM):
            raise RuntimeError('a process was stopped')
        self.errors.seek(0)
        lines = [f'the process ended with status {status}', *self.errors.read().split('\n')]
        self.reason = [line for line in lines if line.strip()][-1]
        if self.is_ready and self.jobs and not result.get('failure'):
            yield self.jobs.pop(0), {'failure': self.reason}

    def kill(self) -> None:
        """End the process, if it has not ended."""
        self.process.kill()
        self.process.wait()
