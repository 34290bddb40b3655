"""`mix_and_gate` (E14, E19): convolution of tiles of tokens, addition, gate, and the gradients.

A tile is a tuple of BR rows of BW tokens, [BW, BD] each. For each column of the window, a row of
tokens is loaded and converted to float32 once; all rows of the tile that have it in their windows
use it.
"""
# Tuples are extended by `+`, because Triton 3.6 knows no starred elements.
# mypy: allow-untyped-defs, allow-incomplete-defs, disable-error-code=assignment
# ruff: noqa: N803, RUF005

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from mmpola.ops.triton import processors_of
from mmpola.ops.triton.blocks import FUSION_OPTIONS


@triton.jit
def place_tile(i_tile, rows, columns, BR: tl.constexpr, BW: tl.constexpr):
    """Return the sample of a tile, numbered over all samples, its first row, its columns [BW]."""
    across = tl.cdiv(columns, BW)
    tiles = across * tl.cdiv(rows, BR)
    i_b = (i_tile // tiles).to(tl.int64)
    i_tile = i_tile % tiles
    i_r = (i_tile // across) * BR
    o_c = (i_tile % across) * BW + tl.arange(0, BW)
    return i_b, i_r, o_c


@triton.jit
def point_to_row(p_x, stride, i_r, o_c, columns):
    """Return pointers [BW, BD] to tokens of row i_r, columns o_c, and the next row's offset."""
    step = columns.to(tl.int64) * stride
    p_row = p_x[None, :] + o_c.to(tl.int64)[:, None] * stride + i_r * step
    return p_row, step


@triton.jit
def is_inside(i, size):
    """Return whether 0 <= i < size, with one comparison."""
    return i.to(tl.uint32) < size.to(tl.uint32)


@triton.jit
def load_rows(p_x, stride, i_r, o_c, m_d, rows, columns, R: tl.constexpr):
    """Load R rows of tokens, [BW, BD] each, from row i_r, columns o_c on; 0 outside the grid.

    Convert them to float32 only after all loads: otherwise Triton 3.6 waits for each load.
    """
    m_c = is_inside(o_c, columns)[:, None] & m_d[None, :]
    p_row, step = point_to_row(p_x, stride, i_r, o_c, columns)
    b_rows = ()
    for r in tl.static_range(R):
        b_rows = b_rows + (tl.load(p_row, mask=m_c & is_inside(i_r + r, rows), other=0.0),)
        p_row += step
    return b_rows


@triton.jit
def zeros_of_rows(BR: tl.constexpr, BW: tl.constexpr, BD: tl.constexpr):
    """Return a tuple of BR blocks [BW, BD] of zeros."""
    b_rows = ()
    for _ in tl.static_range(BR):
        b_rows = b_rows + (tl.zeros((BW, BD), tl.float32),)
    return b_rows


@triton.jit(do_not_specialize=['heads', 'rows', 'columns'])
def mix_and_gate_kernel(
    p_v, p_weight, p_bias, p_o, p_factor, p_y, p_g, p_do,
    v_b, v_n, v_h, w_k, w_h, o_b, o_n, o_h, f_b, f_n, g_b, g_n, heads, rows, columns,
    D: tl.constexpr, KR: tl.constexpr, KW: tl.constexpr,
    BR: tl.constexpr, BW: tl.constexpr, BD: tl.constexpr,
    FLIP: tl.constexpr,
):  # fmt: skip
    """Compute y = (o + DWC(v)) * factor [B, N, C] and do = factor * g, without terms that are None.

    The factor is g in (E14) and dy in (E19), where y is dg. FLIP stands for the transpose of DWC.
    Consecutive programs take channel blocks, then heads, then tiles, so that programs that run at
    the same time read whole tokens.
    """
    i_p = tl.program_id(0)
    i_d = i_p % tl.cdiv(D, BD)
    i_p = i_p // tl.cdiv(D, BD)
    i_h = (i_p % heads).to(tl.int64)
    i_b, i_r, o_c = place_tile(i_p // heads, rows, columns, BR, BW)
    o_d = i_d * BD + tl.arange(0, BD)
    m_d = o_d < D
    p_v += i_b * v_b + i_h * v_h + o_d
    p_weight += i_h * w_h + o_d  # [KR * KW, D or C]
    b_rows = zeros_of_rows(BR, BW, BD)
    for j in range(KW):
        b_taps = ()
        for i in tl.static_range(KR):
            tap = i * KW + j
            if FLIP:
                tap = KR * KW - 1 - tap
            b_taps = b_taps + (tl.load(p_weight + tap * w_k, mask=m_d, other=0.0),)
        b_v = load_rows(p_v, v_n, i_r - KR // 2, o_c + j - KW // 2, m_d, rows, columns, BR + KR - 1)
        for i in tl.static_range(BR + KR - 1):
            b_row = b_v[i].to(tl.float32)
            b_sums = ()
            for r in tl.static_range(BR):
                if i >= r and i - r < KR:
                    b_sums = b_sums + (b_rows[r] + b_row * b_taps[i - r].to(tl.float32)[None, :],)
                else:
                    b_sums = b_sums + (b_rows[r],)
            b_rows = b_sums
    if p_bias is not None:
        b_bias = tl.load(p_bias + i_h * w_h + o_d, mask=m_d, other=0.0)
    if p_o is not None:
        p_o += i_b * o_b + i_h * o_h + o_d
        b_o = load_rows(p_o, o_n, i_r, o_c, m_d, rows, columns, BR)
    if p_factor is not None:
        p_factor += i_b * f_b + i_h * D + o_d
        b_factor = load_rows(p_factor, f_n, i_r, o_c, m_d, rows, columns, BR)
    if p_g is not None:
        p_g += i_b * g_b + i_h * D + o_d
        b_g = load_rows(p_g, g_n, i_r, o_c, m_d, rows, columns, BR)
    m_y = is_inside(o_c, columns)[:, None] & m_d[None, :]
    o_y = (i_b * rows * columns * heads + i_h) * D + o_d
    p_row, step = point_to_row(p_y + o_y, heads * D, i_r, o_c, columns)
    for r in tl.static_range(BR):
        b_y = b_rows[r]
        if p_bias is not None:
            b_y += b_bias.to(tl.float32)[None, :]
        if p_o is not None:
            b_y += b_o[r].to(tl.float32)
        if p_factor is not None:
            b_y *= b_factor[r].to(tl.float32)
        tl.store(p_row, b_y.to(p_y.dtype.element_ty), mask=m_y & is_inside(i_r + r, rows))
        p_row += step
    if p_g is not None:
        p_row, step = point_to_row(p_do + o_y, heads * D, i_r, o_c, columns)
        for r in tl.static_range(BR):
            b_do = b_factor[r].to(tl.float32) * b_g[r].to(tl.float32)
            tl.store(p_row, b_do.to(p_do.dtype.element_ty), mask=m_y & is_inside(i_r + r, rows))
            p_row += step


@triton.jit(do_not_specialize=['heads', 'rows', 'columns', 'tiles', 'tiles_per_part'])
def mix_and_gate_taps_kernel(
    p_do, p_v, p_taps, p_bias,
    do_b, do_n, v_b, v_n, v_h, heads, rows, columns, tiles, tiles_per_part,
    D: tl.constexpr, KR: tl.constexpr, KW: tl.constexpr,
    BR: tl.constexpr, BW: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """Compute parts of dW [parts, H, D, KR * KW] and db [parts, H, D] (E19).

    A program computes the gradients of a column of taps. Its sums stay [BW, BD] until the
    last tile, so that adding tokens needs no communication between threads.
    """
    i_p = tl.program_id(0)
    j = tl.program_id(1)
    i_part = tl.program_id(2).to(tl.int64)
    i_h = (i_p // tl.cdiv(D, BD)).to(tl.int64)
    o_d = (i_p % tl.cdiv(D, BD)) * BD + tl.arange(0, BD)
    m_d = o_d < D
    b_bias = tl.zeros((BW, BD), tl.float32)
    b_taps = zeros_of_rows(KR, BW, BD)
    first = tl.program_id(2) * tiles_per_part
    for i_tile in range(first, tl.minimum(first + tiles_per_part, tiles)):
        i_b, i_r, o_c = place_tile(i_tile, rows, columns, BR, BW)
        p_do_tile = p_do + i_b * do_b + i_h * D + o_d
        p_v_tile = p_v + i_b * v_b + i_h * v_h + o_d
        b_do = load_rows(p_do_tile, do_n, i_r, o_c, m_d, rows, columns, BR)
        b_v = load_rows(
            p_v_tile, v_n, i_r - KR // 2, o_c + j - KW // 2, m_d, rows, columns, BR + KR - 1
        )
        for r in tl.static_range(BR):
            b_bias += b_do[r].to(tl.float32)
        for i in tl.static_range(BR + KR - 1):
            b_row = b_v[i].to(tl.float32)
            b_sums = ()
            for t in tl.static_range(KR):
                if i >= t and i - t < BR:
                    b_sums = b_sums + (b_taps[t] + b_do[i - t].to(tl.float32) * b_row,)
                else:
                    b_sums = b_sums + (b_taps[t],)
            b_taps = b_sums
    o_part = (i_part * heads + i_h) * D + o_d
    for t in tl.static_range(KR):
        tl.store(p_taps + o_part * (KR * KW) + t * KW + j, tl.sum(b_taps[t], 0), mask=m_d)
    if j == 0:
        tl.store(p_bias + o_part, tl.sum(b_bias, 0), mask=m_d)


# ---- Launches


class Tile(NamedTuple):
    """What a program of either kernel takes of the token grid; chosen like `Launch`.

    Args:
        rows: BR, for half inputs; float32 tiles have half the rows: they need twice the registers.
        columns: BW.
        warps: warps per program.
    """

    rows: int
    columns: int
    warps: int


TILES = {16: Tile(rows=8, columns=16, warps=1), 32: Tile(rows=8, columns=8, warps=1)}
"""By BD, the channels of a program; a wider head takes several programs."""

TAPS_PROGRAMS = 12
"""Programs per multiprocessor of the kernel of the taps' gradient; each writes a partial sum."""


@lru_cache(maxsize=4096)
def plan_tiles(
    shape: torch.Size, dtype: torch.dtype, grid: tuple[int, int], window: tuple[int, int]
) -> tuple[int, int, dict[str, Any]]:
    """Split the token grids of a tensor over programs.

    For a window of one row, as for a sequence, tiles have one row.

    Args:
        shape: [B, N, H, D].
        dtype: of the tensor.
        grid: (h, w), h * w = N.
        window: (KR, KW).

    Returns:
        The number of tiles in all samples, of channel blocks in all heads, and the kernel's
        compile-time options.
    """
    batch, _, heads, dim = shape
    block = 16 if dim <= 16 else 32
    rows, columns, warps = TILES[block]
    rows = 2 * rows // dtype.itemsize
    if window[0] == 1:
        columns = rows * columns
        warps = min(4, rows * warps)
        rows = 1
    tiles = batch * triton.cdiv(grid[0], rows) * triton.cdiv(grid[1], columns)
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
    return tiles, heads * triton.cdiv(dim, block), options


def launch_mix_and_gate(
    values: Tensor,
    taps: Tensor,
    bias: Tensor | None,
    attended: Tensor | None,
    factor: Tensor | None,
    grid: tuple[int, int],
    *,
    gate: Tensor | None = None,
    flip: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Compute (o + DWC(v)) * factor and factor * gate, both [B, N, C], without what is None.

    Args:
        values: v [B, N, H, D], unit stride in D like `attended`.
        taps: the convolution kernel [KR, KW, D or C], contiguous.
        bias: [D or C] or None.
        attended: o [B, N, H, D] or None.
        factor: [B, N, C], unit stride in C like `gate`, or None.
        grid: (h, w), h * w = N.
        gate: [B, N, C] or None.
        flip: use the transpose of DWC.
    """
    batch, tokens, heads, dim = values.shape
    height, width, channels = taps.shape
    rows, columns = grid
    tiles, blocks, options = plan_tiles(values.shape, values.dtype, grid, (height, width))
    output = torch.empty(batch, tokens, heads * dim, device=values.device, dtype=values.dtype)
    do = None
    if gate is not None:
        do = torch.empty_like(output)
    if tiles * blocks > 0:
        mix_and_gate_kernel[(tiles * blocks,)](
            values,
            taps,
            bias,
            attended,
            factor,
            output,
            gate,
            do,
            *first_strides(values, 3),
            taps.stride(1),
            dim if channels > dim else 0,  # 0: the heads share the taps
            *first_strides(attended, 3),
            *first_strides(factor, 2),
            *first_strides(gate, 2),
            heads,
            rows,
            columns,
            FLIP=flip,
            **options,
        )
    return output, do


def launch_taps_gradient(
    do: Tensor, values: Tensor, weight: Tensor, bias: Tensor | None, grid: tuple[int, int]
) -> tuple[Tensor, Tensor | None]:
    """Compute dW and db (E19) of do [B, N, C], shaped like weight [D or C, 1, KR, KW] and bias."""
    _, _, heads, dim = values.shape
    channels, _, height, width = weight.shape
    rows, columns = grid
    tiles, blocks, options = plan_tiles(values.shape, values.dtype, grid, (height, width))
    # A program per channel block, column of the window and run of tiles
    slots = TAPS_PROGRAMS * processors_of(values.device)
    most_runs = max(1, slots // max(1, blocks * width))
    tiles_per_run = max(1, -(-tiles // most_runs))
    runs = -(-tiles // tiles_per_run)
    taps = do.new_empty((runs, heads, dim, height * width), dtype=torch.float32)
    biases = do.new_empty((runs, heads, dim), dtype=torch.float32)
    if runs > 0:
        mix_and_gate_taps_kernel[blocks, width, runs](
            do,
            values,
            taps,
            biases,
            *first_strides(do, 2),
            *first_strides(values, 3),
            heads,
            rows,
            columns,
            tiles,
            tiles_per_run,
            **options,
        )
    parts = (0, 1) if channels == dim else 0  # (0, 1): shared by all heads
    d_weight = taps.sum(parts).view(weight.shape).to(weight.dtype)
    d_bias = None
    if bias is not None:
        d_bias = biases.sum(parts).view(channels).to(bias.dtype)
    return d_weight, d_bias


def first_strides(x: Tensor | None, axes: int) -> tuple[int, ...]:
    """Return the strides of the first axes; zeros for None, which no kernel reads."""
    if x is None:
        return (0,) * axes
    return x.stride()[:axes]


# ---- The passes


def forward(
    attended: Tensor,
    values: Tensor,
    gate: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    rows: int,
    columns: int,
) -> tuple[Tensor, Tensor]:
    """Compute y [B, N, C] (E14) and the weight as taps [k, k, D or C], channels adjacent."""
    # Always a copy: operators of torch.library may not return the memory of an argument
    taps = weight.squeeze(1).permute(1, 2, 0).clone(memory_format=torch.contiguous_format)
    attended = with_unit_stride(attended)
    values = with_unit_stride(values)
    gate = with_unit_stride(gate)
    y, _ = launch_mix_and_gate(values, taps, bias, attended, gate, (rows, columns))
    return y, taps


def allocate(
    attended: Tensor, values: Tensor, gate: Tensor, weight: Tensor, *others: Any
) -> tuple[Tensor, Tensor]:
    """Allocate what `forward` returns."""
    channels, _, height, width = weight.shape
    y = torch.empty(gate.shape, device=attended.device, dtype=attended.dtype)
    return y, weight.new_empty(height, width, channels)


def backward(
    attended: Tensor,
    values: Tensor,
    gate: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    rows: int,
    columns: int,
    dy: Tensor,
    taps: Tensor,
    wanted: Sequence[bool],
) -> tuple[Tensor | None, ...]:
    """Compute the gradients of the five tensors (E19); most are None if not wanted."""
    attended = with_unit_stride(attended)
    values = with_unit_stride(values)
    gate = with_unit_stride(gate)
    dy = with_unit_stride(dy)
    grid = (rows, columns)
    _, wants_values, wants_gate, wants_weight, wants_bias = wanted
    dg = None
    if wants_gate:
        dg, do = launch_mix_and_gate(values, taps, bias, attended, dy, grid, gate=gate)
        assert do is not None
    else:
        do = torch.mul(dy, gate, out=torch.empty(gate.shape, device=dy.device, dtype=dy.dtype))
    # dv, dW and db are computed from do as stored: rounded, as the gradient of `attended` is.
    d_attended = do.view(values.shape)
    d_values = None
    if wants_values:
        dv, _ = launch_mix_and_gate(d_attended, taps, None, None, None, grid, flip=True)
        d_values = dv.view(values.shape)
    d_weight = None
    d_bias = None
    if wants_weight or wants_bias:
        d_weight, d_bias = launch_taps_gradient(do, values, weight, bias, grid)
    return d_attended, d_values, dg, d_weight, d_bias


def with_unit_stride(x: Tensor) -> Tensor:
    """Return x, or a contiguous copy if its last dimension has no unit stride."""
    if x.stride(-1) == 1:
        return x
    return x.contiguous()
