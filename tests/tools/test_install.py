"""The installer says in one line what is missing. Nothing is installed here."""

import os
import shutil
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

COMMANDS = ('bash', 'dirname', 'cat', 'sha256sum', 'awk', 'df', 'python3', 'env', 'grep')


@pytest.fixture
def install(root, tmp_path):
    """Run a copy of the installer with only these commands in PATH; `stand_ins` replaces some by
    scripts.
    """
    clone, commands = tmp_path / 'clone', tmp_path / 'bin'
    (clone / 'tools').mkdir(parents=True)
    commands.mkdir()
    shutil.copy(root / 'tools' / 'install.sh', clone / 'tools')
    for name in (
        'requirements.txt',
        'requirements-dev.txt',
        'requirements-docs.txt',
        'pyproject.toml',
        'setup.py',
    ):
        shutil.copy(root / name, clone)
    for name in COMMANDS:
        # python3 in PATH may be a version manager's script, which needs more commands than these
        (commands / name).symlink_to(sys.executable if name == 'python3' else shutil.which(name))

    def run(*arguments, environment=None, stand_ins=None):
        for name, script in (stand_ins or {}).items():
            (commands / name).unlink(missing_ok=True)
            (commands / name).write_text(f'#!/bin/bash\n{script}\n')
            (commands / name).chmod(0o755)
        clean = {key: value for key, value in os.environ.items() if key not in ('CXX', 'PYTHON')}
        result = subprocess.run(
            ['bash', str(clone / 'tools' / 'install.sh'), *arguments],
            env={**clean, 'PATH': str(commands), **(environment or {})},
            capture_output=True,
            text=True,
            check=False,
        )
        assert result.returncode == 1
        assert not (clone / '.venv').exists()
        return result.stderr

    return run


DF = 'echo header; echo "/dev/x 100 90 3145728 97% /"'  # KiB: 3 GB


@pytest.mark.parametrize(
    ('arguments', 'options', 'problem', 'remedy'),
    [
        ([], {}, 'no C++ compiler (g++); ', 'apt-get install g++'),
        (
            [],
            {'environment': {'PYTHON': 'python2'}},
            'no Python 3.10 or newer found (tried python2); ',
            'PYTHON=/path',
        ),
        (
            [],
            {'stand_ins': {'g++': 'exit 0', 'df': DF}},
            'only 3 GB free here, 12 GB are needed ',
            'free some space',
        ),
        (
            ['--fast'],
            {},
            "unknown argument '--fast'; ",
            'usage: bash tools/install.sh [--dev] [--forks]',
        ),
    ],
    ids=['compiler', 'python', 'disk', 'argument'],
)
def test_what_is_missing_is_named_with_its_remedy(arguments, options, problem, remedy, install):
    (line,) = install(*arguments, **options).splitlines()
    assert line.startswith(f'[install] error: {problem}')
    assert remedy in line
