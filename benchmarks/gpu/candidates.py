"""Which launches of a kernel are tried, and their rank on paper, from what the compiler says about
each.
"""

from __future__ import annotations

import math
from itertools import product
from types import SimpleNamespace
from typing import Any

import torch

from benchmarks.gpu.launches import Binary
from mmpola.ops.triton.launch import LARGEST_SHARE

Launch = dict[str, int]

ATTENTION = {
    'tokens': (16, 32, 64, 128),
    'warps': (1, 2, 4, 8),
    'stages': (2, 3),
    'waves': (1,),
    'share': (LARGEST_SHARE,),
}
"""Field -> values to try; `waves` and `share` do not change what is compiled: the tuning replaces
them.
"""

TILES = {'rows': (4, 8, 16), 'columns': (4, 8, 16, 32), 'warps': (2, 4, 8)}
"""The same of the kernels of `mix_and_gate`."""

ELEMENTS_PER_THREAD = (8, 32)
"""Of one block: with fewer, work per block is not worth its overhead; with more, registers are
spilled.
"""

WARPS_TO_HIDE_LATENCY = 12
"""Resident warps per multiprocessor from which on more of them gain little."""

SPILL_COST = 1 / 128
"""Additional cost per spilled byte and thread: 128 bytes double the estimate."""

H100 = SimpleNamespace(
    regs_per_multiprocessor=2**16,
    max_threads_per_multi_processor=2048,
    shared_memory_per_multiprocessor=228 * 1024,
    shared_memory_per_block_optin=227 * 1024,
)
"""What limits the programs that reside on a multiprocessor, in torch's names; shared memory in
bytes.
"""


def limits(device: torch.device) -> Any:
    """Return the limits of a GPU; for the dry run those of an H100."""
    return torch.cuda.get_device_properties(device) if device.type == 'cuda' else H100


def resident_programs(binary: Binary, gpu: Any) -> int:
    """Return how many programs of a kernel fit on a multiprocessor."""
    if binary.shared > gpu.shared_memory_per_block_optin:
        return 0
    registers_per_warp = -(-32 * binary.registers // 256) * 256  # the unit of allocation
    return min(
        gpu.regs_per_multiprocessor // registers_per_warp // binary.warps,
        gpu.max_threads_per_multi_processor // 32 // binary.warps,
        gpu.shared_memory_per_multiprocessor
        // (binary.shared + 1024),  # a program reserves 1 KB for the driver
        32,
    )


def launches_to_try(fields: dict[str, tuple[int, ...]], block: int) -> list[Launch]:
    """Return the launches with values of `fields`, for kernels with `block` channels."""
    every = [dict(zip(fields, values, strict=True)) for values in product(*fields.values())]
    least, most = ELEMENTS_PER_THREAD
    return [
        launch
        for launch in every
        if least <= _elements(launch, block) / (32 * launch['warps']) <= most
    ]


def _elements(launch: Launch, block: int) -> int:
    return block * math.prod(launch.get(field, 1) for field in ('tokens', 'rows', 'columns'))


def estimate(binary: Binary, launch: Launch, block: int, gpu: Any) -> float:
    """Return a cost in arbitrary units: instructions per element, spills, and too few warps to hide
    latency.

    Infinite if the kernel does not fit. The order of close estimates means nothing.
    """
    resident = resident_programs(binary, gpu) * binary.warps
    if not resident:
        return math.inf
    issued = binary.instructions * 32 * binary.warps / _elements(launch, block)
    return issued * (1 + SPILL_COST * binary.spilled) * max(1.0, WARPS_TO_HIDE_LATENCY / resident)
