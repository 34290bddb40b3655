"""Which launches of a kernel are tried, and their cost on paper, by what the compiler reports."""

from __future__ import annotations

import math
from itertools import product
from types import SimpleNamespace
from typing import Any

import torch

from benchmarks.gpu.launches import Binary
from mmpola.ops.triton.launch import LARGEST_SHARE

Launch = dict[str, int]

ATTENTION_VALUES = {
    'tokens': (16, 32, 64, 128),
    'warps': (1, 2, 4, 8),
    'stages': (2, 3),
    'waves': (1,),
    'share': (LARGEST_SHARE,),
}
"""Field -> values to try, for the kernels of `polarity_attention`.

`waves` and `share` do not change what is compiled: the tuning replaces them.
"""

TILE_VALUES = {'rows': (4, 8, 16), 'columns': (4, 8, 16, 32), 'warps': (2, 4, 8)}
"""The same for the kernels of `mix_and_gate`."""

ELEMENTS_PER_THREAD = (8, 32)
"""Least and most elements of a block per thread.

With fewer, the work per block is not worth its overhead; with more, registers are spilled.
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
"""What limits the programs that reside on a multiprocessor, by torch's names.

Shared memory is in bytes.
"""

DRIVER_BYTES = 1024
"""Shared memory that each program reserves for the driver."""

MOST_RESIDENT = 32
"""Programs that reside on a multiprocessor, at most."""


def limits(device: torch.device) -> Any:
    """Return the limits of a GPU; for the dry run those of an H100."""
    if device.type == 'cuda':
        return torch.cuda.get_device_properties(device)
    return H100


def resident_programs(binary: Binary, gpu: Any) -> int:
    """Return how many programs of a kernel fit on a multiprocessor."""
    if binary.shared > gpu.shared_memory_per_block_optin:
        return 0
    registers_per_warp = 256 * math.ceil(32 * binary.registers / 256)  # allocated by 256
    by_registers = gpu.regs_per_multiprocessor // registers_per_warp // binary.warps
    by_threads = gpu.max_threads_per_multi_processor // 32 // binary.warps
    by_memory = gpu.shared_memory_per_multiprocessor // (binary.shared + DRIVER_BYTES)
    return int(min(by_registers, by_threads, by_memory, MOST_RESIDENT))


def launches_to_try(
    values_of_fields: dict[str, tuple[int, ...]], block_channels: int
) -> list[Launch]:
    """Return all combinations of values whose blocks have a sensible number of elements.

    Args:
        values_of_fields: `ATTENTION_VALUES` or `TILE_VALUES`.
        block_channels: channels of a block.
    """
    least, most = ELEMENTS_PER_THREAD
    launches = []
    for values in product(*values_of_fields.values()):
        launch = dict(zip(values_of_fields, values, strict=True))
        threads = 32 * launch['warps']
        if least <= _block_elements(launch, block_channels) / threads <= most:
            launches.append(launch)
    return launches


def _block_elements(launch: Launch, block_channels: int) -> int:
    if 'tokens' in launch:
        return block_channels * launch['tokens']
    return block_channels * launch['rows'] * launch['columns']


def estimate(binary: Binary, launch: Launch, block_channels: int, gpu: Any) -> float:
    """Return the cost of an element in arbitrary units; infinity if the kernel does not fit.

    It counts instructions, spilled registers, and too few warps to hide latency. The order of close
    estimates means nothing.
    """
    resident_warps = resident_programs(binary, gpu) * binary.warps
    if resident_warps == 0:
        return math.inf
    threads = 32 * binary.warps
    instructions = binary.instructions * threads / _block_elements(launch, block_channels)
    spilling = 1 + SPILL_COST * binary.spilled
    waiting = max(1.0, WARPS_TO_HIDE_LATENCY / resident_warps)
    return instructions * spilling * waiting
