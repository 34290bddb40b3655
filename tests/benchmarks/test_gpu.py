"""`python -m benchmarks.gpu`: a dry run, and that a check finds wrong kernels."""

import json
import os
import subprocess
import sys

import pytest
import torch

from benchmarks.gpu import checks
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


def unwritten(right):
    """A kernel that leaves the first element of its output as it was allocated."""

    def run(inputs):
        output = right(inputs)
        rest = output.flatten()[1:]
        return torch.cat([torch.empty_like(rest[:1]), rest]).view_as(output)

    return run


@pytest.mark.parametrize(
    ('kernels', 'failure'),
    [
        (lambda right: right, ''),
        (lambda right: lambda inputs: 1.1 * right(inputs), 'the error of the output is'),
        (unwritten, 'the error of the output is nan times the budget'),
        (
            lambda right: lambda inputs: right(inputs) * (1 + 1e-7 * torch.rand(1)),
            'two runs differ in the output',
        ),
    ],
    ids=['right', 'inaccurate', 'unwritten', 'random'],
)
def test_a_check_finds_kernels_that_are(kernels, failure, monkeypatch):
    monkeypatch.setattr(
        checks, 'polarity_attention_triton', kernels(checks.polarity_attention_chunked)
    )
    arguments = {**checks.POWER, 'batch': 1, 'queries': 9, 'keys': 9}
    device = torch.device('cpu')
    row = checks.check(device, checks.DTYPES['float32'], 8, arguments, allowed=10.0)
    assert row['failure'].startswith(failure) if failure else row['failure'] == ''


def test_the_folder_of_results_is_named_by_the_gpu():
    assert results_folder('NVIDIA A100/PCIe').name == 'NVIDIA-A100-PCIe'
