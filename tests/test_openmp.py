"""Variables of OpenMP: set unless the user has set them, for the cores that this process may
use.
"""

import os

import pytest

from mmpola import script
from tests.helpers.processes import interpret

NAMES = ('OMP_NUM_THREADS', 'OMP_WAIT_POLICY', 'GOMP_SPINCOUNT')


@pytest.fixture
def limits(monkeypatch, tmp_path):
    """Eight cores, and the path of the quota's file, which does not exist."""
    monkeypatch.setattr(os, 'sched_getaffinity', lambda process: set(range(8)), raising=False)
    monkeypatch.setattr(script, 'CPU_QUOTA', tmp_path / 'cpu.max')
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
    assert script.usable_cores() == cores


def test_processes_of_one_machine_share_its_cores_and_the_users_variables_stay(limits, monkeypatch):
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv('LOCAL_WORLD_SIZE', '3')
    monkeypatch.setenv('OMP_WAIT_POLICY', 'ACTIVE')
    script.set_environment()
    assert [os.environ.pop(name) for name in NAMES] == ['2', 'ACTIVE', '0']


@pytest.mark.slow
def test_a_script_sets_them_before_torch_is_imported():
    """Every script imports `mmpola.script`, which does so, first: see test_script.py."""
    found = interpret(
        "import runpy; runpy.run_path('tools/train.py')",
        on_import={'torch': f'import os; print(*map(os.environ.get, {NAMES})); sys.exit(0)'},
        environment={
            key: value for key, value in os.environ.items() if not key.startswith(('OMP_', 'GOMP_'))
        },
    )
    assert found.stdout.split()[1:] == ['PASSIVE', '0'], found.stderr
    assert int(found.stdout.split()[0]) == script.usable_cores()
