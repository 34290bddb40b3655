"""Launch configuration by pass and head dimension: blocks, warps, stages, programs.

Nothing is tuned at run time, and nothing here has been timed: the kernels have not run on a GPU
yet. `python -m benchmarks.gpu` times other launches and prints better ones.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor


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


def contiguous(
    key_position: Tensor | None,
    first: Tensor,
    second: Tensor | None,
    cos: Tensor | None,
    sin: Tensor | None,
) -> SmallTensors:
    """Bundle the small tensors; those that are not contiguous are copied."""
    if key_position is not None:
        key_position = key_position.contiguous()
    if second is not None:
        second = second.contiguous()
    if cos is not None and sin is not None:
        cos = cos.contiguous()
        sin = sin.contiguous()
    return SmallTensors(key_position, first.contiguous(), second, cos, sin)


FUSION_OPTIONS: dict[str, Any] = {'enable_fp_fusion': True}
"""Options of every launch: fused multiply-adds, which Triton 3.10 must be asked for."""

LARGEST_TOKEN_STRIDE = 2**22
"""Token strides must be below it: offsets in four blocks of up to 128 tokens are 32-bit."""


def as_tokens(x: Tensor) -> Tensor:
    """Return x [B, N, H, D], or a contiguous copy if the stride of D or N does not serve."""
    if x.stride(3) == 1 and x.stride(1) < LARGEST_TOKEN_STRIDE:
        return x
    return x.contiguous()


def token_strides(x: Tensor) -> tuple[int, int, int]:
    """Return the strides of B, N and H of x [B, N, H, D]."""
    return x.stride(0), x.stride(1), x.stride(2)


def ceil_div(number: int, size: int) -> int:
    """Return number / size, rounded up."""
    return (number + size - 1) // size


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


LARGEST_SHARE = 50
"""How much memory traffic partial states may cause, in percent of that of four token tensors.

It lets the shapes of published models fill a GPU.
"""

BLOCKS = (16, 32, 64)
"""BD, the channels of a program: the head dimension rounded up to a power of two."""

# By kernel and feature map: tokens, warps, stages and waves for each of BLOCKS. Chosen by compiling
# for sm_90 without a GPU with Triton 3.6, and reading instructions, registers and spills from the
# machine code, not by time; `waves` is the number of programs whose registers and shared memory fit
# on a multiprocessor.
LaunchRows = tuple[tuple[int, int, int, int], ...]
HALF_LAUNCHES: dict[tuple[str, str], LaunchRows] = {
    ('state', 'power'): ((32, 1, 3, 16), (32, 2, 3, 6), (16, 4, 3, 3)),
    ('output', 'power'): ((16, 1, 3, 16), (16, 1, 3, 12), (64, 4, 3, 2)),
    ('query_gradient', 'power'): ((16, 1, 2, 12), (16, 2, 3, 4), (16, 4, 3, 2)),
    ('key_gradient', 'power'): ((16, 1, 2, 12), (16, 1, 3, 8), (32, 4, 2, 2)),
    ('state', 'exp'): ((32, 1, 3, 12), (16, 1, 3, 8), (32, 4, 3, 2)),
    ('output', 'exp'): ((16, 1, 3, 16), (16, 1, 3, 12), (32, 2, 1, 6)),
    ('query_gradient', 'exp'): ((16, 1, 2, 8), (32, 2, 2, 4), (32, 4, 2, 2)),
    ('key_gradient', 'exp'): ((16, 1, 2, 16), (32, 2, 3, 6), (32, 4, 3, 2)),
    # Blocks of rotary tables are loaded ahead too; they take four times the shared memory of the
    # blocks of k and v.
    ('state', 'rotary'): ((16, 1, 3, 16), (16, 1, 3, 8), (16, 2, 2, 4)),
    ('output', 'rotary'): ((16, 1, 3, 16), (16, 1, 3, 8), (16, 2, 2, 4)),
    ('query_gradient', 'rotary'): ((16, 1, 2, 8), (32, 2, 2, 4), (32, 4, 2, 2)),
    ('key_gradient', 'rotary'): ((16, 1, 3, 14), (32, 2, 2, 6), (16, 4, 2, 2)),
}
# Products in full precision keep their factors in registers. With eight warps there are launches
# without spills, but they spend more on shared memory than these spend on spills.
FULL_PRECISION_LAUNCHES: dict[tuple[str, str], LaunchRows] = {
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
# the launches above. float32 tiles have half the rows: they need twice the registers.
TILES = {'mix_and_gate': ((8, 16, 1), (8, 8, 1)), 'mix_and_gate_taps': ((8, 16, 1), (8, 8, 1))}

TAPS_WAVES = 12
"""Programs per multiprocessor of the kernel of the taps' gradient; each writes a partial sum."""

INTERPRETED_PROCESSORS = 2
"""Number of multiprocessors in Triton's interpreter, so that tests cover the split of tokens."""


@dataclass(frozen=True)
class Plan:
    """One pass over the tokens.

    Args:
        launch_grid: programs, (B * H, chunks).
        tokens: per chunk.
        options: compile-time options of the kernel.
    """

    launch_grid: tuple[int, int]
    tokens: int
    options: dict[str, Any]


def find_launch(
    name: str, kind: str, dtype: torch.dtype, block: int, precision: str = 'ieee'
) -> Launch:
    """Return the launch of an attention kernel.

    float32 inputs with tf32 products are launched like half inputs.

    Args:
        name: of the pass.
        kind: of the feature map, 'power', 'exp' or 'rotary'.
        dtype: of the tokens.
        block: BD.
        precision: of float32 products, 'ieee' or 'tf32'.
    """
    is_full = dtype == torch.float32 and precision == 'ieee'
    launches = FULL_PRECISION_LAUNCHES if is_full else HALF_LAUNCHES
    tokens, warps, stages, waves = launches[name, kind][BLOCKS.index(block)]
    return Launch(tokens, warps, stages, waves)


def plan_tokens(name: str, x: Tensor, kind: str) -> Plan:
    """Split the tokens of x [B, N, H, D] over programs for the pass `name` of a feature map.

    The launch grid's first axis, limited to 2^31 - 1, has B * H programs; the second, limited to
    65,535, has a program per chunk.
    """
    return _plan_tokens(name, kind, x.shape, x.dtype, x.device, product_precision(x.dtype))


@lru_cache(maxsize=4096)
def _plan_tokens(
    name: str,
    kind: str,
    shape: torch.Size,
    dtype: torch.dtype,
    device: torch.device,
    precision: str,
) -> Plan:
    batch, tokens, heads, dim = shape
    rows = batch * heads
    block = block_of(dim)
    launch = find_launch(name, kind, dtype, block, precision)
    slots = launch.waves * processors_of(device)
    most = ceil_div(tokens, launch.tokens)
    if name in ('state', 'query_gradient'):
        # Each chunk writes a float32 state [2D, D + 1], which is read again
        state_bytes = 2 * 4 * (2 * dim * (dim + 1))
        token_bytes = 4 * tokens * dim * dtype.itemsize
        most = min(most, int(LARGEST_SHARE / 100 * (token_bytes / state_bytes)))
    chunks = _chunks(rows, slots, most)
    tokens_per_chunk = ceil_div(tokens, chunks * launch.tokens) * launch.tokens
    options = {
        'D': dim,
        'BN': launch.tokens,
        'BD': block,
        'PRECISION': precision,
        'num_warps': launch.warps,
        'num_stages': launch.stages,
        **FUSION_OPTIONS,
    }
    if kind != 'power':
        options['BC'] = block_of(dim // 2)  # channels of one value stream
    launch_grid = (rows, ceil_div(tokens, max(1, tokens_per_chunk)))
    return Plan(launch_grid, tokens_per_chunk, options)


def _chunks(rows: int, slots: int, most: int) -> int:
    """Return into how many chunks to split each row, at most `most`, to fill the GPU with programs.

    Programs run in rounds of `slots`. Avoid a last round that is nearly empty: the GPU would idle
    for most of it. More than four rounds are not worth their partial states.

    Args:
        rows: B * H; there is a program for each row and chunk.
        slots: programs that the GPU runs at a time.
        most: largest number of chunks.
    """
    rows = max(1, rows)
    chunks = 1
    for rounds in range(1, 5):
        chunks = rounds * slots // rows
        if rows * chunks >= 0.9 * rounds * slots:
            break
    return max(1, min(most, chunks))


def find_tile(name: str, dtype: torch.dtype, block: int) -> Tile:
    """Return the launch of a kernel of `mix_and_gate`."""
    rows, columns, warps = TILES[name][BLOCKS.index(block)]
    return Tile(2 * rows // dtype.itemsize, columns, warps)


@lru_cache(maxsize=4096)
def plan_tiles(
    name: str,
    shape: torch.Size,
    dtype: torch.dtype,
    grid: tuple[int, int],
    window: tuple[int, int],
) -> tuple[int, int, dict[str, Any]]:
    """Split the token grids of a tensor over programs for a pass of `mix_and_gate`.

    For a window of one row, as for a sequence, tiles have one row.

    Args:
        name: of the pass.
        shape: [B, N, H, D].
        dtype: of the tensor.
        grid: (h, w), h * w = N.
        window: (KR, KW).

    Returns:
        The number of tiles in all samples, that of channel blocks in all heads, and the kernel's
        compile-time options.
    """
    batch, _, heads, dim = shape
    block = BLOCKS[0] if dim <= BLOCKS[0] else BLOCKS[1]
    tile = find_tile(name, dtype, block)
    rows = tile.rows
    columns = tile.columns
    warps = tile.warps
    if window[0] == 1:
        columns = rows * columns
        warps = min(4, rows * warps)
        rows = 1
    tiles = batch * ceil_div(grid[0], rows) * ceil_div(grid[1], columns)
    options = {
        'D': dim,
        'KR': window[0],
        'KW': window[1],
        'BR': rows,
        'BW': columns,
        'BD': block,
        'num_warps': warps,
        **FUSION_OPTIONS,
    }
    return tiles, heads * ceil_div(dim, block), options


def forget_plans() -> None:
    """Forget the plans made so far, after a change to the launches they were made from."""
    _plan_tokens.cache_clear()
    plan_tiles.cache_clear()


def product_precision(dtype: torch.dtype) -> str:
    """Return 'tf32' for half inputs, which it holds exactly; float32 follows torch's switch."""
    if dtype != torch.float32:
        return 'tf32'
    matmul = torch.backends.cuda.matmul
    if hasattr(matmul, 'fp32_precision'):  # torch >= 2.9, where reading the old switch may raise
        allowed = matmul.fp32_precision == 'tf32'
    else:
        allowed = matmul.allow_tf32
    return 'tf32' if allowed else 'ieee'


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
    """Return the smallest power of two >= dim, but at least 16, which products need."""
    return max(16, 1 << (dim - 1).bit_length())
