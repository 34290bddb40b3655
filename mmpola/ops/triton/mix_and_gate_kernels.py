"""Kernels of `mix_and_gate` (E14, E19): convolution of tiles of tokens, addition, gate, gradients.

A tile is a tuple of BR rows of BW tokens, [BW, BD] each. For each column of the window, a row of
tokens is loaded and converted to float32 once; all rows of the tile that have it in their windows
use it.
"""
# Tuples are extended by `+`, because Triton 3.6 knows no starred elements.
# mypy: allow-untyped-defs, allow-incomplete-defs, disable-error-code=assignment
# ruff: noqa: N803, RUF005

import triton
import triton.language as tl


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
    p_do, p_v, p_parts,
    do_b, do_n, v_b, v_n, v_h, heads, rows, columns, tiles, tiles_per_part,
    D: tl.constexpr, KR: tl.constexpr, KW: tl.constexpr,
    BR: tl.constexpr, BW: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """Compute parts [parts, KR * KW + 1, H, D] of dW and db (E19): a column of taps per program.

    The sums of the taps stay [BW, BD] until the last tile, so that adding tokens needs no
    communication between threads.
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
    p_parts += (i_part * (KR * KW + 1) * heads + i_h) * D + o_d
    for t in tl.static_range(KR):
        tl.store(p_parts + (t * KW + j) * heads * D, tl.sum(b_taps[t], 0), mask=m_d)
    if j == 0:
        tl.store(p_parts + KR * KW * heads * D, tl.sum(b_bias, 0), mask=m_d)
