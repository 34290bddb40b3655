"""Kernels of `mix_and_gate` (E14, E19): convolution of 2-D tiles of the token grid, addition, gate, and gradients.

A program computes a tile of BR x BW tokens and up to BD channels of one head. Neighbours outside the tile are loaded
like the tile's own tokens: the KR * KW shifted tiles overlap, so all but the first load of an element hit the cache.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs
# ruff: noqa: N803

import torch
import triton
import triton.language as tl
from torch import Tensor

from mmpola.ops.triton.launch import on_device_of, plan_tiles, split_tiles


@triton.jit
def place_tile(i_tile, rows, columns, BR: tl.constexpr, BW: tl.constexpr):
    """Return the sample of a tile, numbered over all samples, and the row and column of its tokens [BR * BW]."""
    across = tl.cdiv(columns, BW)
    tiles = across * tl.cdiv(rows, BR)
    i_b, i_tile = i_tile // tiles, (i_tile % tiles).to(tl.int32)
    o_t = tl.arange(0, BR * BW)
    return i_b, (i_tile // across) * BR + o_t // BW, (i_tile % across) * BW + o_t % BW


@triton.jit
def locate(heads, rows, columns, D: tl.constexpr, BR: tl.constexpr, BW: tl.constexpr, BD: tl.constexpr):
    """Return this program's sample, head and first channel, and the row and column of each token [BR * BW].

    Consecutive programs take channel blocks, then heads, then tiles, so that those that run at the same time read whole
    tokens.
    """
    i_p = tl.program_id(0).to(tl.int64)
    i_d, i_p = i_p % tl.cdiv(D, BD), i_p // tl.cdiv(D, BD)
    i_b, o_r, o_c = place_tile(i_p // heads, rows, columns, BR, BW)
    return i_b, i_p % heads, i_d * BD, o_r, o_c


@triton.jit
def load_shifted(p_x, stride, o_r, o_c, m_t, m_d, i_r, i_c, rows, columns):
    """Load the tile at p_x [BR * BW, BD], shifted by i_r rows and i_c columns, as float32; 0 outside the grid."""
    m_r = (o_r + i_r >= 0) & (o_r + i_r < rows)
    m_c = (o_c + i_c >= 0) & (o_c + i_c < columns)
    shift = (i_r * columns + i_c).to(tl.int64) * stride
    return tl.load(p_x + shift, mask=(m_t & m_r & m_c)[:, None] & m_d[None, :], other=0.0).to(tl.float32)


@triton.jit(do_not_specialize=['heads', 'rows', 'columns'])
def mix_and_gate_kernel(
    p_v, p_weight, p_bias, p_o, p_g, p_y,
    v_b, v_n, v_h, w_k, w_h, o_b, o_n, o_h, g_b, g_n, heads, rows, columns,
    D: tl.constexpr, KR: tl.constexpr, KW: tl.constexpr, BR: tl.constexpr, BW: tl.constexpr, BD: tl.constexpr,
    FLIP: tl.constexpr,
):  # fmt: skip
    """Compute y = (o + DWC(v)) * g [B, N, C] (E14), without terms that are None. FLIP: the transpose of DWC."""
    i_b, i_h, i_d, o_r, o_c = locate(heads, rows, columns, D, BR, BW, BD)
    m_t = (o_r < rows) & (o_c < columns)
    o_t, o_d = o_r.to(tl.int64) * columns + o_c, i_d + tl.arange(0, BD)
    m_d = o_d < D
    m_x = m_t[:, None] & m_d[None, :]
    p_v += i_b * v_b + i_h * v_h + (o_t * v_n)[:, None] + o_d[None, :]
    p_weight += i_h * w_h + o_d  # [KR * KW, D or C]
    b_y = tl.zeros((BR * BW, BD), tl.float32)
    for i in range(KR):
        for j in tl.static_range(KW):
            b_v = load_shifted(p_v, v_n, o_r, o_c, m_t, m_d, i - KR // 2, j - KW // 2, rows, columns)
            tap = KR * KW - 1 - (i * KW + j) if FLIP else i * KW + j
            b_y += b_v * tl.load(p_weight + tap * w_k, mask=m_d, other=0.0).to(tl.float32)[None, :]
    if p_bias is not None:
        b_y += tl.load(p_bias + i_h * w_h + o_d, mask=m_d, other=0.0).to(tl.float32)[None, :]
    if p_o is not None:
        p_o += i_b * o_b + i_h * o_h + (o_t * o_n)[:, None] + o_d[None, :]
        b_y += tl.load(p_o, mask=m_x, other=0.0).to(tl.float32)
    if p_g is not None:
        p_g += i_b * g_b + i_h * D + (o_t * g_n)[:, None] + o_d[None, :]
        b_y *= tl.load(p_g, mask=m_x, other=0.0).to(tl.float32)
    p_y += ((i_b * rows * columns + o_t) * heads + i_h)[:, None] * D + o_d[None, :]
    tl.store(p_y, b_y.to(p_y.dtype.element_ty), mask=m_x)


@triton.jit(do_not_specialize=['heads', 'rows', 'columns'])
def mix_and_gate_gradient_kernel(
    p_dy, p_v, p_weight, p_bias, p_o, p_g, p_do, p_dg,
    dy_b, dy_n, v_b, v_n, v_h, w_k, w_h, o_b, o_n, o_h, g_b, g_n, heads, rows, columns,
    D: tl.constexpr, KR: tl.constexpr, KW: tl.constexpr, BR: tl.constexpr, BW: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """Compute do and dg (E19), except outputs that are None."""
    i_b, i_h, i_d, o_r, o_c = locate(heads, rows, columns, D, BR, BW, BD)
    m_t = (o_r < rows) & (o_c < columns)
    o_t, o_d = o_r.to(tl.int64) * columns + o_c, i_d + tl.arange(0, BD)
    m_d = o_d < D
    m_x = m_t[:, None] & m_d[None, :]
    o_y = ((i_b * rows * columns + o_t) * heads + i_h)[:, None] * D + o_d[None, :]
    p_dy += i_b * dy_b + i_h * D + (o_t * dy_n)[:, None] + o_d[None, :]
    if p_do is not None:
        p_g += i_b * g_b + i_h * D + (o_t * g_n)[:, None] + o_d[None, :]
        b_do = tl.load(p_dy, mask=m_x, other=0.0).to(tl.float32) * tl.load(p_g, mask=m_x, other=0.0).to(tl.float32)
        tl.store(p_do + o_y, b_do.to(p_do.dtype.element_ty), mask=m_x)
    if p_dg is not None:
        p_v += i_b * v_b + i_h * v_h + (o_t * v_n)[:, None] + o_d[None, :]
        p_weight += i_h * w_h + o_d
        b_mixed = tl.zeros((BR * BW, BD), tl.float32)
        for i in range(KR):
            for j in tl.static_range(KW):
                b_v = load_shifted(p_v, v_n, o_r, o_c, m_t, m_d, i - KR // 2, j - KW // 2, rows, columns)
                b_w = tl.load(p_weight + (i * KW + j) * w_k, mask=m_d, other=0.0).to(tl.float32)
                b_mixed += b_v * b_w[None, :]
        if p_bias is not None:
            b_mixed += tl.load(p_bias + i_h * w_h + o_d, mask=m_d, other=0.0).to(tl.float32)[None, :]
        p_o += i_b * o_b + i_h * o_h + (o_t * o_n)[:, None] + o_d[None, :]
        b_mixed += tl.load(p_o, mask=m_x, other=0.0).to(tl.float32)
        b_dy = tl.load(p_dy, mask=m_x, other=0.0).to(tl.float32)  # from the cache, if it was loaded for do
        tl.store(p_dg + o_y, (b_dy * b_mixed).to(p_dg.dtype.element_ty), mask=m_x)


@triton.jit(do_not_specialize=['heads', 'rows', 'columns', 'tiles', 'tiles_per_part'])
def mix_and_gate_taps_kernel(
    p_dy, p_v, p_g, p_parts,
    dy_b, dy_n, v_b, v_n, v_h, g_b, g_n, heads, rows, columns, tiles, tiles_per_part,
    D: tl.constexpr, KR: tl.constexpr, KW: tl.constexpr, BR: tl.constexpr, BW: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """Compute parts [parts, KR * KW + 1, H, D] of dW and db (E19): a row of taps and a run of tiles per program.

    The sums of the row's taps stay [BR * BW, BD] to the end, so tokens are added without communication between threads.
    """
    i_p, i, i_part = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2).to(tl.int64)
    i_h, o_d = i_p // tl.cdiv(D, BD), (i_p % tl.cdiv(D, BD)) * BD + tl.arange(0, BD)
    m_d = o_d < D
    b_bias = tl.zeros((BR * BW, BD), tl.float32)
    b_taps = ()  # extended by `+`, because Triton knows no starred elements
    for _ in tl.static_range(KW):
        b_taps = b_taps + (tl.zeros((BR * BW, BD), tl.float32),)  # type: ignore[assignment] # noqa: RUF005
    first = i_part * tiles_per_part
    for i_tile in range(first, tl.minimum(first + tiles_per_part, tiles)):
        i_b, o_r, o_c = place_tile(i_tile, rows, columns, BR, BW)
        m_t = (o_r < rows) & (o_c < columns)
        m_x = m_t[:, None] & m_d[None, :]
        o_t = o_r.to(tl.int64) * columns + o_c
        b_do = tl.load(p_dy + i_b * dy_b + i_h * D + (o_t * dy_n)[:, None] + o_d[None, :], mask=m_x, other=0.0)
        b_g = tl.load(p_g + i_b * g_b + i_h * D + (o_t * g_n)[:, None] + o_d[None, :], mask=m_x, other=0.0)
        b_do = b_do.to(tl.float32) * b_g.to(tl.float32)
        b_bias += b_do
        p_tile = p_v + i_b * v_b + i_h * v_h + (o_t * v_n)[:, None] + o_d[None, :]
        b_sums = ()
        for j in tl.static_range(KW):
            b_v = load_shifted(p_tile, v_n, o_r, o_c, m_t, m_d, i - KR // 2, j - KW // 2, rows, columns)
            b_sums = b_sums + (b_taps[j] + b_do * b_v,)  # type: ignore[assignment] # noqa: RUF005
        b_taps = b_sums
    p_parts += (i_part * (KR * KW + 1) * heads + i_h) * D + o_d
    for j in tl.static_range(KW):
        tl.store(p_parts + (i * KW + j) * heads * D, tl.sum(b_taps[j], 0), mask=m_d)
    if i == 0:
        tl.store(p_parts + KR * KW * heads * D, tl.sum(b_bias, 0), mask=m_d)


@triton.jit(do_not_specialize=['parts', 'heads'])
def add_parts_kernel(
    p_parts, p_dweight, p_dbias, parts, heads,
    D: tl.constexpr, TAPS: tl.constexpr, SHARED: tl.constexpr, BP: tl.constexpr, BW: tl.constexpr,
):  # fmt: skip
    """Add parts [parts, TAPS + 1, H, D] in a fixed order: one tap of dW [D or C, TAPS], or db [D or C], per program.

    With SHARED the heads share one kernel, and their parts are added too.
    """
    i_tap = tl.program_id(0)
    o_c = tl.program_id(1) * BW + tl.arange(0, BW)
    channels = D if SHARED else heads * D
    count = parts * heads if SHARED else parts
    b_sum = tl.zeros((BP, BW), tl.float32)
    for i_p in range(0, count, BP):
        o_p = i_p + tl.arange(0, BP)
        o_part = ((o_p // heads).to(tl.int64) * (TAPS + 1) + i_tap) * heads + o_p % heads
        if not SHARED:
            o_part = (o_p.to(tl.int64) * (TAPS + 1) + i_tap) * heads
        m_p = (o_p < count)[:, None] & (o_c < channels)[None, :]
        b_sum += tl.load(p_parts + o_part[:, None] * D + o_c[None, :], mask=m_p, other=0.0)
    b_total = tl.sum(b_sum, 0)
    if i_tap < TAPS:
        tl.store(p_dweight + o_c * TAPS + i_tap, b_total.to(p_dweight.dtype.element_ty), mask=o_c < channels)
    elif p_dbias is not None:
        tl.store(p_dbias + o_c, b_total.to(p_dbias.dtype.element_ty), mask=o_c < channels)


def launch_mix_and_gate(
    values: Tensor,
    taps: Tensor,
    bias: Tensor | None,
    attended: Tensor | None,
    gate: Tensor | None,
    grid: tuple[int, int],
    *,
    flip: bool = False,
) -> Tensor:
    """Compute (o + DWC(v)) * g [B, N, C] (E14) without the terms that are None; with `flip`, use the transpose of DWC.

    Args:
        values: v [B, N, H, D], unit stride in D like `attended` and `gate`.
        taps: the convolution kernel [KR, KW, D or C], contiguous.
        attended: o [B, N, H, D] or None.
        gate: g [B, N, C] or None.
    """
    batch, tokens, heads, dim = values.shape
    plan = plan_tiles('mix_and_gate', values.shape, values.dtype, values.device, grid, _window(taps))
    output = torch.empty(batch, tokens, heads * dim, device=values.device, dtype=values.dtype)
    if plan.programs:
        with on_device_of(values):
            mix_and_gate_kernel[(plan.programs,)](
                values, taps, bias, attended, gate, output,
                *values.stride()[:3], taps.stride(1), _head_stride(taps, dim),
                *((0, 0, 0) if attended is None else attended.stride()[:3]),
                *((0, 0) if gate is None else gate.stride()[:2]), heads, *grid, FLIP=flip, **plan.options,
            )  # fmt: skip
    return output


def launch_mix_and_gate_gradient(
    dy: Tensor,
    attended: Tensor,
    values: Tensor,
    gate: Tensor,
    taps: Tensor,
    bias: Tensor | None,
    grid: tuple[int, int],
    wants: tuple[bool, bool],
) -> tuple[Tensor | None, Tensor | None]:
    """Compute do [B, N, H, D] and dg [B, N, C] (E19); None is returned for what `wants` does not ask for.

    Args:
        dy: gradient of the output [B, N, C], unit stride in C.
    """
    heads, dim = values.shape[2:]
    plan = plan_tiles('mix_and_gate_gradient', values.shape, values.dtype, values.device, grid, _window(taps))
    do = dy.new_empty(values.shape) if wants[0] else None
    dg = dy.new_empty(gate.shape) if wants[1] else None
    if plan.programs and (wants[0] or wants[1]):
        with on_device_of(values):
            mix_and_gate_gradient_kernel[(plan.programs,)](
                dy, values, taps, bias, attended, gate, do, dg,
                *dy.stride()[:2], *values.stride()[:3], taps.stride(1), _head_stride(taps, dim),
                *attended.stride()[:3], *gate.stride()[:2], heads, *grid, **plan.options,
            )  # fmt: skip
    return do, dg


def launch_taps_gradient(
    dy: Tensor, values: Tensor, gate: Tensor, weight: Tensor, bias: Tensor | None, grid: tuple[int, int]
) -> tuple[Tensor, Tensor | None]:
    """Compute dW and db (E19) in the shape and dtype of weight [D or C, 1, KR, KW] and bias."""
    heads, dim = values.shape[2:]
    channels, _, height, width = weight.shape
    plan = plan_tiles('mix_and_gate_taps', values.shape, values.dtype, values.device, grid, (height, width))
    columns = plan.programs // max(1, plan.tiles)  # blocks of channels of all heads
    count, tiles = split_tiles(plan.tiles, columns * height, values.device)
    parts = dy.new_empty((count, height * width + 1, heads, dim), dtype=torch.float32)
    d_weight = weight.new_empty(weight.shape)
    d_bias = None if bias is None else bias.new_empty(bias.shape)
    with on_device_of(values):
        if count:
            mix_and_gate_taps_kernel[columns, height, count](
                dy, values, gate, parts,
                *dy.stride()[:2], *values.stride()[:3], *gate.stride()[:2], heads, *grid, plan.tiles, tiles,
                **plan.options,
            )  # fmt: skip
        add_parts_kernel[height * width + 1, -(-channels // 32)](
            parts, d_weight, d_bias, count, heads,
            D=dim, TAPS=height * width, SHARED=channels == dim, BP=64, BW=32, num_warps=4,
        )  # fmt: skip
    return d_weight, d_bias


def _window(taps: Tensor) -> tuple[int, int]:
    """Return KR and KW of a convolution kernel [KR, KW, D or C]."""
    return taps.shape[0], taps.shape[1]


def _head_stride(taps: Tensor, dim: int) -> int:
    """Return the offset between two heads' channels of the convolution kernel: 0 if the heads share one."""
    return 0 if taps.shape[2] == dim else dim
