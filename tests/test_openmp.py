"""Variables of OpenMP: set unless the user has set them, with the cores that this process may use."""

import os
import subprocess
import sys

import pytest

from mmpola import script
from tests.helpers.small_training import ROOT


@pytest.fixture
def limits(monkeypatch, tmp_path):
    """Eight cores, and the path of the quota's file, which does not exist."""
    monkeypatch.setattr(os, 'sched_getaffinity', lambda process: set(range(8)), raising=False)
    monkeypatch.setattr(script, 'CPU_QUOTA', tmp_path / 'cpu.max')
    return tmp_path / 'cpu.max'


@pytest.mark.parametrize(
    ('quota', 'cores'), [(None, 8), ('max 100000', 8), ('300000 100000', 3), ('50000 100000', 1), ('1600000 100000', 8)]
)
def test_cores_are_limited_by_the_containers_quota(quota, cores, limits):
    if quota:
        limits.write_text(quota)
    assert script.usable_cores() == cores


def test_processes_of_one_machine_share_its_cores_and_the_users_variables_stay(limits, monkeypatch):
    for name in ('OMP_NUM_THREADS', 'OMP_WAIT_POLICY', 'GOMP_SPINCOUNT'):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv('LOCAL_WORLD_SIZE', '3')
    monkeypatch.setenv('OMP_WAIT_POLICY', 'ACTIVE')
    script.set_environment()
    names = ('OMP_NUM_THREADS', 'OMP_WAIT_POLICY', 'GOMP_SPINCOUNT')
    assert [os.environ.pop(name) for name in names] == ['2', 'ACTIVE', '0']


@pytest.mark.slow
def test_a_script_sets_them_before_torch_is_imported():
    """Every script imports `mmpola.script`, which does so, first: see test_script.py."""
    code = """
import importlib.util, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == 'torch':
            import os
            print(os.environ['OMP_WAIT_POLICY'], os.environ['GOMP_SPINCOUNT'], os.environ['OMP_NUM_THREADS'])
            sys.exit(0)
sys.meta_path.insert(0, Finder())
spec = importlib.util.spec_from_file_location('tool', 'tools/train.py')
spec.loader.exec_module(importlib.util.module_from_spec(spec))
"""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(('OMP_', 'GOMP_'))}
    found = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, cwd=ROOT, env=environment)
    assert found.stdout.split()[:2] == ['PASSIVE', '0'], found.stderr
    assert int(found.stdout.split()[2]) == script.usable_cores()
