"""Launch configuration: block sizes, warps, stages, and the split of tokens over programs, by pass and head dimension.

Nothing is tuned at run time, and nothing here has been timed: the kernels have not run on a GPU
yet. A launch table that `python -m benchmarks.gpu` measured on a GPU takes precedence (tables.py).
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mmpola.ops.triton.tables import Key, kept_per_table, launch_table


class SmallTensors(NamedTuple):
    """The tensors of an attention call other than q, k and v, of any floating-point dtype.

    Args:
        key_position: [M, H, D], or None.
        first: the exponent [H, D] of a PowerMap, the temperatures [H, 2D] of an ExpMap's
            same-signed stream.
        second: a PowerMap's scale [H, D] or None, the temperatures [H, 2D] of an ExpMap's
            opposite-signed stream.
        cos, sin: rotary tables [N, 2D] of an ExpMap, or None.
    """

    key_position: Tensor | None
    first: Tensor
    second: Tensor | None
    cos: Tensor | None
    sin: Tensor | None

    @classmethod
    def contiguous(cls, *tensors: Any) -> SmallTensors:
        """Return the tensors, or contiguous copies of those that are not."""
        return cls(*(x if x is None or x.is_contiguous() else x.contiguous() for x in tensors))

    def is_power(self, dim: int) -> bool:
        """Whether the feature map is a PowerMap; `dim` is D."""
        return self.first.shape[1] == dim

    def kind(self, dim: int) -> str:
        """The feature map by its name in HALF_LAUNCHES."""
        return 'power' if self.is_power(dim) else 'exp' if self.cos is None else 'rotary'


FUSED: dict[str, Any] = {'enable_fp_fusion': True}
"""Options of every launch: fused multiply-adds, which Triton 3.10 leaves out unless it is asked for them."""

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
        share: of a kernel that writes partial states: the most that these may take of the memory
            traffic, written and read, in percent of four token tensors.
    """

    tokens: int
    warps: int
    stages: int
    waves: int
    share: int


LARGEST_SHARE = 50
"""`share` without a launch table: so large that programs fill the GPU at the shapes of the published models."""

BLOCKS = (16, 32, 64)
"""BD, the channels of a program: the head dimension rounded up to a power of two."""

# By kernel and feature map: tokens, warps, stages and waves for each of BLOCKS. Chosen by compiling
# for sm_90 without a GPU with Triton 3.6, and reading instructions, registers and spills from the
# machine code, not by time; `waves` is the number of programs whose registers and shared memory fit
# on a multiprocessor.
Rows = tuple[tuple[int, int, int, int], ...]
HALF_LAUNCHES: dict[tuple[str, str], Rows] = {
    ('state', 'power'): ((32, 1, 3, 16), (32, 2, 3, 6), (16, 4, 3, 3)),
    ('output', 'power'): ((16, 1, 3, 16), (16, 1, 3, 12), (64, 4, 3, 2)),
    ('query_gradient', 'power'): ((16, 1, 2, 12), (16, 2, 3, 4), (16, 4, 3, 2)),
    ('key_gradient', 'power'): ((16, 1, 2, 12), (16, 1, 3, 8), (32, 4, 2, 2)),
    ('state', 'exp'): ((32, 1, 3, 12), (16, 1, 3, 8), (32, 4, 3, 2)),
    ('output', 'exp'): ((16, 1, 3, 16), (16, 1, 3, 12), (32, 2, 1, 6)),
    ('query_gradient', 'exp'): ((16, 1, 2, 8), (32, 2, 2, 4), (32, 4, 2, 2)),
    ('key_gradient', 'exp'): ((16, 1, 2, 16), (32, 2, 3, 6), (32, 4, 3, 2)),
    # Blocks of rotary tables are loaded ahead too, and take four times the shared memory of those
    # of k and v.
    ('state', 'rotary'): ((16, 1, 3, 16), (16, 1, 3, 8), (16, 2, 2, 4)),
    ('output', 'rotary'): ((16, 1, 3, 16), (16, 1, 3, 8), (16, 2, 2, 4)),
    ('query_gradient', 'rotary'): ((16, 1, 2, 8), (32, 2, 2, 4), (32, 4, 2, 2)),
    ('key_gradient', 'rotary'): ((16, 1, 3, 14), (32, 2, 2, 6), (16, 4, 2, 2)),
}
# Products in full precision keep their factors in registers. Launches without any spills exist,
# with eight warps, but spend more on shared memory than these do on spills.
FULL_PRECISION_LAUNCHES: dict[tuple[str, str], Rows] = {
    **HALF_LAUNCHES,
    ('state', 'power'): ((32, 1, 3, 16), (16, 2, 2, 6), (16, 4, 3, 2)),
    ('output', 'power'): ((16, 1, 3, 16), (16, 1, 3, 12), (32, 4, 2, 2)),
    ('query_gradient', 'power'): ((16, 1, 2, 12), (16, 2, 2, 4), (16, 4, 3, 2)),
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


# Rows, columns and warps for the first of BLOCKS; a wider head takes several programs. Chosen like
# the launches above. Of float32, which takes twice the registers, a tile has half the rows.
TILES = {'mix_and_gate': ((8, 16, 1), (8, 8, 1)), 'mix_and_gate_taps': ((8, 16, 1), (8, 8, 1))}

TAPS_WAVES = 12
"""Programs per multiprocessor of the kernel that adds the gradients of the taps; each writes one part."""

INTERPRETED_PROCESSORS = 2
"""Number of multiprocessors in Triton's interpreter, so that tests also cover the split over the sequence."""


@dataclass(frozen=True)
class Plan:
    """One pass over a sequence: the grid (B * H, chunks), tokens per chunk, and the kernel's compile-time options."""

    grid: tuple[int, int]
    tokens: int
    options: dict[str, Any]


@kept_per_table
def find_launch(
    name: str,
    kind: str,
    dtype: torch.dtype,
    block: int,
    device: torch.device,
    precision: str = 'ieee',
) -> Launch:
    """Return the launch of an attention kernel for a feature map ('power', 'exp' or 'rotary'), dtype, BD and device.

    It is that of the device's launch table, else that of this module. Of float32 inputs, tables
    have products in full precision; those in tf32 are launched like half inputs.
    """
    is_full = dtype == torch.float32 and precision == 'ieee'
    measured = launch_table(device).get(Key.of(name, kind, dtype, block))
    if measured and (is_full or dtype != torch.float32):
        return Launch(**measured)
    rows = (FULL_PRECISION_LAUNCHES if is_full else HALF_LAUNCHES)[name, kind]
    return Launch(*rows[BLOCKS.index(block)], share=LARGEST_SHARE)


def plan_tokens(name: str, x: Tensor, kind: str) -> Plan:
    """Split the tokens of x [B, N, H, D] over programs for the pass `name` of a feature map.

    B * H is on the grid's first axis, whose limit is 2^31 - 1; the second axis, limited to 65,535,
    holds the chunks.
    """
    return _plan_tokens(name, kind, x.shape, x.dtype, x.device, product_precision(x.dtype))


@kept_per_table
def _plan_tokens(
    name: str,
    kind: str,
    shape: torch.Size,
    dtype: torch.dtype,
    device: torch.device,
    precision: str,
) -> Plan:
    batch, tokens, heads, dim = shape
    rows, block = batch * heads, block_of(dim)
    launch, processors = (
        find_launch(name, kind, dtype, block, device, precision),
        processors_of(device),
    )
    most = -(-tokens // launch.tokens)
    if name in (
        'state',
        'query_gradient',
    ):  # each chunk has a partial state [2D, D + 1], written and read
        states = 4 * tokens * dim * dtype.itemsize / (2 * 4 * 2 * dim * (dim + 1))
        most = min(most, int(launch.share / 100 * states))
    chunks = _chunks(rows, launch.waves * processors, most)
    tokens_per_chunk = -(-tokens // (chunks * launch.tokens)) * launch.tokens
    options = {
        'D': dim,
        'BN': launch.tokens,
        'BD': block,
        'PRECISION': precision,
        'num_warps': launch.warps,
        'num_stages': launch.stages,
        **FUSED,
    }
    if kind != 'power':
        options['BC'] = block_of(dim // 2)  # channels of one value stream
    return Plan((rows, -(-tokens // max(1, tokens_per_chunk))), tokens_per_chunk, options)


GOOD_USE = (9, 10)
"""Share of the GPU's slots, a fraction, from which on more programs are not worth their partial states."""


def _chunks(rows: int, slots: int, most: int) -> int:
    """Return how many programs share a row, at most `most`: about as many as there are slots on the GPU, or more.

    Programs run in rounds of `slots`. Avoid a last round that is nearly empty: the GPU would idle
    for most of it.
    """
    rows = max(1, rows)
    first = max(1, min(most, slots // rows))
    last = max(first, min(most, 4 * first + 4))
    good = GOOD_USE[0] / GOOD_USE[1]

    def used(chunks: int) -> float:
        return rows * chunks / (slots * -(-rows * chunks // slots))

    return max(useful_splits(rows, slots, first, last), key=lambda chunks: min(used(chunks), good))


def useful_splits(rows: int, slots: int, first: int, last: int) -> list[int]:
    """Return the numbers of chunks, from `first` to `last`, that can make the best use of their rounds, ascending.

    In each number of rounds these are the smallest one with a use of `GOOD_USE` and the largest
    one.
    """
    part, whole = GOOD_USE
    found = {first}
    for rounds in range(-(-rows * first // slots), -(-rows * last // slots) + 1):
        largest = min(last, slots * rounds // rows)
        enough = -(-part * slots * rounds // (whole * rows))
        found.update(chunks for chunks in (enough, largest) if first <= chunks <= largest)
    return sorted(found)


@kept_per_table
def find_tile(name: str, dtype: torch.dtype, block: int, device: torch.device) -> Tile:
    """Return the launch of a kernel of `mix_and_gate`: that of the device's launch table, else that of TILES."""
    measured = launch_table(device).get(Key.of(name, 'any', dtype, block))
    rows, columns, warps = TILES[name][BLOCKS.index(block)]
    return Tile(**measured) if measured else Tile(2 * rows // dtype.itemsize, columns, warps)


@kept_per_table
def plan_tiles(
    name: str,
    shape: torch.Size,
    dtype: torch.dtype,
    device: torch.device,
    grid: tuple[int, int],
    window: tuple[int, int],
) -> tuple[int, int, dict[str, Any]]:
    """Split the token grids of a tensor of shape [B, N, H, D] over programs for the pass `name` of a KR x KW window.

    A window of one row, as for a sequence, gets tiles of one row.

    Returns:
        The number of tiles in all samples, that of channel blocks in all heads, and the kernel's
        compile-time options.
    """
    batch, _, heads, dim = shape
    block = BLOCKS[0] if dim <= BLOCKS[0] else BLOCKS[1]
    launch = find_tile(name, dtype, block, device)
    rows, columns, warps = launch.rows, launch.columns, launch.warps
    if window[0] == 1:
        rows, columns, warps = 1, rows * columns, min(4, rows * warps)
    tiles = batch * -(-grid[0] // rows) * -(-grid[1] // columns)
    options = {
        'D': dim,
        'KR': window[0],
        'KW': window[1],
        'BR': rows,
        'BW': columns,
        'BD': block,
        'num_warps': warps,
        **FUSED,
    }
    return tiles, heads * -(-dim // block), options


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


def processors_of(device: torch.device) -> int:
    """Return the number of multiprocessors of a device."""
    if device.type != 'cuda':
        return INTERPRETED_PROCESSORS
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def block_of(dim: int) -> int:
    """Return the block that holds so many channels, a power of two; products need at least 16."""
    return max(16, 1 << (dim - 1).bit_length())
