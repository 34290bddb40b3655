"""The `triton` backend: its kernels in Triton's interpreter on a CPU, and that it stays out of the way elsewhere.

TRITON_INTERPRET must be set before triton is imported and changes what a CPU tensor may do, so the cases run in
processes of their own: one per group, which pytest-xdist may share out.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from mmpola.ops import available_backends, polarity_attention, unavailable_backends
from mmpola.ops.feature_map import PowerMap
from mmpola.ops.triton import support

HERE = Path(__file__).parent


def run_tests(root, file, **environment):
    """Run a test file, or a part of it, in a process of its own."""
    environment = {**os.environ, 'OMP_NUM_THREADS': '1', 'PYTEST_ADDOPTS': '', **environment}
    command = [sys.executable, '-m', 'pytest', '-q', '-x', '-W', 'ignore', '-p', 'no:cacheprovider', *file]
    found = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout[-6000:] + found.stderr[-2000:]
    assert re.search(r'\d+ passed', found.stdout)


@pytest.mark.parametrize('group', ['values', 'gradients', 'operator'])
def test_kernels_in_the_interpreter(group, root):
    pytest.importorskip('triton')
    run_tests(root, [HERE / 'triton_cases.py', '-k', f'test_{group}'], TRITON_INTERPRET='1')


@pytest.mark.parametrize('file', ['epilogue_cases.py', 'automatic_cases.py'])
def test_epilogue_and_choice_in_the_interpreter(file, root):
    pytest.importorskip('triton')
    run_tests(root, [HERE / file], TRITON_INTERPRET='1')


def test_kernels_compile_without_a_gpu(root, tmp_path):
    pytest.importorskip('triton')
    run_tests(root, [HERE / 'triton_compilation.py'], TRITON_INTERPRET='0', TRITON_CACHE_DIR=str(tmp_path))


def test_importing_the_operator_imports_no_triton(root):
    command = "import sys, mmpola.ops; print([m for m in sys.modules if m.split('.')[0] == 'triton'])"
    assert subprocess.check_output([sys.executable, '-c', command], cwd=root, text=True) == '[]\n'


def test_every_reason_is_listed(monkeypatch):
    monkeypatch.setattr(support, 'HAS_TRITON', False)
    monkeypatch.setattr(support, 'HAS_CUSTOM_OP', False)
    monkeypatch.setattr(support, 'INTERPRETED', False)
    monkeypatch.setattr(torch.cuda, 'is_available', lambda: False)
    monkeypatch.setattr(torch, '__version__', '2.3.1')
    reasons = [
        'triton is not installed',
        'torch >= 2.4 is needed (torch.library.custom_op), this is 2.3.1',
        "no CUDA device (TRITON_INTERPRET=1 runs the kernels in Triton's interpreter)",
    ]
    assert available_backends() == ['reference']
    assert unavailable_backends() == {'triton': reasons}
    x = torch.zeros(1, 4, 1, 16)
    with pytest.raises(RuntimeError) as raised:
        polarity_attention(x, x, x, PowerMap(torch.full((1, 16), 2.0)), backend='triton')
    assert str(raised.value) == "backend 'triton' cannot run: " + '; '.join(reasons)
