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
        children: list[subprocess.Popen[str]] = []
        errors = [tempfile.TemporaryFile('w+', errors='replace') for _ in parts]  # noqa: SIM115
        has_started = False
        waiting = []
        try:
            for part, file in zip(parts, errors, strict=True):
                arguments = [*command, json.dumps(part)]
                environment = {**os.environ, 'OMP_NUM_THREADS': '1'}
                children.append(
                    subprocess.Popen(
                        arguments, stdout=subprocess.PIPE, stderr=file, text=True, env=environment
                    )
                )
            for part, child, file in zip(parts, children, errors, strict=True):
                done = 0
                result: Row = {}
                assert child.stdout is not None
                is_ready = child.stdout.readline() == f'{READY}\n'
                for line in child.stdout:
                    result = json.loads(line)
                    yield part[done], result
                    done += 1
                status = child.wait()
                if status in (-signal.SIGINT, -signal.SIGTERM):
                    raise RuntimeError('a process was stopped')
                file.seek(0)
                lines = [f'the process ended with status {status}', *file.read().split('\n')]
                reason = [line for line in lines if line.strip()][-1]
                if is_ready and done < len(part) and not result.get('failure'):
                    yield part[done], {'failure': reason}
                    done += 1
                if done < len(part):
                    waiting.append(part[done:])
                has_started = has_started or is_ready
        finally:
            for child in children:
                child.kill()
                child.wait()
        if not has_started:
            raise RuntimeError(reason)
        parts = waiting
