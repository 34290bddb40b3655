"""Fixtures for the tests of the kernels. Tests marked `kernels` run on a GPU, or with
TRITON_INTERPRET=1 on a CPU.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch

from mmpola.ops import triton as backend

# Their modules import triton.
collect_ignore_glob = [] if backend.HAS_TRITON else ['test_triton_*.py']


def pytest_runtest_setup(item):
    if item.get_closest_marker('kernels') and (reasons := backend.missing()):
        pytest.skip('; '.join(reasons))


@pytest.fixture(autouse=True)
def _split_short_sequences(request, monkeypatch):
    """Let several programs share a head of a few tokens too, so that their partial states are
    added.
    """
    if request.node.get_closest_marker('kernels'):
        from mmpola.ops.triton import passes

        monkeypatch.setattr(passes, 'LARGEST_SHARE', 10_000)
        passes.plan_pass.cache_clear()
        yield
        passes.plan_pass.cache_clear()
    else:
        yield


@pytest.fixture(autouse=True)
def _quick_interpreter(monkeypatch):
    """Interpret kernels in half the time.

    triton.language is patched once per launch, not in every call of a device function too, and
    integers are not checked for overflow, as in compiled kernels; see `overflow_checks`.
    """
    if not backend.IS_INTERPRETED:
        return
    import triton.language as tl
    from triton.runtime import interpreter

    launch = interpreter.GridExecutor.__call__

    def call(self, *args, **kwargs):
        scope = interpreter._patch_lang(
            tl.sum.fn
        )  # tl.core, which the functions of triton.language call
        try:
            return launch(self, *args, **kwargs)
        finally:
            scope.restore()

    monkeypatch.setattr(interpreter.GridExecutor, '__call__', call)
    set_overflow_checks(monkeypatch, False)
    monkeypatch.setattr(
        interpreter.InterpretedFunction,
        '__call__',
        lambda self, *args, **kwargs: self.rewrite()(*args, **kwargs),
    )


@pytest.fixture
def overflow_checks(monkeypatch):
    """Let the interpreter check sums and products of integers for overflow."""
    if backend.IS_INTERPRETED:
        set_overflow_checks(monkeypatch, True)


def set_overflow_checks(monkeypatch, enabled):
    from triton.runtime.interpreter import interpreter_builder

    options = replace(interpreter_builder.options, sanitize_overflow=enabled)
    monkeypatch.setattr(interpreter_builder, 'options', options)


@pytest.fixture
def poisoned_memory(monkeypatch):
    """Fill new memory with NaN, so that elements that a kernel does not write are noticed."""
    empty = torch.empty
    monkeypatch.setattr(
        torch, 'empty', lambda *args, **kwargs: empty(*args, **kwargs).fill_(float('nan'))
    )


@pytest.fixture
def hardware_tf32(monkeypatch):
    """Make the interpreter compute as the hardware does: from factors cut to tf32, with results
    rounded to bfloat16.
    """
    if not backend.IS_INTERPRETED:
        return
    import triton.language as tl
    from triton.runtime import interpreter

    exact = interpreter.InterpreterBuilder.create_dot

    def truncate(factor):
        return interpreter.TensorHandle(
            (factor.data.view(np.int32) & ~0x1FFF).view(np.float32), factor.dtype
        )

    def create_dot(self, a, b, d, input_precision, imprecise):
        if 'TF32' in str(input_precision):
            a, b = truncate(a), truncate(b)
        return exact(self, a, b, d, input_precision, imprecise)

    cast = interpreter.InterpreterBuilder.cast_impl

    def cast_impl(self, x, dtype):
        if (
            x.dtype.scalar == tl.float32 and dtype.scalar == tl.bfloat16
        ):  # the interpreter would cut them
            bits = x.data.view(np.uint32)
            x = interpreter.TensorHandle(
                (bits + 0x7FFF + (bits >> 16 & 1)).view(np.float32), x.dtype
            )
        return cast(self, x, dtype)

    monkeypatch.setattr(interpreter.InterpreterBuilder, 'create_dot', create_dot)
    monkeypatch.setattr(interpreter.InterpreterBuilder, 'cast_impl', cast_impl)
