"""`mmpola gpu`: the check in child processes, which may fail in every way, and its record."""

import json
import os
import signal
import subprocess
import sys
import textwrap
from types import SimpleNamespace

import pytest
import torch

from mmpola.kernels import gate, record
from mmpola.kernels.check import Case, all_cases, case_of
from mmpola.ops import triton as triton_backend
from tests.helpers.processes import environment

CASES = all_cases()
DEVICE = torch.device('cpu')
GIGABYTE = 2**30
CACHES = os.environ.get('XDG_CACHE_HOME', '')

CHILD = """
import json, os, signal, sys, time
from pathlib import Path

log = Path({log!r})

def note(word):
    with log.open('a') as file:
        file.write(f'{{word}}\\n')

note('start')
print('{{"ready": true}}', flush=True)
for line in sys.stdin:
    task, row = json.loads(line)
    case = (row['operator'], row['head_dim'], row['dtype'])
    note(f'{{task}} {{case}}')
    if task == 'time kernels':
        row['speedup'] = {{'784': 2.0, '16700': 3.0}}
{fault}
    print(json.dumps(row), flush=True)
"""


@pytest.fixture
def child(monkeypatch, tmp_path):
    """A function that replaces the child process by one with a fault; returns what the processes
    log: 'start', and each task with its case.
    """

    def replace(fault='', number=1):
        log = tmp_path / 'log'
        script = tmp_path / 'child.py'
        script.write_text(CHILD.format(log=str(log), fault=textwrap.indent(fault, '    ')))
        monkeypatch.setattr(gate, 'COMMAND', (sys.executable, str(script)))
        monkeypatch.setattr(gate, 'number_of_children', lambda device: number)
        log.write_text('')
        return log

    return replace


@pytest.fixture(autouse=True)
def _gpu(monkeypatch, tmp_path):
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
    monkeypatch.setattr(torch.cuda, 'get_device_name', lambda device: 'Some GPU')
    record.rows_by_case.cache_clear()


def at(*numbers):
    """Python that is true in the child for cases of CASES."""
    cases = [(CASES[i].operator, CASES[i].head_dim, CASES[i].dtype) for i in numbers]
    return f'case in {cases!r}'


def check(cases=CASES):
    """Check cases; return their rows in the order of CASES."""
    rows = list(gate.run_check(DEVICE, cases))
    return sorted(rows, key=lambda row: CASES.index(case_of(row)))


def failures(rows):
    return {number: row['failure'] for number, row in enumerate(rows) if row['failure']}


def written():
    """The rows of the record in the cache folder."""
    key = record.record_key(DEVICE)
    return record.read_record(key)


def test_each_case_is_a_row_and_networks_come_first(child):
    log = child()
    rows = list(gate.run_check(DEVICE, CASES))
    assert [case_of(row) for row in rows] == CASES
    assert not failures(rows)
    lines = log.read_text().splitlines()
    assert lines[0] == 'start'
    assert lines.count('start') == 1
    tasks = [line.split()[0] for line in lines[1:]]
    assert tasks == ['check'] * 16 + ['time'] * 16 + ['check'] * 44 + ['time'] * 44
    first = {(case.head_dim, case.dtype) for case in CASES[:16]}
    assert first == {(64, 'float16'), (64, 'bfloat16'), (32, 'float16'), (32, 'bfloat16')}


def test_children_check_side_by_side_and_one_times_alone(child):
    log = child("if task == 'check kernels':\n    time.sleep(1)\n    note('checked')", number=8)
    assert not failures(check(CASES[:16]))
    lines = log.read_text().splitlines()
    assert lines[:8] == ['start'] * 8
    assert lines.count('start') == 8
    side_by_side = lines[8 : lines.index('checked')]
    assert len(side_by_side) > 1
    assert all(line.startswith('time') for line in lines[-16:])


@pytest.mark.parametrize('number', [1, 2])
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
def test_a_process_that_ends_is_a_row_and_another_goes_on(fault, failure, number, child):
    log = child(f'if {at(3, 4)}:\n    {fault}', number)
    assert failures(check(CASES[:16])) == {3: failure, 4: failure}
    assert log.read_text().splitlines().count('start') in (number + 1, number + 2)


def test_a_process_that_ends_while_it_times_is_a_row(child):
    child(f"if task == 'time kernels' and {at(0, 5)}:\n    os.abort()")
    failure = 'the process ended with status -6'
    assert failures(check(CASES[:16])) == {0: failure, 5: failure}


def test_a_failure_ends_the_process_that_had_it(child):
    log = child(f"if {at(2)}:\n    row['failure'] = 'AcceleratorError: illegal address'")
    assert failures(check(CASES[:16])) == {2: 'AcceleratorError: illegal address'}
    lines = log.read_text().splitlines()
    assert [number for number, line in enumerate(lines) if line == 'start'] == [0, 4]


def test_other_output_is_no_row(child):
    child(
        "print('a warning'); print(7); print('{}'); print(json.dumps({'failure': 1}))\n"
        "os.write(1, b'\\xff\\x00\\n')"
    )
    assert not failures(check(CASES[:16]))


def test_a_process_that_hangs_is_ended(child, monkeypatch):
    monkeypatch.setattr(gate, 'LONGEST_CASE', 3.0)
    child(f'if {at(13)}:\n    time.sleep(600)')
    assert failures(check(CASES[:16])) == {13: 'the process ended with status -9'}


def test_a_process_that_cannot_start_ends_the_check(child, tmp_path):
    child(number=3)
    (tmp_path / 'child.py').write_text("raise ImportError('no torch')")
    with pytest.raises(RuntimeError, match='ImportError: no torch'):
        check()


def test_processes_that_the_gpu_does_not_admit_are_left_out(child, tmp_path):
    log = child(number=3)
    script = tmp_path / 'child.py'
    only_one = f"open({str(tmp_path / 'used')!r}, 'x')  # fails for the second process\n"
    script.write_text(only_one + script.read_text())
    assert not failures(check(CASES[:16]))
    assert log.read_text().splitlines().count('start') == 1


@pytest.mark.parametrize('name', ['SIGINT', 'SIGTERM'])
def test_a_check_that_is_stopped_says_nothing_about_the_kernels(name, child):
    child(f'if {at(3)}:\n    signal.signal(signal.SIGINT, signal.SIG_DFL)\n'
          f'    os.kill(os.getpid(), signal.{name})')  # fmt: skip
    with pytest.raises(RuntimeError, match='a process was stopped'):
        gate.check_gpu(DEVICE, CASES)
    assert not failures(written() or [])


def test_an_interrupted_check_goes_on_where_it_was(child):
    log = child(f'if {at(40)}:\n    os.kill(os.getpid(), signal.SIGTERM)')
    with pytest.raises(RuntimeError, match='a process was stopped'):
        gate.check_gpu(DEVICE, CASES)
    assert [case_of(row) for row in written()] == CASES[:16]
    log = child()
    rows = gate.check_gpu(DEVICE, CASES)
    assert [case_of(row) for row in rows] == CASES
    assert written() == rows
    assert sum(line.startswith('check') for line in log.read_text().splitlines()) == 44


def test_a_row_is_written_when_it_is_known(child, monkeypatch):
    """A process that ends at once while a row is being timed loses that row only."""
    child(
        f"if task == 'time kernels' and {at(5)}:\n"
        '    time.sleep(1)  # until the row before is on the disk\n'
        '    os.kill(os.getppid(), signal.SIGKILL)'
    )
    program = (
        'import torch\n'
        'from mmpola.kernels import gate\n'
        "torch.cuda.get_device_name = lambda device: 'Some GPU'\n"
        f'gate.COMMAND = {gate.COMMAND!r}\n'
        'gate.number_of_children = lambda device: 2\n'
        "gate.check_gpu(torch.device('cpu'), gate.all_cases())\n"
    )
    done = subprocess.run([sys.executable, '-c', program], env=environment())
    assert done.returncode == -signal.SIGKILL
    assert len(written()) == 5


def test_the_record_is_read_again_until_something_changes(child, monkeypatch):
    log = child()
    rows = gate.check_gpu(DEVICE, CASES)

    def count():
        return log.read_text().splitlines().count('start')

    assert gate.check_gpu(DEVICE, CASES) == rows
    assert count() == 1
    gate.check_gpu(DEVICE, CASES, again=True)
    assert count() == 2
    monkeypatch.setattr(record, 'kernels_hash', lambda: 'other kernels')
    gate.check_gpu(DEVICE, CASES)
    assert count() == 3


@pytest.mark.parametrize('length', [0, 20, 2000])
def test_a_record_that_is_cut_off_is_made_again(length, child):
    child()
    rows = gate.check_gpu(DEVICE, CASES)
    path = record.record_path(record.record_key(DEVICE))
    path.write_text(path.read_text()[:length])
    assert gate.check_gpu(DEVICE, CASES) == rows
    assert written() == rows


def test_a_complete_record_needs_no_folder_that_can_be_written(child, monkeypatch, tmp_path):
    child()
    rows = gate.check_gpu(DEVICE, CASES)
    path = record.record_path(record.record_key(DEVICE))
    monkeypatch.setattr(record, 'SHIPPED', path.parent)
    (tmp_path / 'file').touch()
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'file'))
    assert gate.check_gpu(DEVICE, CASES) == rows
    with pytest.raises(NotADirectoryError):
        gate.check_gpu(DEVICE, CASES, again=True)


def test_an_old_record_stays_until_rows_replace_it(child):
    child()
    gate.check_gpu(DEVICE, CASES)
    child(f"row['speedup'] = {{'784': 5.0}}\nif {at(2)}:\n    os.kill(os.getpid(), signal.SIGTERM)")
    with pytest.raises(RuntimeError):
        gate.check_gpu(DEVICE, CASES, again=True)
    assert len(written()) == len(CASES)


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
    assert log.read_text().splitlines().count('start') == 1


def test_ensure_checked_says_what_went_wrong_and_goes_on(child, monkeypatch, capsys, tmp_path):
    child()
    (tmp_path / 'child.py').write_text("raise ImportError('no torch')")
    monkeypatch.setattr(triton_backend, 'missing', list)
    monkeypatch.setattr(torch.cuda, 'device_count', lambda: 2)
    problem = 'the kernels could not be checked, attention runs in plain PyTorch: '
    gate.ensure_checked('float16')
    assert f'{problem}ImportError: no torch' in capsys.readouterr().out
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
def test_ensure_checked_runs_once_what_networks_need(dtype, tf32, dtypes, child, monkeypatch):
    log = child()
    monkeypatch.setattr(triton_backend, 'missing', list)
    monkeypatch.setattr(torch.cuda, 'device_count', lambda: 2)
    precision = 'tf32' if tf32 else 'ieee'
    monkeypatch.setattr(triton_backend, 'product_precision', lambda dtype: precision)
    gate.ensure_checked(dtype)
    gate.ensure_checked(dtype)
    assert {(row['head_dim'], row['dtype']) for row in written()} == {
        (head_dim, name) for head_dim in (32, 64) for name in dtypes
    }
    assert log.read_text().splitlines().count('start') == 1


def test_without_a_terminal_there_is_a_line_per_ten_cases(child, capfd):
    child(number=2)
    gate.check_gpu(DEVICE, CASES)
    output, errors = capfd.readouterr()
    assert output.splitlines() == [
        'checking 60 kernels on Some GPU, once',
        *(f'{task} kernels: {done} of 16' for task in ('check', 'time') for done in (10, 16)),
        *(
            f'{task} kernels: {done} of 44'
            for task in ('check', 'time')
            for done in (10, 20, 30, 40, 44)
        ),
    ]
    assert errors == ''


@pytest.mark.parametrize(
    ('cores', 'gigabytes', 'number'), [(2, 80, 2), (64, 80, 12), (64, 7.6, 3), (1, 1, 1)]
)
def test_a_child_needs_a_core_and_memory(cores, gigabytes, number, monkeypatch):
    properties = SimpleNamespace(total_memory=int(gigabytes * GIGABYTE))
    monkeypatch.setattr(torch.cuda, 'get_device_properties', lambda device: properties)
    monkeypatch.setattr(os, 'sched_getaffinity', lambda process: set(range(cores)))
    assert gate.number_of_children(DEVICE) == number


def test_the_table_shows_speed_and_failures(child):
    failed = CASES.index(Case('power', 16, 'bfloat16'))
    child(f"if {at(failed)}:\n    row['failure'] = 'two runs differ in the output'")
    lines = gate.table(check()).splitlines()
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
    """Kernels without tensor cores, in real child processes."""
    if not triton_backend.HAS_TRITON:
        pytest.skip('triton is not installed')
    monkeypatch.setenv('TRITON_INTERPRET', '1')
    monkeypatch.setattr(gate, 'number_of_children', lambda device: 1)
    cases = [Case('mix_and_gate', 32, 'bfloat16'), Case('mix_and_gate', 16, 'float32')]
    rows = list(gate.run_check(DEVICE, cases, is_tiny=True))
    assert [case_of(row) for row in rows] == cases
    for row in rows:
        assert row['failure'] == ''
        assert row['speedup'].keys() == {'784', '16700'}
    json.dumps(rows)
