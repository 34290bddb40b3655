"""`mmpola gpu`: the check in child processes, which may fail in every way, and its record."""

import os
import subprocess
import sys
import textwrap
from types import SimpleNamespace

import pytest
import torch

from mmpola.kernels import gate, record
from mmpola.kernels.check import all_cases
from mmpola.kernels.record import Case
from mmpola.ops import triton as triton_backend
from tests.helpers import ROOT
from tests.helpers.processes import environment

CASES = all_cases()
DEVICE = torch.device('cpu')
GIGABYTE = 2**30
CACHES = os.environ.get('XDG_CACHE_HOME', '')
RIGHT = {'failure': '', 'speedup': {'784': 2.0, '16700': 3.0}}

CHILD = """
import json, os, signal, sys, time

log = {log!r}

def note(*words):
    with open(log, 'a') as file:
        print(*words, file=file)

device, task, cases = sys.argv[1:]
note('start', task)
print('ready', flush=True)
for number, case in enumerate(json.loads(cases)):
    note(task, *case)
    result = {{'failure': ''}}
    if task == 'time':
        result = {{'speedup': {{'784': 2.0, '16700': 3.0}}}}
{fault}
    print(json.dumps(result), flush=True)
    if result.get('failure'):
        break
"""


@pytest.fixture
def child(monkeypatch, tmp_path):
    """A function that replaces the child process by one with a fault; returns a function that reads
    the log of the processes: 'start TASK', and each task with its case.
    """
    log = tmp_path / 'log'

    def replace(fault='', number=1):
        script = tmp_path / 'child.py'
        script.write_text(CHILD.format(log=str(log), fault=textwrap.indent(fault, '    ')))
        monkeypatch.setattr(gate, 'COMMAND', (sys.executable, str(script)))
        monkeypatch.setattr(gate, 'number_of_children', lambda device: number)
        log.write_text('')
        return lambda: log.read_text().splitlines()

    return replace


@pytest.fixture(autouse=True)
def _gpu(monkeypatch, tmp_path):
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
    monkeypatch.setattr(torch.cuda, 'get_device_name', lambda device: 'Some GPU')
    record.results_on.cache_clear()


def is_case(number):
    """Python that is true in the child for a case of CASES."""
    return f'tuple(case) == {tuple(CASES[number])!r}'


def failures(results):
    return {case: result['failure'] for case, result in results.items() if result['failure']}


def test_children_check_side_by_side_and_then_one_times(child):
    log = child(
        'deadline = time.monotonic() + 60\n'
        "while task == 'check' and open(log).read().count('start check') < 4:\n"
        '    if time.monotonic() > deadline:\n'
        "        sys.exit('alone')\n"
        '    time.sleep(0.01)',
        number=4,
    )
    results = gate.check_gpu(DEVICE, CASES[:8])
    assert results == {str(case): RIGHT for case in CASES[:8]}
    assert record.read_record(DEVICE) == results
    assert log().count('start check') == 4
    timed = {f'time {" ".join(map(str, case))}' for case in CASES[:8]}
    assert log()[-9] == 'start time'
    assert set(log()[-8:]) == timed


@pytest.mark.parametrize('number', [1, 3])
def test_what_is_wrong_or_ends_its_process_is_recorded_and_not_timed(number, child):
    log = child(
        f"if {is_case(1)}:\n    result['failure'] = 'inaccurate'\n"
        f"if {is_case(3)}:\n    sys.exit('CUDA error: an illegal address')\n"
        f"if {is_case(5)} and task == 'time':\n    os.abort()",
        number,
    )
    results = gate.check_gpu(DEVICE, CASES[:8])
    assert results.keys() == {str(case) for case in CASES[:8]}
    assert failures(results) == {
        str(CASES[1]): 'inaccurate',
        str(CASES[3]): 'CUDA error: an illegal address',
        str(CASES[5]): 'the process ended with status -6',
    }
    assert record.read_record(DEVICE) == results
    assert sum(line.startswith('time') for line in log()) == 6


def test_an_interrupted_check_keeps_what_it_has_found(child):
    child(f"if {is_case(5)} and task == 'time':\n    os.kill(os.getpid(), signal.SIGTERM)")
    with pytest.raises(RuntimeError, match='a process was stopped'):
        gate.check_gpu(DEVICE, CASES[:8])
    assert list(record.read_record(DEVICE)) == [str(case) for case in CASES[:5]]
    log = child()
    results = gate.check_gpu(DEVICE, CASES[:8])
    assert list(results) == [str(case) for case in CASES[:8]]
    assert sum(line.startswith('check') for line in log()) == 3


def test_the_record_is_read_again_until_something_changes(child, monkeypatch):
    log = child()
    results = gate.check_gpu(DEVICE, CASES)
    assert gate.check_gpu(DEVICE, CASES) == results
    assert log().count('start check') == 1
    gate.check_gpu(DEVICE, CASES, again=True)
    assert log().count('start check') == 2
    monkeypatch.setattr(record, 'kernels_hash', lambda: 'other kernels')
    gate.check_gpu(DEVICE, CASES)
    assert log().count('start check') == 3


def test_a_complete_record_needs_no_folder_that_can_be_written(child, monkeypatch):
    def refuse(path):
        raise PermissionError(f'{path}: the folder cannot be written')

    child()
    results = gate.check_gpu(DEVICE, CASES)
    monkeypatch.setattr(gate, 'FileLock', refuse)
    assert gate.check_gpu(DEVICE, CASES) == results
    with pytest.raises(PermissionError):
        gate.check_gpu(DEVICE, CASES, again=True)


def test_an_old_record_stays_until_results_replace_it(child):
    child()
    gate.check_gpu(DEVICE, CASES)
    child(
        "if task == 'time':\n    result = {'speedup': {'784': 5.0}}\n"
        f"if {is_case(2)} and task == 'time':\n    os.kill(os.getpid(), signal.SIGTERM)"
    )
    with pytest.raises(RuntimeError, match='a process was stopped'):
        gate.check_gpu(DEVICE, CASES, again=True)
    speedups = [result['speedup']['784'] for result in record.read_record(DEVICE).values()]
    assert speedups == [5.0, 5.0] + [2.0] * (len(CASES) - 2)


def test_processes_that_start_together_run_one_check(child, tmp_path):
    log = child('time.sleep(0.02)')
    program = (
        'import os, sys, torch\n'
        'from mmpola.kernels import gate\n'
        # After the imports: YAPF's, of MMEngine, fails while another process fills the cache.
        f'os.environ["XDG_CACHE_HOME"] = {str(tmp_path / "cache")!r}\n'
        "torch.cuda.get_device_name = lambda device: 'Some GPU'\n"
        f'gate.COMMAND = (sys.executable, {str(tmp_path / "child.py")!r})\n'
        'gate.number_of_children = lambda device: 1\n'
        "print(len(gate.check_gpu(torch.device('cpu'), gate.all_cases())))\n"
    )
    processes = [
        subprocess.Popen(
            [sys.executable, '-c', program],
            stdout=subprocess.PIPE,
            text=True,
            env=environment() | {'XDG_CACHE_HOME': CACHES},
        )
        for _ in range(2)
    ]
    outputs = [process.communicate()[0] for process in processes]
    assert all(output.splitlines()[-1] == str(len(CASES)) for output in outputs)
    assert log().count('start check') == 1


def test_ensure_checked_says_what_went_wrong_and_goes_on(child, monkeypatch, capsys, tmp_path):
    child()
    (tmp_path / 'child.py').write_text("raise ImportError('no torch')")
    monkeypatch.setattr(triton_backend, 'missing', list)
    monkeypatch.setattr(torch.cuda, 'device_count', lambda: 2)
    problem = 'the kernels could not be checked, attention runs in plain PyTorch: '
    gate.ensure_checked('float16')
    assert f'{problem}ImportError: no torch' in capsys.readouterr().out
    assert record.read_record(DEVICE) == {}
    (tmp_path / 'file').touch()
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'file'))
    gate.ensure_checked('float16')
    assert f'{problem}[Errno 20] Not a directory' in capsys.readouterr().out


@pytest.mark.parametrize(
    ('dtype', 'tf32', 'dtypes'),
    [
        ('float16', False, {'float16'}),
        ('bfloat16', True, {'bfloat16'}),
        ('float32', False, {'float32'}),
        ('float32', True, {'float32', 'float32 in tf32'}),
    ],
)
def test_ensure_checked_runs_once_what_networks_need(
    dtype, tf32, dtypes, child, monkeypatch, capsys
):
    log = child()
    monkeypatch.setattr(triton_backend, 'missing', list)
    monkeypatch.setattr(torch.cuda, 'device_count', lambda: 2)
    precision = 'tf32' if tf32 else 'ieee'
    monkeypatch.setattr(record, 'product_precision', lambda dtype: precision)
    gate.ensure_checked(dtype)
    gate.ensure_checked(dtype)
    wanted = {case for case in CASES if case.head_dim in (32, 64) and case.dtype in dtypes}
    assert record.read_record(DEVICE).keys() == {str(case) for case in wanted}
    assert log().count('start check') == 1
    assert capsys.readouterr().out == (
        f'checking {len(wanted)} kernels on Some GPU, once: this may take minutes\n'
    )


@pytest.mark.parametrize(
    ('cores', 'gigabytes', 'number'), [(2, 80, 2), (64, 80, 12), (64, 7.6, 3), (1, 1, 1)]
)
def test_a_child_needs_a_core_and_memory(cores, gigabytes, number, monkeypatch):
    properties = SimpleNamespace(total_memory=int(gigabytes * GIGABYTE))
    monkeypatch.setattr(torch.cuda, 'get_device_properties', lambda device: properties)
    monkeypatch.setattr(os, 'sched_getaffinity', lambda process: set(range(cores)))
    assert gate.number_of_children(DEVICE) == number


def test_the_table_shows_speed_and_failures():
    results = {str(case): RIGHT for case in CASES}
    results['power, bfloat16, D=16'] = {'failure': 'two runs differ', 'speedup': {}}
    results['power, float32, D=16'] = {'failure': '', 'speedup': {'784': 0.5, '16700': 3.0}}
    lines = gate.table(results).splitlines()
    assert lines[0].endswith('float16          bfloat16           float32   float32 in tf32')
    row = ' '.join(lines[1].split())
    assert row == 'power 16 2.0 / 3.0 failed 0.5 / 3.0 (off) 2.0 / 3.0'
    assert len(lines) == 18
    assert lines[-1] == 'power, bfloat16, D=16: two runs differ'


def test_without_a_gpu_there_is_one_line(run_tool):
    found = run_tool('gpu.py', check=False)
    assert found.returncode == 2
    assert found.stdout.startswith('error: no GPU to check: no CUDA device')
    assert found.stdout.count('\n') == 1


@pytest.mark.slow
def test_the_check_itself_in_the_interpreter(monkeypatch, tmp_path):
    """Kernels without tensor cores, in real child processes with small problems."""
    if not triton_backend.HAS_TRITON:
        pytest.skip('triton is not installed')
    script = tmp_path / 'small.py'
    script.write_text(
        'from mmpola.kernels import check\n'
        'from tests.kernels.test_check import SMALL, small\n'
        'for operator, problems in check.CHECKED.items():\n'
        '    check.CHECKED[operator] = [small(arguments) for arguments in problems]\n'
        'check.TIMED = dict.fromkeys(check.TIMED, SMALL)\n'
        'check.median_milliseconds = lambda step: 2.0 if step() else 0.0\n'
        'check.main()\n'
    )
    monkeypatch.setenv('TRITON_INTERPRET', '1')
    monkeypatch.setenv('PYTHONPATH', str(ROOT))
    monkeypatch.setattr(gate, 'COMMAND', (sys.executable, str(script)))
    monkeypatch.setattr(gate, 'number_of_children', lambda device: 1)
    cases = [Case('mix_and_gate', 32, 'bfloat16'), Case('mix_and_gate', 16, 'float32')]
    results = gate.check_gpu(DEVICE, cases)
    found = {'failure': '', 'speedup': {'784': 1.0, '16700': 1.0}}
    assert results == {str(case): found for case in cases}
