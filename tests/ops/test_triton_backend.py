"""When the `triton` backend is unavailable: the reasons, and that triton is imported only when it
is needed.
"""

import runpy
import subprocess
import sys

import pytest
import torch

import mmpola.ops.triton
from mmpola.ops import available_backends, polarity_attention, unavailable_backends
from mmpola.ops import triton as backend
from mmpola.ops.power_map import PowerMap


def test_importing_the_operators_imports_no_triton(root):
    command = (
        "import sys, mmpola.ops; print([m for m in sys.modules if m.split('.')[0] == 'triton'])"
    )
    assert subprocess.check_output([sys.executable, '-c', command], cwd=root, text=True) == '[]\n'


def test_every_reason_is_listed(monkeypatch):
    monkeypatch.setattr(backend, 'HAS_TRITON', False)
    monkeypatch.setattr(backend, 'IS_INTERPRETED', False)
    monkeypatch.setattr(torch.cuda, 'is_available', lambda: False)
    reasons = [
        'triton is not installed',
        "no CUDA device (TRITON_INTERPRET=1 runs the kernels in Triton's interpreter)",
    ]
    assert available_backends() == ['torch']
    assert unavailable_backends() == {'triton': reasons}
    x = torch.zeros(1, 4, 1, 16)
    with pytest.raises(RuntimeError) as raised:
        polarity_attention(x, x, x, PowerMap(torch.full((1, 16), 2.0)), backend='triton')
    assert str(raised.value) == "backend 'triton' cannot run: " + '; '.join(reasons)


@pytest.mark.parametrize(('version', 'is_refused'), [('2.6.0+cu124', True), ('2.10.0', False)])
def test_a_triton_that_aborts_the_process_is_refused(version, is_refused, monkeypatch):
    """Triton 3.2, of torch 2.6, ends the process while it compiles; no self-check could catch
    that.
    """
    monkeypatch.setattr(torch, '__version__', version)
    found = runpy.run_path(mmpola.ops.triton.__file__)
    monkeypatch.setattr(backend, 'HAS_TRITON', True)
    monkeypatch.setattr(backend, 'IS_TOO_OLD', found['IS_TOO_OLD'])
    reasons = [reason for reason in backend.missing() if reason.startswith('torch: expected')]
    assert len(reasons) == is_refused
