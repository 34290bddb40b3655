"""Every script sets the variables of OpenMP first."""

import ast
import subprocess

import pytest

from tests.helpers import ROOT
from tests.helpers.processes import interpret, output_of

IMPORTS = (ast.Import, ast.ImportFrom)
SCRIPTS = [
    path
    for path in sorted((ROOT / 'tools').rglob('*.py'))
    if "__name__ == '__main__'" in path.read_text() and path.name != 'release_notes.py'
]
"""All but the one that runs without any package."""


def test_every_script_imports_it_before_anything_else():
    for script in SCRIPTS:
        text = script.read_text()
        assert 'run_main(main)' in text, script
        imports = [ast.unparse(node) for node in ast.parse(text).body if isinstance(node, IMPORTS)]
        if imports[0] == 'from __future__ import annotations':
            del imports[0]
        assert imports[0] == 'from mmpola.command import prepare_script', script
        assert text.index('\nprepare_script()') < text.index('\nimport '), script


@pytest.mark.slow
@pytest.mark.parametrize(
    ('code', 'package', 'extra'),
    [
        ("sys.argv = ['mmpola', 'train']; mmpola.__main__.main()", 'mmengine', 'openmmlab'),
        ("runpy.run_path('tools/export.py')", 'mmengine', 'openmmlab'),
        ('mmpola.command.prepare_script(); import gradio', 'gradio', 'explore'),
    ],
)
def test_a_missing_extra_is_one_line(code, package, extra):
    missing = "raise ModuleNotFoundError(f'No module named {name!r}', name=name)"
    found = interpret(f'import runpy, sys, mmpola.__main__; {code}', on_import={package: missing})
    assert found.returncode == 1
    assert found.stderr == (f"error: {package} is not installed: pip install -e '.[{extra}]'\n")


@pytest.mark.slow
def test_the_help_of_the_page_needs_no_gradio():
    code = "import runpy, sys; sys.argv = ['explore.py', '-h']; run = runpy.run_path"
    text = output_of(f"{code}; run('tools/explore.py', run_name='__main__')", without=['gradio'])
    assert '--port' in text


def test_the_help_of_the_tests_installs_nothing(root):
    command = ['bash', root / 'tools' / 'run_tests.sh', '-h']
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    assert 'bash tools/run_tests.sh --fast' in found.stdout
    assert '[install]' not in found.stdout + found.stderr


@pytest.mark.slow
def test_other_errors_keep_their_traceback():
    found = interpret('import mmpola.command as c; c.prepare_script(); import none_such')
    assert found.returncode == 1
    assert 'Traceback' in found.stderr
