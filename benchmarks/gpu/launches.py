"""Intercept launches of kernels: record them to run each alone, or compile them without a GPU."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver

from mmpola.ops.triton.mix_and_gate_kernels import mix_and_gate_kernel
from mmpola.ops.triton.tables import LAUNCH_FIELDS

KERNEL_CLASS: type[Any] = type(mix_and_gate_kernel)
"""The class of all kernels; its method `run` launches them.

With TRITON_INTERPRET=1 it is that of interpreted kernels.
"""


class Launched(NamedTuple):
    """One launch of a kernel.

    Attributes:
        kernel: its name in launch.py.
        run: launches it again with the same arguments.
        tensors: its tensor arguments.
        binary: what Triton compiled; None in the interpreter.
    """

    kernel: str
    run: Callable[[], Any]
    tensors: list[Tensor]
    binary: Any


class Binary(NamedTuple):
    """What a compiled kernel needs.

    Attributes:
        kernel: its name in launch.py.
        instructions: number of instructions in its PTX.
        registers: per thread.
        spilled: bytes per thread in local memory.
        shared: bytes of shared memory per program.
        warps: per program.
    """

    kernel: str
    instructions: int
    registers: int
    spilled: int
    shared: int
    warps: int


@contextmanager
def recorded(**options: Any) -> Iterator[list[Launched]]:
    """Record every launch inside the block, which runs as usual but for Triton's `options`."""
    launches: list[Launched] = []
    original = KERNEL_CLASS.run

    def run(kernel: Any, *args: Any, **kwargs: Any) -> Any:
        launch = partial(original, kernel, *args, **{**kwargs, **options})
        tensors = [x for x in (*args, *kwargs.values()) if isinstance(x, Tensor)]
        binary = launch()
        launches.append(Launched(_kernel_name(kernel), launch, tensors, binary))
        return binary

    with mock.patch.object(KERNEL_CLASS, 'run', run):
        yield launches


def compile_only(run: Callable[[], object], capability: tuple[int, int]) -> list[Binary]:
    """Compile each launch of a function for a GPU instead of running it.

    Triton keeps the machine code on disk, where a process that runs the kernels on that GPU finds
    it.

    Args:
        run: calls kernels with tensors on the CPU.
        capability: compute capability of the GPU.
    """
    major, minor = capability
    target = GPUTarget('cuda', 10 * major + minor, 32)
    device = f'paper {target.arch}'  # Triton keeps kernels by device: this is one of its own
    paper_driver = SimpleNamespace(  # stands in for the driver of a GPU
        get_current_target=lambda: target,
        get_current_device=lambda: device,
        get_current_stream=lambda device: 0,
    )
    with mock.patch.object(driver, '_active', paper_driver), recorded(warmup=True) as launches:
        run()
    return [_inspected(launched.kernel, launched.binary) for launched in launches]


def _kernel_name(kernel: Any) -> str:
    """Return the name in launch.py of `[polarity_attention_MAP_]NAME_kernel`."""
    full = kernel.__name__.removesuffix('_kernel')
    matching = [name for name in LAUNCH_FIELDS if full.endswith(name)]
    return max(matching, key=len, default=full)


def _inspected(name: str, binary: Any) -> Binary:
    """Return what a binary needs, from its PTX, and from cuobjdump of its machine code."""
    lines = binary.asm['ptx'].splitlines()
    instructions = [line for line in lines if line.rstrip().endswith(';')]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / 'kernel.cubin'
        file.write_bytes(binary.asm['cubin'])
        tool = Path(triton.__file__).parent / 'backends' / 'nvidia' / 'bin' / 'cuobjdump'
        report = subprocess.run(
            [tool, '--dump-resource-usage', file], capture_output=True, text=True, check=True
        ).stdout
    return Binary(
        kernel=name,
        instructions=len(instructions),
        registers=_reported_number('REG', report),
        spilled=_reported_number('STACK', report),
        shared=binary.metadata.shared,
        warps=binary.metadata.num_warps,
    )


def _reported_number(word: str, report: str) -> int:
    found = re.search(rf'{word}:(\d+)', report)
    assert found is not None
    return int(found[1])
