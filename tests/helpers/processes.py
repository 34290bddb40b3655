"""Run scripts in this process, code in a new interpreter, and several processes."""

import importlib.util
import os
import socket
import subprocess
import sys
import textwrap
import time
from contextlib import suppress
from functools import cache

import psutil
from mmengine.registry import DefaultScope

from mmpola.messages import run_main
from tests.helpers import ROOT
from tests.helpers.training import forget_runs


def environment():
    """One thread per process and a free port, because tests run in parallel."""
    with socket.socket() as free:
        free.bind(('127.0.0.1', 0))
        port = free.getsockname()[1]
    return {**os.environ, 'OMP_NUM_THREADS': '1', 'PYTHONUNBUFFERED': '1', 'PORT': str(port)}


def start(module, *arguments):
    """Run tests/helpers/`module`.py in two gloo processes; return exit statuses and outputs."""
    common = {
        **environment(),
        'MASTER_ADDR': '127.0.0.1',
        'WORLD_SIZE': '2',
        'PYTHONPATH': str(ROOT),
    }
    common['MASTER_PORT'] = common['PORT']
    processes = [
        subprocess.Popen(
            [sys.executable, '-m', f'tests.helpers.{module}', *map(str, arguments)],
            env={**common, 'RANK': str(rank), 'LOCAL_RANK': str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    outputs = [process.communicate(timeout=600)[0] for process in processes]
    return [process.returncode for process in processes], outputs


def left_of(found):
    """Wait until `found()` is empty, for at most a minute, and return it."""
    deadline = time.monotonic() + 60
    while (left := found()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


def running(processes):
    """Return those of psutil's processes that exist and are not zombies."""
    found = []
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            if process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


PYTHON_SCRIPT = f'''#!/bin/sh
\'\'\'exec' "{sys.executable}" "$0" "$@"
' \'\'\'
'''
"""First lines of an executable script in Python; a `#!` line cannot hold a path with a space."""

FINDER = """
import sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        for package, code in {actions!r}.items():
            if f'{{name}}.'.startswith(f'{{package}}.'):
                exec(code)
sys.meta_path.insert(0, Finder())
"""


def interpret(code, *arguments, on_import=None, environment=None):
    """Run code in a new interpreter, in the repository's folder, and return the process.

    Args:
        code: may be indented.
        arguments: sys.argv[1:].
        on_import: package -> code that runs when the package, or a module in it, is imported.
        environment: all variables, by default those of this process.
    """
    code = FINDER.format(actions=on_import or {}) + textwrap.dedent(code)
    return subprocess.run(
        [sys.executable, '-c', code, *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=environment,
        timeout=200,
        check=False,
    )


def output_of(code, without=()):
    """Run code, which must succeed, as if packages were not installed; return what it prints."""
    missing = "raise ModuleNotFoundError(f'{name} is blocked', name=name)"
    result = interpret(code, on_import=dict.fromkeys(without, missing))
    assert result.returncode == 0, result.stderr
    return result.stdout


TOOLS = ROOT / 'tools'


@cache
def load_script(name):
    """Import tools/`name`.py without running its main()."""
    spec = importlib.util.spec_from_file_location(f'tools_{name}', TOOLS / f'{name}.py')
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def exit_status(main, name, *arguments):
    """Run a `main` with these arguments in this process and return its exit status."""
    before = sys.argv
    sys.argv = [name, *map(str, arguments)]
    try:
        run_main(main)
    except SystemExit as stop:
        return stop.code
    finally:
        sys.argv = before
    return 0


def run_script(name, *arguments):
    """Run tools/`name`.py with these arguments and return its exit status."""
    forget_runs()
    DefaultScope._instance_dict.clear()  # a new process has none
    return exit_status(load_script(name).main, f'{name}.py', *arguments)
