"""`mmpola gpu`: the check in child processes, which may fail in every way, and its record."""

import json
import subprocess
import sys
from dataclasses import asdict

import pytest
import torch

from mmpola import kernels
from mmpola.ops import kernel_record
from mmpola.ops import triton as triton_backend
from mmpola.ops.kernel_check import all_cases
from tests.helpers.processes import environment

CASES = all_cases()
DEVICE = torch.device('cpu')

CHILD = """
import argparse, json, os, signal, sys, time

parser = argparse.ArgumentParser()
parser.add_argument('--device')
parser.add_argument('--first', type=int)
parser.add_argument('--tiny', action='store_true')
args = parser.parse_args()
with open({log!r}, 'a') as log:
    log.write(f'{{args.first}}\\n')
for number, case in enumerate({cases!r}):
    if number < args.first:
        continue
    row = {{**case, 'failure': '', 'speedup': {{'784': 2.0, '16700': 3.0}}}}
    print(json.dumps({{'begun': number}}), flush=True)
{fault}
    print(json.dumps(row), flush=True)
"""


@pytest.fixture
def child(monkeypatch, tmp_path):
    """A function that replaces the child process by one with a fault; returns the file in which
    each process writes its first case.
    """

    def replace(fault=''):
        log = tmp_path / 'starts'
        script = tmp_path / 'child.py'
        script.write_text(
            CHILD.format(log=str(log), fault=fault, cases=[asdict(case) for case in CASES])
        )
        monkeypatch.setattr(kernels, 'COMMAND', (sys.executable, str(script)))
        return log

    return replace


@pytest.fixture(autouse=True)
def _gpu(monkeypatch, tmp_path):
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
    monkeypatch.setattr(torch.cuda, 'get_device_name', lambda device: 'Some GPU')
    kernel_record.rows_by_case.cache_clear()


def failures(rows):
    return {number: row['failure'] for number, row in enumerate(rows) if row['failure']}


def test_each_case_is_a_row(child):
    starts = child()
    rows = kernels.run_check(DEVICE)
    assert [(row['operator'], row['head_dim'], row['dtype']) for row in rows] == [
        (case.operator, case.head_dim, case.dtype) for case in CASES
    ]
    assert not failures(rows)
    assert starts.read_text() == '0\n'


@pytest.mark.parametrize(
    ('fault', 'failure'),
    [
        ('os.kill(os.getpid(), signal.SIGKILL)', 'the process ended with status -9'),
        ('os.abort()', 'the process ended with status -6'),
        (
            "sys.exit('CUDA error: an illegal memory access')",
            'CUDA error: an illegal memory access',
        ),
        ("raise ValueError('no such instruction')", 'ValueError: no such instruction'),
    ],
    ids=['killed', 'aborted', 'illegal', 'raised'],
)
def test_a_process_that_ends_is_a_row_and_another_goes_on(fault, failure, child):
    starts = child(f'    if number in (3, 4):\n        {fault}')
    rows = kernels.run_check(DEVICE)
    assert len(rows) == len(CASES)
    assert failures(rows) == {3: failure, 4: failure}
    assert starts.read_text() == '0\n4\n5\n'


def test_other_output_is_no_row(child):
    child("    print('a warning'); print(7); print('{}'); print(json.dumps({'failure': 1}))")
    rows = kernels.run_check(DEVICE)
    assert len(rows) == len(CASES)
    assert not failures(rows)


def test_a_process_that_hangs_is_ended(child, monkeypatch):
    monkeypatch.setattr(kernels, 'LONGEST_CASE', 5.0)
    child('    if number == 57:\n        time.sleep(600)')
    rows = kernels.run_check(DEVICE)
    assert failures(rows) == {57: 'the process ended with status -9'}


def test_a_process_that_cannot_start_ends_the_check(child, tmp_path):
    child()
    (tmp_path / 'child.py').write_text("raise ImportError('no torch')")
    with pytest.raises(RuntimeError, match='ImportError: no torch'):
        kernels.run_check(DEVICE)


def test_the_record_is_read_again_until_something_changes(child, monkeypatch):
    starts = child()
    rows = kernels.check_gpu(DEVICE)
    assert kernels.check_gpu(DEVICE) == rows
    assert starts.read_text() == '0\n'
    kernels.check_gpu(DEVICE, again=True)
    assert starts.read_text() == '0\n0\n'
    monkeypatch.setattr(kernel_record, 'kernels_hash', lambda: 'other kernels')
    kernels.check_gpu(DEVICE)
    assert starts.read_text() == '0\n0\n0\n'


def test_processes_that_start_together_run_one_check(child, tmp_path):
    starts = child('    time.sleep(0.02)')
    program = (
        'import sys, torch\n'
        'from mmpola import kernels\n'
        "torch.cuda.get_device_name = lambda device: 'Some GPU'\n"
        f'kernels.COMMAND = (sys.executable, {str(tmp_path / "child.py")!r})\n'
        "print(len(kernels.check_gpu(torch.device('cpu'))))\n"
    )
    processes = [
        subprocess.Popen(
            [sys.executable, '-c', program],
            stdout=subprocess.PIPE,
            text=True,
            env=environment() | {'XDG_CACHE_HOME': str(tmp_path / 'cache')},
        )
        for _ in range(2)
    ]
    outputs = [process.communicate()[0] for process in processes]
    assert all(output.splitlines()[-1] == str(len(CASES)) for output in outputs)
    assert starts.read_text() == '0\n'


def test_ensure_checked_says_what_went_wrong_and_goes_on(child, monkeypatch, capsys, tmp_path):
    child()
    (tmp_path / 'child.py').write_text("raise ImportError('no torch')")
    monkeypatch.setattr(triton_backend, 'missing', list)
    monkeypatch.setattr(torch.cuda, 'device_count', lambda: 2)
    kernels.ensure_checked()
    assert (
        'the kernels could not be checked, attention runs in plain PyTorch: ImportError: no torch'
        in capsys.readouterr().out
    )
    starts = child()
    kernels.ensure_checked()
    kernels.ensure_checked()
    assert starts.read_text() == '0\n'


def test_the_table_shows_speed_and_failures(child):
    child("    if number == 1:\n        row['failure'] = 'two runs differ in the output'")
    lines = kernels.table(kernels.run_check(DEVICE)).splitlines()
    assert lines[0].endswith('float16          bfloat16           float32   float32 in tf32')
    row = ' '.join(lines[1].split())
    assert row == 'power 16 2.0 / 3.0 failed 2.0 / 3.0 2.0 / 3.0'
    assert lines[-1] == 'power, D=16, bfloat16: two runs differ in the output'


def test_without_a_gpu_there_is_one_line(run_tool):
    found = run_tool('gpu.py', check=False)
    assert found.returncode == 2
    assert found.stdout.startswith('error: no GPU to check: no CUDA device')
    assert found.stdout.count('\n') == 1


@pytest.mark.slow
def test_the_check_itself_in_the_interpreter(monkeypatch):
    """The last cases, a kernel without tensor cores, in a real child process."""
    if not triton_backend.HAS_TRITON:
        pytest.skip('triton is not installed')
    monkeypatch.setenv('TRITON_INTERPRET', '1')
    rows = []
    begun, reason = kernels.run_child(DEVICE, len(CASES) - 2, True, rows.append)
    assert begun == len(CASES) - 1, reason
    assert [row['dtype'] for row in rows] == ['bfloat16', 'float32']
    for row in rows:
        assert row['failure'] == ''
        assert row['speedup'].keys() == {'784', '16700'}
    json.dumps(rows)
