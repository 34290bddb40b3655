"""Launch configuration: block sizes, warps, stages, and the split of tokens over programs, by pass and head dimension.

Nothing is tuned at run time, and nothing here has been timed: the kernels have not run on a GPU yet. A launch table
that `python -m benchmarks.gpu` measured on a GPU takes precedence (tables.py).
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mmpola.ops.triton.tables import Key, kept_per_table, launch_table


class SmallTensors(NamedTuple):
    """The tensors of an attention call other than q, k and v, contiguous and of any floating-point dtype.

    `exponent` (a PowerMap) or `same` and `opposite` (an ExpMap) are given; the others may be None.
    """

    key_position: Tensor | None  # [M, H, D]
    exponent: Tensor | None  # [H, D]
    scale: Tensor | None  # [H, D]
    same: Tensor | None  # [H, 2D]
    opposite: Tensor | None  # [H, 2D]
    cos: Tensor | None  # [N, 2D]
    sin: Tensor | None  # [N, 2D]

    @property
    def kind(self) -> str:
        """The feature map by its name in LAUNCHES."""
        return 'power' if self.exponent is not None else 'exp' if self.cos is None else 'rotary'


LARGEST_TOKEN_STRIDE = 2**22
"""Largest number of elements between two tokens: offsets inside four blocks of up to 128 tokens are 32-bit."""


def as_tokens(x: Tensor) -> Tensor:
    """Return x [B, N, H, D], or a contiguous copy if the stride of D is not 1 or that of N is too large."""
    return x if x.stride(3) == 1 and x.stride(1) < LARGEST_TOKEN_STRIDE else x.contiguous()


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
    waves: int


# By kernel and feature map, then by BD, the head dimension rounded up to a power of two. Chosen by compiling without a
# GPU and reading instructions, registers and spills from the machine code, not by time; `waves` is the number of
# programs whose registers and shared memory fit on a multiprocessor.
LAUNCHES: dict[tuple[str, str], dict[int, Launch]] = {
    ('state', 'power'): {
        16: Launch(32, 1, 3, 16), 32: Launch(32, 2, 3, 6), 64: Launch(16, 4, 3, 3),
    },
    ('output', 'power'): {
        16: Launch(16, 1, 3, 16), 32: Launch(16, 1, 3, 16), 64: Launch(64, 4, 2, 2),
    },
    ('query_gradient', 'power'): {
        16: Launch(16, 1, 2, 12), 32: Launch(16, 2, 3, 4), 64: Launch(16, 4, 3, 2),
    },
    ('key_gradient', 'power'): {
        16: Launch(16, 1, 2, 12), 32: Launch(16, 1, 3, 8), 64: Launch(32, 4, 2, 2),
    },
    ('state', 'exp'): {
        16: Launch(32, 1, 3, 12), 32: Launch(16, 1, 3, 8), 64: Launch(32, 4, 3, 2),
    },
    ('output', 'exp'): {
        16: Launch(16, 1, 3, 16), 32: Launch(16, 1, 3, 12), 64: Launch(32, 2, 1, 6),
    },
    ('query_gradient', 'exp'): {
        16: Launch(16, 1, 2, 8), 32: Launch(32, 2, 2, 4), 64: Launch(32, 4, 2, 2),
    },
    ('key_gradient', 'exp'): {
        16: Launch(16, 1, 2, 16), 32: Launch(32, 2, 3, 6), 64: Launch(32, 4, 3, 2),
    },
    # Blocks of rotary tables are loaded ahead too, and take four times the shared memory of those of k and v.
    ('state', 'rotary'): {
        16: Launch(16, 1, 3, 16), 32: Launch(16, 1, 3, 8), 64: Launch(16, 2, 2, 4),
    },
    ('output', 'rotary'): {
        16: Launch(16, 1, 3, 16), 32: Launch(16, 1, 3, 8), 64: Launch(16, 2, 2, 4),
    },
    ('query_gradient', 'rotary'): {
        16: Launch(16, 1, 2, 8), 32: Launch(32, 2, 2, 4), 64: Launch(32, 4, 2, 2),
    },
    ('key_gradient', 'rotary'): {
        16: Launch(16, 1, 3, 14), 32: Launch(32, 2, 2, 6), 64: Launch(16, 4, 2, 2),
    },
}  # fmt: skip


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
# thread, so that two or more programs of half-precision inputs fit on a multiprocessor; 8 in the kernel of the taps,
# which keeps k + 1 sums.
TILES: dict[str, dict[int, Tile]] = {
    'mix_and_gate': {16: Tile(8, 16, 4), 32: Tile(8, 8, 4)},
    'mix_and_gate_gradient': {16: Tile(8, 16, 4), 32: Tile(8, 8, 4)},
    'mix_and_gate_taps': {16: Tile(8, 8, 4), 32: Tile(4, 8, 4)},
}

TAPS_WAVES = 4
"""Programs per multiprocessor of the kernel that adds the gradients of the taps; each writes one part."""

LARGE_TENSOR = 4 * 2**20
"""Bytes of a token tensor from which partial states may take LARGEST_SHARE[True] of the memory traffic."""

LARGEST_SHARE = {False: 0.5, True: 0.15}
"""Bytes of partial states, written and read, over those of four token tensors: of small tensors, and of large ones."""

INTERPRETED_PROCESSORS = 2
"""Number of multiprocessors in Triton's interpreter, so that tests also cover the split over the sequence."""


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
    measured = launch_table(device).get(Key.of(name, kind, dtype, block))
    return Launch(**measured) if measured else LAUNCHES[name, kind][block]


def plan_tokens(name: str, x: Tensor, kind: str) -> Plan:
    """Split the tokens of x [B, N, H, D] over programs for the pass `name` of a feature map.

    B * H is on the grid's first axis, whose limit is 2^31 - 1; the second axis, limited to 65,535, holds the chunks.
    """
    return _plan_tokens(name, kind, x.shape, x.dtype, x.device, product_precision(x.dtype))


@kept_per_table
def _plan_tokens(
    name: str, kind: str, shape: torch.Size, dtype: torch.dtype, device: torch.device, precision: str
) -> Plan:
    batch, tokens, heads, dim = shape
    rows, block = batch * heads, max(16, _next_power_of_2(dim))
    launch, processors = find_launch(name, kind, dtype, block, device), _processors(device)
    chunks = launch.waves * processors // max(1, rows)
    if name in ('state', 'query_gradient'):
        chunks = min(chunks, _affordable_chunks(tokens, dim, dtype.itemsize, rows, processors))
    tokens_per_chunk = -(-tokens // (max(1, chunks) * launch.tokens)) * launch.tokens
    options = {
        'D': dim,
        'BN': launch.tokens,
        'BD': block,
        'PRECISION': precision,
        'num_warps': launch.warps,
        'num_stages': launch.stages,
    }
    if kind != 'power':
        options['BC'] = max(16, _next_power_of_2(dim // 2))  # channels of one value stream; products need at least 16
    return Plan((rows, -(-tokens // max(1, tokens_per_chunk))), tokens_per_chunk, options)


def _affordable_chunks(tokens: int, dim: int, itemsize: int, rows: int, processors: int) -> int:
    """Return how many chunks may share a head, each with a partial state [2D, D + 1], within LARGEST_SHARE."""
    states_per_share = 4 * tokens * dim * itemsize / (2 * 4 * 2 * dim * (dim + 1))
    small, large = (int(share * states_per_share) for share in LARGEST_SHARE.values())
    if rows * tokens * dim * itemsize < LARGE_TENSOR:
        return small
    # A program for every multiprocessor comes first, because idle ones cost more than partial states.
    return max(large, min(small, processors // rows))


@cache
def combine_options(dim: int) -> dict[str, int]:
    """Return the options of `combine_states_kernel`: 8 rows of the states of 8 chunks at a time."""
    return {'D': dim, 'BP': 8, 'BR': 8, 'BD': max(16, _next_power_of_2(dim)), 'num_warps': 4}


@cache
def sum_options(dim: int) -> dict[str, int]:
    """Return the options of the kernels that add the parts of the parameters: 16 channels of 128 parts at a time."""
    return {'D': dim, 'BP': 128, 'BW': 16, 'num_warps': 4}


@dataclass(frozen=True)
class TilePlan:
    """One pass over token grids: programs, tiles of all samples, and the kernel's compile-time options."""

    programs: int
    tiles: int
    options: dict[str, Any]


@kept_per_table
def find_tile(name: str, dtype: torch.dtype, block: int, device: torch.device) -> Tile:
    """Return the launch of a kernel of `mix_and_gate`: that of the device's launch table, else that of TILES."""
    measured = launch_table(device).get(Key.of(name, 'any', dtype, block))
    return Tile(**measured) if measured else TILES[name][block]


@kept_per_table
def plan_tiles(
    name: str,
    shape: torch.Size,
    dtype: torch.dtype,
    device: torch.device,
    grid: tuple[int, int],
    window: tuple[int, int],
) -> TilePlan:
    """Split the token grids of a tensor of shape [B, N, H, D] over programs for the pass `name` of a KR x KW window.

    A window of one row, as for a sequence, gets tiles of one row.
    """
    batch, _, heads, dim = shape
    launches = TILES[name]
    block = min(max(launches), max(min(launches), _next_power_of_2(dim)))
    launch = find_tile(name, dtype, block, device)
    rows, columns = launch.rows, launch.columns
    if window[0] == 1:
        rows, columns = 1, rows * columns
    tiles = batch * -(-grid[0] // rows) * -(-grid[1] // columns)
    options = {
        'D': dim,
        'KR': window[0],
        'KW': window[1],
        'BR': rows,
        'BW': columns,
        'BD': block,
        'num_warps': launch.warps,
    }
    return TilePlan(tiles * heads * -(-dim // block), tiles, options)


def split_tiles(tiles: int, columns: int, device: torch.device) -> tuple[int, int]:
    """Return how many programs share the tiles of one of the `columns` of a grid, and how many tiles each takes."""
    programs = max(1, TAPS_WAVES * _processors(device) // max(1, columns))
    tiles_each = max(1, -(-tiles // programs))
    return -(-tiles // tiles_each), tiles_each


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
    if x.is_cuda and x.device.index != torch.cuda.current_device():
        return torch.cuda.device(x.device)
    return nullcontext()


def _processors(device: torch.device) -> int:
    if device.type != 'cuda':
        return INTERPRETED_PROCESSORS
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def _next_power_of_2(n: int) -> int:
    return 1 << (n - 1).bit_length()
