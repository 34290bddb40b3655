"""Intercept the launches of the kernels: record them to run each alone, or compile them without a
GPU.
"""

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
"""Of compiled or, with TRITON_INTERPRET=1, of interpreted kernels; its method `run` launches all of
them.
"""


class Launched(NamedTuple):
    """One launch of a kernel.

    Args:
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

    Args:
        kernel: its name in launch.py.
        instructions: in its PTX.
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

    def run(kernel: Any, *args: Any, **kwargs: Any) -> Any:
        again = partial(original, kernel, *args, **{**kwargs, **options})
        tensors = [x for x in (*args, *kwargs.values()) if isinstance(x, Tensor)]
        launches.append(Launched(_name(kernel), again, tensors, again()))
        return launches[-1].binary

    original = KERNEL_CLASS.run
    with mock.patch.object(KERNEL_CLASS, 'run', run):
        yield launches


def compile_only(run: Callable[[], object], capability: tuple[int, int]) -> list[Binary]:
    """Compile each launch of a function, whose tensors are on the CPU, for a GPU instead of running
    it.

    Triton keeps the machine code on disk, where a process that runs the kernels on that GPU finds
    it.
    """
    target = GPUTarget('cuda', 10 * capability[0] + capability[1], 32)
    paper = SimpleNamespace(  # stands in for the driver of a GPU
        get_current_target=lambda: target,
        get_current_device=lambda: (
            f'paper {target.arch}'
        ),  # its own entry among the devices for which kernels are kept
        get_current_stream=lambda device: 0,
    )
    with mock.patch.object(driver, '_active', paper), recorded(warmup=True) as launches:
        run()
    return [_inspect(x.kernel, x.binary) for x in launches]


def _name(kernel: Any) -> str:
    """Return the name in launch.py of `[polarity_attention_MAP_]NAME_kernel`."""
    full = kernel.__name__.removesuffix('_kernel')
    return max((name for name in LAUNCH_FIELDS if full.endswith(name)), key=len, default=full)


def _inspect(name: str, binary: Any) -> Binary:
    instructions = sum(line.rstrip().endswith(';') for line in binary.asm['ptx'].splitlines())
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / 'kernel.cubin'
        file.write_bytes(binary.asm['cubin'])
        tool = Path(triton.__file__).parent / 'backends' / 'nvidia' / 'bin' / 'cuobjdump'
        report = subprocess.run(
            [tool, '--dump-resource-usage', file], capture_output=True, text=True, check=True
        ).stdout
    registers, stack = (int(re.search(rf'{word}:(\d+)', report)[1]) for word in ('REG', 'STACK'))  # type: ignore[index]
    return Binary(
        name, instructions, registers, stack, binary.metadata.shared, binary.metadata.num_warps
    )
