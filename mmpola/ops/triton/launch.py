"""Launch configuration: block sizes, warps, stages, and the split of tokens over programs, by pass and head dimension.

Nothing is tuned at run time, and nothing here has been timed: the kernels have not run on a GPU yet. A launch table
that `python -m benchmarks.gpu` measured on a GPU takes precedence (tables.py).
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from mmpola.ops.triton.tables import Key, kept_per_table, launch_table


@dataclass(frozen=True, eq=False)
class SmallTensors:
    """The tensors of an attention call other than q, k and v.

    `exponent` (a PowerMap) or `same` and `opposite` (an ExpMap) are given; the others may be None.
    """

    key_position: Tensor | None  # [M, H, D], any floating-point dtype
    exponent: Tensor | None  # [H, D], float32 like all below
    scale: Tensor | None  # [H, D]
    same: Tensor | None  # [H, 2D]
    opposite: Tensor | None  # [H, 2D]
    cos: Tensor | None  # [N, 2D]
    sin: Tensor | None  # [N, 2D]

    def contiguous(self) -> SmallTensors:
        """Return the same tensors, contiguous."""
        tensors = [getattr(self, field.name) for field in fields(self)]
        return SmallTensors(*(None if x is None else x.contiguous() for x in tensors))


LARGEST_TOKEN_STRIDE = 2**23
"""Largest number of elements between two tokens: offsets inside a block of up to 128 tokens are 32-bit."""


def as_tokens(x: Tensor) -> Tensor:
    """Return x [B, N, H, D], or a contiguous copy if the stride of D is not 1 or that of N is too large."""
    return x if x.stride(3) == 1 and x.stride(1) < LARGEST_TOKEN_STRIDE else x.contiguous()


WAVES = 4
"""Programs per multiprocessor: enough to hide the tail of the last wave, few enough for small partial states."""


@dataclass(frozen=True)
class Launch:
    """Launch configuration of an attention kernel.

    Args:
        tokens: BN, tokens per block.
        warps: warps per program.
        stages: blocks in flight, loaded ahead of use.
        waves: programs per multiprocessor.
    """

    tokens: int
    warps: int
    stages: int
    waves: int = WAVES


# By BD, the head dimension rounded up to a power of two. Chosen by compiling without a GPU and reading the resources
# that ptxas reports (tests/ops/test_triton_compilation.py), not by time: the largest block of at least 16 tokens that
# spills few or no registers on sm_90. In float16 the query gradient of an ExpMap spills 232 bytes per thread at BD = 64
# (424 with rotary tables) and 648 (808) at 128, that of a PowerMap 0 and 280.
LAUNCHES: dict[str, dict[int, Launch]] = {
    'state': {16: Launch(64, 4, 3), 32: Launch(64, 4, 3), 64: Launch(32, 4, 3), 128: Launch(16, 8, 2)},
    'output': {16: Launch(64, 4, 3), 32: Launch(64, 4, 3), 64: Launch(32, 8, 2), 128: Launch(16, 8, 1)},
    'query_gradient': {16: Launch(16, 4, 2), 32: Launch(16, 4, 2), 64: Launch(32, 8, 2), 128: Launch(16, 8, 1)},
    'key_gradient': {16: Launch(64, 4, 2), 32: Launch(64, 8, 2), 64: Launch(32, 8, 2), 128: Launch(16, 8, 1)},
}


@dataclass(frozen=True)
class Tile:
    """Launch configuration of a kernel of `mix_and_gate`.

    Args:
        rows: BR, rows of the token grid per tile.
        columns: BW, columns of the token grid per tile.
        warps: warps per program.
    """

    rows: int
    columns: int
    warps: int


# By BD, the channels of a program; a wider head takes several programs. Chosen like the launches above: 16 elements per
# thread, so that two or more programs of half-precision inputs fit on a multiprocessor (32 spill in the gradient). Each
# tile of the gradient writes k² + 1 floats per channel, so its tiles are larger.
TILES: dict[str, dict[int, Tile]] = {
    'mix_and_gate': {16: Tile(8, 16, 4), 32: Tile(8, 8, 4)},
    'mix_and_gate_gradient': {16: Tile(8, 16, 4), 32: Tile(8, 16, 8)},
}

ONE_PRODUCT_STATE = 128
"""From this BD on, the state's gradient fits into shared memory for one product only: see `launch_key_gradient`."""

INTERPRETED_PROGRAMS = 12
"""Target number of programs in Triton's interpreter, so that tests also cover the split over the sequence."""


@dataclass(frozen=True)
class Plan:
    """One pass over a sequence: the grid (B * H, chunks), tokens per chunk, and the kernel's compile-time options."""

    grid: tuple[int, int]
    tokens: int
    options: dict[str, Any]

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to launch."""
        return 0 in self.grid


@kept_per_table
def find_launch(name: str, kind: str, dtype: torch.dtype, block: int, device: torch.device) -> Launch:
    """Return the launch of an attention kernel for a feature map ('power', 'exp' or 'rotary'), dtype, BD and device.

    It is that of the device's launch table, else that of LAUNCHES.
    """
    if measured := launch_table(device).launches.get(Key.of(name, kind, dtype, block)):
        return Launch(**measured)
    launch = LAUNCHES[name][block]
    # Four tiles of rotary tables, loaded ahead, would fill the shared memory.
    return replace(launch, stages=1) if kind == 'rotary' else launch


def plan_tokens(name: str, x: Tensor, small: SmallTensors) -> Plan:
    """Split the tokens of x [B, N, H, D] over programs for the pass `name`.

    B * H is on the grid's first axis, whose limit is 2^31 - 1; the second axis, limited to 65,535, holds the chunks.
    """
    batch, tokens, heads, dim = x.shape
    block = max(16, _next_power_of_2(dim))
    kind = 'power' if small.exponent is not None else 'exp' if small.cos is None else 'rotary'
    launch = find_launch(name, kind, x.dtype, block, x.device)
    blocks = -(-tokens // launch.tokens)
    chunks_wanted = -(-_programs(x.device, launch.waves) // max(1, batch * heads))
    tokens_per_chunk = max(1, -(-blocks // chunks_wanted)) * launch.tokens
    chunks = -(-tokens // tokens_per_chunk)
    options = {
        'D': dim,
        'BN': launch.tokens,
        'BD': block,
        'BC': max(16, _next_power_of_2(dim // 2)),  # channels of one value stream; products need at least 16
        'PRECISION': product_precision(x.dtype),
        'num_warps': launch.warps,
        'num_stages': launch.stages,
    }
    return Plan((batch * heads, chunks), tokens_per_chunk, options)


@dataclass(frozen=True)
class TilePlan:
    """One pass over token grids: programs, tiles of all samples, and the kernel's compile-time options."""

    programs: int
    tiles: int
    options: dict[str, Any]


@kept_per_table
def find_tile(name: str, dtype: torch.dtype, block: int, device: torch.device) -> Tile:
    """Return the launch of a kernel of `mix_and_gate`: that of the device's launch table, else that of TILES."""
    measured = launch_table(device).launches.get(Key.of(name, 'any', dtype, block))
    return Tile(**measured) if measured else TILES[name][block]


def plan_tiles(name: str, x: Tensor, grid: tuple[int, int], taps: Tensor) -> TilePlan:
    """Split the token grids of x [B, N, H, D] over programs for the pass `name`; taps [KR, KW, D or C].

    A window of one row, as for a sequence, gets tiles of one row.
    """
    batch, _, heads, dim = x.shape
    launches = TILES[name]
    block = min(max(launches), max(min(launches), _next_power_of_2(dim)))
    launch = find_tile(name, x.dtype, block, x.device)
    rows, columns = launch.rows, launch.columns
    if taps.shape[0] == 1:
        rows, columns = 1, rows * columns
    tiles = batch * -(-grid[0] // rows) * -(-grid[1] // columns)
    options = {
        'D': dim,
        'KR': taps.shape[0],
        'KW': taps.shape[1],
        'BR': rows,
        'BW': columns,
        'BD': block,
        'num_warps': launch.warps,
    }
    return TilePlan(tiles * heads * -(-dim // block), tiles, options)


def product_precision(dtype: torch.dtype) -> str:
    """Return 'tf32' or 'ieee': half inputs fit into tf32's 11 bits of mantissa, float32 follows torch's switch."""
    if dtype != torch.float32:
        return 'tf32'
    matmul = torch.backends.cuda.matmul
    if hasattr(matmul, 'fp32_precision'):  # torch >= 2.9, where reading the old switch may raise
        return 'tf32' if matmul.fp32_precision == 'tf32' else 'ieee'
    return 'tf32' if matmul.allow_tf32 else 'ieee'


def on_device_of(x: Tensor) -> AbstractContextManager[Any]:
    """Make x's device the current one, on which Triton launches."""
    return torch.cuda.device(x.device) if x.is_cuda else nullcontext()


def _programs(device: torch.device, waves: int) -> int:
    if device.type != 'cuda':
        return INTERPRETED_PROGRAMS
    return waves * int(torch.cuda.get_device_properties(device).multi_processor_count)


def _next_power_of_2(n: int) -> int:
    return 1 << (n - 1).bit_length()
