"""What mmpola changes in a process: by being imported, and in its scripts."""

import json
import os
import re
import subprocess
import sys

import psutil
import pytest

from mmpola import command
from mmpola.zoo import NAMED
from tests.helpers import ROOT
from tests.helpers.processes import interpret, left_of, running

VARIABLES = ('OMP_NUM_THREADS', 'OMP_WAIT_POLICY', 'GOMP_SPINCOUNT', 'LOCAL_RANK')


def without_variables():
    """Return the environment without what scripts set."""
    return {name: value for name, value in os.environ.items() if name not in VARIABLES}


@pytest.mark.slow
def test_the_docs_say_what_an_import_changes(root):
    """Every import of the package is tried; nothing changes but what the docs list."""
    done = subprocess.run(
        [sys.executable, '-m', 'tests.helpers.process_state'],
        env={**without_variables(), 'PYTHONPATH': str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found = json.loads(done.stdout)
    scripts = found.pop('scripts')
    assert sorted(scripts) == ['excepthook', 'variables', 'warnings']
    names = [variable.partition('=')[0] for variable in scripts['variables']]
    assert names == list(VARIABLES)

    operators = [module for module, changed in found.items() if list(changed) == ['operators']]
    for module in operators:
        assert module.startswith(('mmpola.layers.', 'mmpola.ops.'))
        for name in found.pop(module)['operators']:
            assert name.startswith('mmpola::')
    yacs = "(<class 'mmpola.checkpoint.safe_load.yacs.config.CfgNode'>, 'yacs.config.CfgNode')"
    assert found == {
        'mmpola': {'meta_path': ['MmcvOperators']},
        'mmpola.registry': {'scopes': ['mmpola']},
        'mmpola.timm': {'safe globals': [yacs], 'timm': sorted(NAMED)},
        'mmpola.openmmlab.config.read': {'packages': ['mmseg=mmseg', 'mmseg=mmsegmentation']},
    }
    page = (root / 'docs' / 'install.md').read_text()
    section = page.partition('## What mmpola changes in a process')[2].partition('\n## ')[0]
    for module in (*found, 'mmpola.layers', 'mmpola.ops'):
        assert re.search(rf'`(import )?{module}`', section), module
    for name in VARIABLES:
        assert f'`{name}`' in section


@pytest.fixture
def limits(monkeypatch, tmp_path):
    """Eight cores, and the path of the quota's file, which does not exist."""
    monkeypatch.setattr(os, 'sched_getaffinity', lambda process: set(range(8)), raising=False)
    monkeypatch.setattr(command, 'CPU_QUOTA', tmp_path / 'cpu.max')
    return tmp_path / 'cpu.max'


@pytest.mark.parametrize(
    ('quota', 'cores'),
    [
        (None, 8),
        ('max 100000', 8),
        ('300000 100000', 3),
        ('50000 100000', 1),
        ('1600000 100000', 8),
    ],
)
def test_cores_are_limited_by_the_containers_quota(quota, cores, limits):
    if quota:
        limits.write_text(quota)
    assert command.usable_cores() == cores


def test_processes_of_one_machine_share_its_cores_and_the_users_variables_stay(limits, monkeypatch):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv('LOCAL_WORLD_SIZE', '3')
    monkeypatch.setenv('OMP_WAIT_POLICY', 'ACTIVE')
    command.set_variables()
    assert [os.environ.pop(name) for name in VARIABLES] == ['2', 'ACTIVE', '0', '0']
    monkeypatch.setenv('OMPI_COMM_WORLD_LOCAL_RANK', '3')
    command.set_variables()
    assert os.environ.pop('LOCAL_RANK') == '3'


@pytest.mark.slow
def test_a_script_sets_them_before_torch_is_imported():
    """Every script imports `prepare_script`, which does so, first: see test_script.py."""
    found = interpret(
        "import runpy; runpy.run_path('tools/train.py')",
        on_import={'torch': f'import os; print(*map(os.environ.get, {VARIABLES})); sys.exit(0)'},
        environment=without_variables(),
    )
    assert found.stdout.split()[1:] == ['PASSIVE', '0', '0'], found.stderr
    assert int(found.stdout.split()[0]) == command.usable_cores()


CODE = """
import os, time
from mmpola.openmmlab import processes
processes.end_children_with_this_process()
child = os.fork()
if child == 0:
    time.sleep(1000)
print(child, flush=True)
time.sleep(1000)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != 'linux', reason='looks for processes in /proc')
def test_a_worker_ends_when_its_parent_is_killed():
    parent = subprocess.Popen(
        [sys.executable, '-c', CODE], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    try:
        worker = psutil.Process(int(parent.stdout.readline()))
        assert running([worker])
        parent.kill()
        assert not left_of(lambda: running([worker]))
    finally:
        parent.kill()
        parent.wait()
