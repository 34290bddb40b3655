"""Run code in a new interpreter, where the import of some packages fails or does something else."""

import subprocess
import sys
import textwrap

from tests.helpers.small_training import ROOT

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
    """Run code in the repository's folder and return the process with its status, output and errors.

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
    """Run code, which must succeed, where these packages are not installed, and return what it prints."""
    missing = "raise ModuleNotFoundError(f'{name} is blocked', name=name)"
    result = interpret(code, on_import=dict.fromkeys(without, missing))
    assert result.returncode == 0, result.stderr
    return result.stdout
