"""What the tests of the kernels share. Tests marked `kernels` run on a GPU, or with TRITON_INTERPRET=1 on a CPU."""

import numpy as np
import pytest
import torch

from mmpola.ops.triton import backend

# Their modules import triton.
collect_ignore_glob = [] if backend.HAS_TRITON else ['test_triton_*.py']


def pytest_runtest_setup(item):
    if item.get_closest_marker('kernels') and (reasons := backend.missing()):
        pytest.skip('; '.join(reasons))


@pytest.fixture
def poisoned_memory(monkeypatch):
    """Fill new memory with NaN, so that what a kernel forgets to write is seen."""
    empty = torch.empty
    monkeypatch.setattr(torch, 'empty', lambda *args, **kwargs: empty(*args, **kwargs).fill_(float('nan')))


@pytest.fixture
def hardware_tf32(monkeypatch):
    """Make the interpreter compute tf32 products as the hardware does: from factors cut to 11 bits of mantissa."""
    if not backend.INTERPRETED:
        return
    from triton.runtime import interpreter

    exact = interpreter.InterpreterBuilder.create_dot

    def truncate(factor):
        return interpreter.TensorHandle((factor.data.view(np.int32) & ~0x1FFF).view(np.float32), factor.dtype)

    def create_dot(self, a, b, d, input_precision, imprecise):
        if 'TF32' in str(input_precision):
            a, b = truncate(a), truncate(b)
        return exact(self, a, b, d, input_precision, imprecise)

    monkeypatch.setattr(interpreter.InterpreterBuilder, 'create_dot', create_dot)
