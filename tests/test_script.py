"""What holds from a script's first import on: Ctrl-C, any locale, no home directory."""

import ast
import os
import subprocess
import sys

import pytest

from tests.helpers.interpreter import interpret
from tests.helpers.small_training import ROOT

IMPORTS = (ast.Import, ast.ImportFrom)
SCRIPTS = sorted(path for path in (ROOT / 'tools').rglob('*.py'))


def test_every_script_imports_it_before_anything_else():
    for script in SCRIPTS:
        text = script.read_text()
        assert 'run_main(main)' in text, script
        imports = [ast.unparse(node) for node in ast.parse(text).body if isinstance(node, IMPORTS)]
        assert imports[0] == 'from __future__ import annotations', script
        assert imports[1] == 'import mmpola.script', script


@pytest.mark.slow
@pytest.mark.parametrize('package', ['argparse', 'mmpola.engine.config'])
def test_ctrl_c_during_the_imports_is_one_line(package):
    code = """
    import runpy, signal
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv[0] = 'tools/train.py'
    runpy.run_path('tools/train.py', run_name='__main__')
    """
    found = interpret(
        code,
        '--help',
        on_import={package: 'import os, signal; os.kill(os.getpid(), signal.SIGINT)'},
    )
    assert (found.returncode, found.stdout, found.stderr) == (130, '', 'interrupted\n')


SPAWNING = """
import mmpola.script
import gc, multiprocessing
def show():
    print(gc.isenabled(), flush=True)
if __name__ == '__main__':
    show()
    worker = multiprocessing.get_context('spawn').Process(target=show)
    worker.start()
    worker.join()
"""


@pytest.mark.slow
def test_spawned_workers_collect_garbage(tmp_path):
    path = tmp_path / 'script.py'
    path.write_text(SPAWNING)
    environment = {**os.environ, 'PYTHONPATH': str(ROOT)}
    found = subprocess.run([sys.executable, path], capture_output=True, text=True, env=environment)
    assert (found.stdout, found.stderr) == ('False\nTrue\n', '')


@pytest.mark.slow
def test_help_in_a_locale_without_unicode():
    ascii_only = {'LC_ALL': 'C', 'PYTHONUTF8': '0', 'PYTHONCOERCECLOCALE': '0'}
    command = [sys.executable, 'tools/predict.py', '--help']
    found = subprocess.run(command, capture_output=True, cwd=ROOT, env={**os.environ, **ascii_only})
    assert (found.returncode, found.stderr) == (0, b'')
    assert found.stdout.startswith(b'usage: ')


@pytest.mark.slow
def test_without_a_home_directory():
    code = """
    import pathlib, runpy
    def home(): raise RuntimeError('Could not determine home directory.')
    pathlib.Path.home = home
    runpy.run_path('tools/train.py', run_name='__main__')
    """
    found = interpret(code)
    assert found.returncode == 1
    assert (
        found.stderr
        == 'error: HOME: expected a folder, got none, and this user has no home directory; set HOME\n'
    )
