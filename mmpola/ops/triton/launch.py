"""The launch table: block sizes, warps and stages by pass and head dimension, and how tokens are dealt to programs.

Nothing is tuned at run time, and nothing here is timed: no GPU has run these kernels yet.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mmpola.ops.triton.tensors import Parameters


@dataclass(frozen=True)
class Launch:
    """How one kernel is launched.

    Args:
        tokens: BN, tokens of a block.
        warps: warps of a program.
        stages: blocks in flight, loaded ahead of their turn.
    """

    tokens: int
    warps: int
    stages: int


# By BD, the head dimension rounded up to a power of two. Chosen by compiling without a GPU and reading what ptxas says
# (tests/ops/triton_compilation.py), not by time: the largest block of at least 16 tokens that spills few or
# no registers on sm_90. The query gradient of an ExpMap spills 232 bytes a thread at BD = 64 (424 with rotary tables)
# and 648 (816) at 128, that of a PowerMap 0 and 400.
LAUNCHES: dict[str, dict[int, Launch]] = {
    'state': {16: Launch(64, 4, 3), 32: Launch(64, 4, 3), 64: Launch(32, 4, 3), 128: Launch(16, 8, 2)},
    'output': {16: Launch(64, 4, 3), 32: Launch(64, 4, 3), 64: Launch(32, 8, 2), 128: Launch(16, 8, 1)},
    'query_gradient': {16: Launch(16, 4, 2), 32: Launch(16, 4, 2), 64: Launch(32, 8, 2), 128: Launch(16, 8, 1)},
    'key_gradient': {16: Launch(64, 4, 2), 32: Launch(64, 8, 2), 64: Launch(32, 8, 2), 128: Launch(16, 8, 1)},
}


@dataclass(frozen=True)
class Tile:
    """How a kernel of the epilogue is launched.

    Args:
        rows: BR, rows of the token grid in a tile.
        columns: BW, columns of the token grid in a tile.
        warps: warps of a program.
    """

    rows: int
    columns: int
    warps: int


# By BD, the channels of a program; a wider head takes several. Chosen as the launches above: 16 elements a thread, so
# that two or more programs of half inputs fit on a multiprocessor (32 spill in the gradient). Each tile of the gradient
# writes k² + 1 floats per channel, so its tiles are the larger ones.
TILES: dict[str, dict[int, Tile]] = {
    'mix': {16: Tile(8, 16, 4), 32: Tile(8, 8, 4)},
    'mix_gradient': {16: Tile(8, 16, 4), 32: Tile(8, 16, 8)},
}

WAVES = 4
"""Programs per multiprocessor: enough to hide the last one's tail, few enough that the partial states stay small."""

ONE_PRODUCT_STATE = 128
"""From this BD on, the state fits into shared memory for one kind of product only: see `key_gradient`."""

INTERPRETED_PROGRAMS = 12
"""Programs aimed at in Triton's interpreter, so that the split over the sequence is exercised there too."""


@dataclass(frozen=True)
class Plan:
    """One pass over a sequence: the grid [B * H, chunks], tokens of a chunk, and what the kernel is compiled for."""

    grid: tuple[int, int]
    tokens: int
    options: dict[str, Any]

    @property
    def chunks(self) -> int:
        return self.grid[1]

    @property
    def is_empty(self) -> bool:
        return 0 in self.grid


def plan(name: str, x: Tensor, parameters: Parameters) -> Plan:
    """Deal the tokens of x [B, N, H, D] to programs for the pass `name`.

    B * H stands on the grid's first axis, whose limit is 2^31 - 1; the chunks on the second stay below a few hundred.
    """
    batch, tokens, heads, dim = x.shape
    block = max(16, _next_power_of_2(dim))
    launch = LAUNCHES[name][block]
    blocks = -(-tokens // launch.tokens)
    chunks_wanted = -(-_programs(x.device) // max(1, batch * heads))
    tokens_per_chunk = max(1, -(-blocks // chunks_wanted)) * launch.tokens
    chunks = -(-tokens // tokens_per_chunk)
    options = {
        'D': dim,
        'BN': launch.tokens,
        'BD': block,
        'BC': max(16, _next_power_of_2(dim // 2)),  # channels of one value stream; a product needs 16 on each side
        'PRECISION': product_precision(x.dtype),
        'num_warps': launch.warps,
        'num_stages': 1
        if parameters.cos is not None
        else launch.stages,  # four table tiles ahead fill the shared memory
    }
    return Plan((batch * heads, chunks), tokens_per_chunk, options)


@dataclass(frozen=True)
class TilePlan:
    """One pass over token grids: programs, the tiles of all samples, and what the kernel is compiled for."""

    programs: int
    tiles: int
    options: dict[str, Any]


def plan_tiles(name: str, x: Tensor, grid: tuple[int, int], taps: Tensor) -> TilePlan:
    """Deal the grids of x [B, N, H, D] to programs for the pass `name`; taps [k², D or C]."""
    batch, _, heads, dim = x.shape
    launches = TILES[name]
    block = min(max(launches), max(min(launches), _next_power_of_2(dim)))
    launch = launches[block]
    tiles = batch * -(-grid[0] // launch.rows) * -(-grid[1] // launch.columns)
    options = {
        'D': dim,
        'K': math.isqrt(taps.shape[0]),
        'BR': launch.rows,
        'BW': launch.columns,
        'BD': block,
        'num_warps': launch.warps,
    }
    return TilePlan(tiles * heads * -(-dim // block), tiles, options)


def product_precision(dtype: torch.dtype) -> str:
    """'tf32' or 'ieee'. Half inputs carry at most the 11 bits that tf32 keeps; float32 inputs follow torch's switch."""
    if dtype != torch.float32:
        return 'tf32'
    matmul = torch.backends.cuda.matmul
    if hasattr(matmul, 'fp32_precision'):  # torch >= 2.9, where the old switch may refuse to be read
        return 'tf32' if matmul.fp32_precision == 'tf32' else 'ieee'
    return 'tf32' if matmul.allow_tf32 else 'ieee'


def on_device_of(x: Tensor) -> AbstractContextManager[Any]:
    """Triton launches on the current device: make it x's."""
    return torch.cuda.device(x.device) if x.is_cuda else nullcontext()


def _programs(device: torch.device) -> int:
    if device.type != 'cuda':
        return INTERPRETED_PROGRAMS
    return WAVES * int(torch.cuda.get_device_properties(device).multi_processor_count)


def _next_power_of_2(n: int) -> int:
    return 1 << (n - 1).bit_length()
