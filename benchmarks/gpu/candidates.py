"""Which launches of a kernel are tried, and their rank on paper, from what the compiler says about each."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch

from benchmarks.gpu.launches import Binary
from mmpola.ops.triton.launch import LARGEST_SHARE

Launch = dict[str, int]

ELEMENTS_PER_THREAD = (8, 32)
"""Of one block: with fewer, work per block is not worth its overhead; with more, registers are spilled."""

WARPS_TO_HIDE_LATENCY = 12
"""Resident warps per multiprocessor from which on more of them gain little."""

SPILL_COST = 1 / 128
"""Additional cost per spilled byte and thread: 128 bytes double the estimate."""


@dataclass(frozen=True)
class Hardware:
    """What limits the programs that reside on a multiprocessor.

    Args:
        registers, threads, shared: of a multiprocessor; shared memory in bytes.
        shared_per_program: largest shared memory of one program.
    """

    registers: int
    threads: int
    shared: int
    shared_per_program: int

    @classmethod
    def of(cls, device: torch.device) -> Hardware:
        """Read the limits of a GPU; for the dry run those of an H100."""
        if device.type != 'cuda':
            return cls(2**16, 2048, 228 * 1024, 227 * 1024)
        found: Any = torch.cuda.get_device_properties(device)  # torch's annotations lack some of them
        return cls(
            found.regs_per_multiprocessor,
            found.max_threads_per_multi_processor,
            found.shared_memory_per_multiprocessor,
            found.shared_memory_per_block_optin,
        )

    def resident_programs(self, binary: Binary) -> int:
        """Return how many programs of a kernel fit on a multiprocessor."""
        if binary.shared > self.shared_per_program:
            return 0
        registers_per_warp = -(-32 * binary.registers // 256) * 256  # the unit of allocation
        return min(
            self.registers // registers_per_warp // binary.warps,
            self.threads // 32 // binary.warps,
            self.shared // (binary.shared + 1024),  # a program reserves 1 KB for the driver
            32,
        )


def attention_launches(block: int, dry_run: bool) -> list[Launch]:
    """Return the launches to try for the kernels of `polarity_attention` with `block` channels.

    `waves` and `share` do not change what is compiled; the tuning replaces them.
    """
    split = {'waves': 1, 'share': LARGEST_SHARE}
    if dry_run:
        return [{'tokens': 16 * n, 'warps': 2 * n, 'stages': 2, **split} for n in (1, 2)]
    return [
        {'tokens': tokens, 'warps': warps, 'stages': stages, **split}
        for tokens, warps, stages in product((16, 32, 64, 128), (1, 2, 4, 8), (2, 3))
        if _fits(tokens * block, warps)
    ]


def tiles(block: int, dry_run: bool) -> list[Launch]:
    """Return the launches to try for the kernels of `mix_and_gate` with `block` channels."""
    if dry_run:
        return [{'rows': 4, 'columns': 8, 'warps': 2}]
    return [
        {'rows': rows, 'columns': columns, 'warps': warps}
        for rows, columns, warps in product((4, 8, 16), (4, 8, 16, 32), (2, 4, 8))
        if _fits(rows * columns * block, warps)
    ]


def _fits(elements: int, warps: int) -> bool:
    least, most = ELEMENTS_PER_THREAD
    return least <= elements / (32 * warps) <= most


def estimate(binary: Binary, launch: Launch, block: int, hardware: Hardware) -> float:
    """Return a cost in arbitrary units: instructions per element, spills, and too few warps to hide latency.

    Infinite if the kernel does not fit. The order of close estimates means nothing.
    """
    resident = hardware.resident_programs(binary) * binary.warps
    if not resident:
        return math.inf
    elements = block * (launch['tokens'] if 'tokens' in launch else launch['rows'] * launch['columns'])
    issued = binary.instructions * 32 * binary.warps / elements
    return issued * (1 + SPILL_COST * binary.spilled) * max(1.0, WARPS_TO_HIDE_LATENCY / resident)
