"""`python -m benchmarks.gpu`: a dry run, and a machine without a GPU."""

import json
import os
import subprocess
import sys

import pytest

from benchmarks.records import results_folder


def run(root, *arguments, **environment):
    return subprocess.run(
        [sys.executable, '-m', 'benchmarks.gpu', *map(str, arguments)],
        cwd=root,
        capture_output=True,
        text=True,
        env={**os.environ, 'OMP_NUM_THREADS': '1', **environment},
    )


@pytest.mark.slow
def test_a_dry_run_writes_a_report_of_times_that_are_made_up(root, tmp_path):
    found = run(root, '--dry-run', '--results', tmp_path)
    assert found.returncode == 0, found.stderr[-6000:]
    record = json.loads((tmp_path / 'run.json').read_text())
    assert record['times are made up'] is True
    assert [row['failure'] for row in record['checks']] == ['', '']
    assert len(record['operator']) == 4
    assert len(record['networks']) == 8
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
