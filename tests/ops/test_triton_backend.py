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
from mmpola.ops.power_map import PowerMap
from mmpola.ops.triton import backend


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


@pytest.mark.parametrize(
    ('version', 'reasons'), [('3.2.0', ['3.3', '3.2']), ('3.3.0+git1', []), ('3.10.0', [])]
)
def test_a_triton_that_aborts_the_process_is_refused_by_its_version(
    version, reasons, tmp_path, monkeypatch
):
    """Triton 3.2, of torch 2.6, ends the process while it compiles; no self-check could catch
    that.
    """
    information = tmp_path / f'triton-{version}.dist-info' / 'METADATA'
    information.parent.mkdir()
    information.write_text(f'Metadata-Version: 2.1\nName: triton\nVersion: {version}\n')
    monkeypatch.syspath_prepend(tmp_path)
    found = runpy.run_path(mmpola.ops.triton.__file__)
    assert version.startswith(f'{found["VERSION"]}.')
    for name in ('VERSION', 'IS_TOO_OLD'):
        monkeypatch.setattr(backend, name, found[name])
    named = [reason for reason in backend.missing() if reason.startswith('triton: ')]
    assert len(named) == bool(reasons)
    assert all(number in ''.join(named) for number in reasons)
