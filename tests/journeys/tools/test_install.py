"""The installer says in one line what is missing. Nothing is installed here."""

import os
import shutil
import subprocess

import pytest

from tests.helpers.processes import PYTHON_SCRIPT

pytestmark = pytest.mark.slow

COMMANDS = ('bash', 'dirname', 'cat', 'sha256sum')
FILES = ('requirements.txt', 'requirements-dev.txt', 'pyproject.toml', 'setup.py')


@pytest.fixture
def install(root, tmp_path):
    """A function that runs a copy of the installer, in a folder with a space, with few commands.

    The first argument is a script that replaces Python.
    """
    clone = tmp_path / 'a clone'
    commands = tmp_path / 'bin'
    (clone / 'tools').mkdir(parents=True)
    commands.mkdir()
    shutil.copy(root / 'tools' / 'install.sh', clone / 'tools')
    for name in FILES:
        shutil.copy(root / name, clone)
    for name in COMMANDS:
        (commands / name).symlink_to(shutil.which(name))

    def run(python, *arguments, given=None):
        file = given or commands / 'python3'
        file.parent.mkdir(exist_ok=True)
        file.write_text(f'{PYTHON_SCRIPT}{python}\n')
        file.chmod(0o755)
        clean = {key: value for key, value in os.environ.items() if key != 'PYTHON'}
        if given:
            clean['PYTHON'] = str(given)
        return subprocess.run(
            ['bash', str(clone / 'tools' / 'install.sh'), *arguments],
            env={**clean, 'PATH': str(commands)},
            capture_output=True,
            text=True,
            check=False,
        )

    return run


def test_a_python_is_needed(install):
    result = install('raise SystemExit(1)')
    assert result.returncode == 1
    assert result.stderr.startswith('[install] error: no Python 3.10 or newer found; name one: ')


def test_the_named_python_may_have_a_path_with_spaces(install, tmp_path):
    result = install(
        'raise SystemExit("venv" in __import__("sys").argv)', given=tmp_path / 'a b/py'
    )
    assert result.stderr.endswith(
        "[install] error: Python's venv module failed; Debian and Ubuntu: apt-get install "
        'python3-venv\n'
    )


def test_an_unknown_argument_is_refused(install):
    result = install('', '--fast')
    assert result.returncode == 1
    assert result.stderr == "[install] error: expected --dev or nothing, got '--fast'\n"


RECORDING_VENV = """
import pathlib, sys
if 'venv' in sys.argv:
    python = pathlib.Path(sys.argv[-1], 'bin', 'python')
    python.parent.mkdir(parents=True)
    python.write_text(START + VENV)
    python.chmod(0o755)
"""
"""A Python whose environments write their arguments to `calls`; with a file `broken` pip fails."""

VENV = """
import os, pathlib, sys
with open('calls', 'a') as calls:
    print(*sys.argv[1:], file=calls)
sys.exit(pathlib.Path('broken').exists() and 'install' in sys.argv)
"""


def test_it_continues_after_an_interruption_and_does_nothing_twice(install, tmp_path):
    clone = tmp_path / 'a clone'
    python = f'START = {PYTHON_SCRIPT!r}\nVENV = {VENV!r}\n{RECORDING_VENV}'
    (clone / 'broken').touch()
    result = install(python)
    assert result.returncode == 1
    assert 'run the same command again' in result.stderr

    (clone / 'broken').unlink()
    result = install(python)
    assert result.returncode == 0
    assert result.stdout.endswith('source .venv/bin/activate\n')
    calls = (clone / 'calls').read_text().splitlines()
    assert calls[-4].endswith('install --disable-pip-version-check -r requirements.txt')
    assert calls[-3].endswith('install --disable-pip-version-check --no-deps --editable .')
    assert calls[-2:] == ['-m mmpola operators', '-m mmpola --openmmlab']

    result = install(python)
    assert result.stdout == '[install] up to date (.venv)\n'
    assert (clone / 'calls').read_text().splitlines() == calls
