"""`python -m benchmarks.gpu`: its rows and its record, a dry run, and a machine without a GPU."""

import importlib
import json
import os
import subprocess
import sys
import textwrap
from argparse import Namespace
from types import SimpleNamespace

import pytest
import torch
from torch.autograd import DeviceType

from benchmarks.gpu import clock
from benchmarks.gpu.clock import busy_milliseconds, compare
from benchmarks.records import results_folder
from mmpola.ops import triton as triton_backend

main = importlib.import_module('benchmarks.gpu.__main__')

KEY = {
    'gpu': 'Some GPU',
    'times are made up': False,
    'commit': 'abc',
    **dict.fromkeys(('torch', 'triton', 'timm', 'mmdet', 'flash_bla'), '1'),
}
NETWORKS = Namespace(only='networks', sweep=None, dry_run=False)

CHILD = """
import json, os, signal, sys
from pathlib import Path

task, mode, jobs = sys.argv[1:]
print('ready', flush=True)
for job in json.loads(jobs):
    row = job.get('row', job)
    with Path({log!r}).open('a') as file:
        file.write(json.dumps([task, row, job.get('variant')]) + '\\n')
    result = {{}}
    if not task.startswith('compile'):
        result['failure'] = ''
    if task.startswith('time'):
        result |= {{'ours, ms': 1.0, 'not compiled': job['failures']}}
{fault}
    print(json.dumps(result), flush=True)
"""


@pytest.fixture
def child(monkeypatch, tmp_path):
    """A function that replaces the child process by one with a fault; returns a function that reads
    its log: task, row and variant of each job.
    """
    log = tmp_path / 'log'

    def replace(fault=''):
        script = tmp_path / 'child.py'
        script.write_text(CHILD.format(log=str(log), fault=textwrap.indent(fault, '    ')))
        monkeypatch.setattr(main, 'COMMAND', (sys.executable, str(script)))
        monkeypatch.setattr(main, 'number_of_children', lambda dry_run: 2)
        log.write_text('')
        return lambda: [json.loads(line) for line in log.read_text().splitlines()]

    return replace


def run(root, *arguments, **environment):
    return subprocess.run(
        [sys.executable, '-m', 'benchmarks.gpu', *map(str, arguments)],
        cwd=root,
        capture_output=True,
        text=True,
        env={**os.environ, 'OMP_NUM_THREADS': '1', **environment},
    )


def test_what_a_user_waits_for_is_measured_first(child, tmp_path):
    log = child()
    record = main.measure_all(NETWORKS, tmp_path, KEY)
    groups = []
    for task, row, _ in log():
        group = (task.split()[0], row['pass'], row['mode'], row['dtype'])
        if group not in groups:
            groups.append(group)
    assert groups[:4] == [
        ('time', 'training step', 'eager', 'float16'),
        ('time', 'training step', 'eager', 'bfloat16'),
        ('time', 'inference', 'eager', 'float16'),
        ('time', 'inference', 'eager', 'bfloat16'),
    ]
    timed = [group for group in groups[4:] if group[0] == 'time']
    assert groups[-4:] == timed
    assert timed == [
        ('time', 'training step', 'compiled', 'float16'),
        ('time', 'training step', 'compiled', 'bfloat16'),
        ('time', 'inference', 'compiled', 'float16'),
        ('time', 'inference', 'compiled', 'bfloat16'),
    ]
    assert len(record['networks']) == 32


def test_an_interrupted_run_goes_on_where_it_was(child, tmp_path):
    child("if row['dtype'] == 'bfloat16':\n    os.kill(os.getpid(), signal.SIGTERM)")
    with pytest.raises(RuntimeError, match='a process was stopped'):
        main.measure_all(NETWORKS, tmp_path, KEY)
    begun = main.read_record(tmp_path, KEY)['networks']
    assert len(begun) == 4
    assert '## Networks' in (tmp_path / 'report.md').read_text()

    log = child()
    record = main.measure_all(NETWORKS, tmp_path, KEY)
    assert main.read_record(tmp_path, KEY) == record
    assert record['networks'][:4] == begun
    assert len(record['networks']) == 32
    assert sum(task == 'time networks' for task, _, _ in log()) == 28

    log = child()
    assert main.measure_all(NETWORKS, tmp_path, KEY) == record
    checks = Namespace(only='checks', sweep=None, dry_run=True)
    record = main.measure_all(checks, tmp_path, KEY)
    assert len(record['networks']) == 32
    assert {row['check'] for row in record['checks']} == {'power', 'mix_and_gate'}
    assert [task for task, _, _ in log()] == ['check kernels'] * 2


@pytest.mark.parametrize('content', ['', '{"gpu": "Some', '[]', 'null', '{"gpu": "Another GPU"}'])
def test_a_record_that_is_damaged_or_of_another_gpu_is_made_anew(content, tmp_path):
    (tmp_path / 'run.json').write_text(content)
    assert main.read_record(tmp_path, KEY) == {}


def test_a_variant_that_cannot_be_compiled_is_left_out(child, tmp_path):
    child(
        "if task == 'compile networks' and row['pass'] == 'training step' "
        "and row['size'] == '224x224' and job['variant'] == ('timm' if row['dtype'] == 'float16' "
        "else 'ours'):\n    os.abort()"
    )
    rows = main.measure_all(NETWORKS, tmp_path, KEY)['networks']
    ended = 'the process ended with status -6'
    swin = [row for row in rows if row.get('not compiled')]
    assert [(row['network'], row['dtype']) for row in swin] == [('Pola-Swin-T', 'float16')]
    assert swin[0]['not compiled'] == {'timm': ended}
    failed = [row for row in rows if row['failure']]
    assert [row['failure'] for row in failed] == [ended, ended]
    assert all(row['dtype'] == 'bfloat16' and 'ours, ms' not in row for row in failed)
    # what has failed is measured again
    log = child()
    main.measure_all(NETWORKS, tmp_path, KEY)
    assert sum(task == 'time networks' for task, _, _ in log()) == 2


def test_a_sweep_compiles_every_launch_and_reports_the_fastest(child, tmp_path):
    child("if task == 'time launches':\n    result['step, ms'] = float(len(row['kernel']))")
    args = Namespace(only=None, sweep=('power', '32'), dry_run=True)
    rows = main.measure_all(args, tmp_path, KEY)['launches power 32']
    assert [row['today'] for row in rows] == ['yes', ''] * 4
    assert '## Launches power 32' in (tmp_path / 'report.md').read_text()


def fails(error):
    def run():
        raise error

    return run


def test_a_variant_that_fails_has_no_times_and_the_others_have():
    runs = {
        'ours': lambda: None,
        'large': fails(torch.OutOfMemoryError()),
        'wrong': fails(RuntimeError('no such instruction')),
    }
    row = compare(runs, {'uncompiled': 'it hangs'}, dry_run=True)
    assert row['ours, ms'] == 1.0
    assert row['GPU busy, ms'] == 0.5
    assert (row['large'], row['wrong'], row['uncompiled']) == ('out of memory', 'failed', 'failed')
    assert row['failure'] == 'uncompiled: it hangs'
    assert row['milliseconds'].keys() == {'ours'}


def test_the_gpu_is_busy_while_kernels_run(monkeypatch):
    def event(device, microseconds, is_user_annotation=False):
        return SimpleNamespace(
            device_type=device,
            is_user_annotation=is_user_annotation,
            time_range=SimpleNamespace(elapsed_us=lambda: microseconds),
        )

    class Profile:
        found = ()

        def __init__(self, activities):
            pass

        def __enter__(self):
            return self

        def __exit__(self, *error):
            pass

        def events(self):
            return self.found

    monkeypatch.setattr(clock, 'profile', Profile)
    monkeypatch.setattr(torch.cuda, 'synchronize', lambda: None)
    assert busy_milliseconds(lambda: None) == 'not measured'
    Profile.found = [
        event(DeviceType.CPU, 9000.0),
        event(DeviceType.CUDA, 1500.0),
        event(DeviceType.CUDA, 500.0),
        event(DeviceType.CUDA, 4000.0, is_user_annotation=True),
    ]
    assert busy_milliseconds(lambda: None) == 2.0
    assert busy_milliseconds(fails(RuntimeError('no permission'))) == 'not measured'


def test_a_folder_that_cannot_be_written_is_one_line(monkeypatch, tmp_path):
    monkeypatch.setattr(triton_backend, 'missing', list)
    (tmp_path / 'file').touch()
    args = Namespace(only='checks', sweep=None, dry_run=True, results=tmp_path / 'file' / 'folder')
    assert main.run(args).startswith('error: [Errno 20] Not a directory')


@pytest.mark.slow
def test_a_dry_run_writes_a_report_of_times_that_are_made_up(root, tmp_path):
    found = run(root, '--dry-run', '--results', tmp_path)
    assert found.returncode == 0, found.stdout[-2000:] + found.stderr[-6000:]
    record = json.loads((tmp_path / 'run.json').read_text())
    assert record['times are made up'] is True
    assert [row['failure'] for row in record['checks']] == ['', '']
    assert len(record['operator']) == 4
    assert len(record['networks']) == 16
    text = (tmp_path / 'report.md').read_text()
    assert 'MADE UP' in text
    for heading in ('Checks', 'Operator', 'Networks'):
        assert f'\n## {heading}\n' in text


def test_without_a_gpu_there_is_one_line(root):
    found = run(root, CUDA_VISIBLE_DEVICES='', TRITON_INTERPRET='0')
    assert found.returncode == 1
    assert found.stderr.startswith('error: no GPU to measure: ')
    assert found.stderr.count('\n') == 1


def test_the_folder_of_results_is_named_by_the_gpu():
    assert results_folder('NVIDIA A100/PCIe').name == 'NVIDIA-A100-PCIe'
