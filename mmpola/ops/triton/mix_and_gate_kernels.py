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

from mmpola.ops.triton.launch import on_device_of, plan_tiles


@triton.jit
def locate(heads, rows, columns, D: tl.constexpr, BR: tl.constexpr, BW: tl.constexpr, BD: tl.constexpr):
    """Return this program's sample, tile, head and first channel, and the row and column of each token [BR * BW].

    Tiles are numbered over all samples. Consecutive programs take channel blocks, then heads, then tiles, so that those
    that run at the same time read whole tokens.
    """
    i_p = tl.program_id(0).to(tl.int64)
    i_d, i_p = i_p % tl.cdiv(D, BD), i_p // tl.cdiv(D, BD)
    i_h, i_p = i_p % heads, i_p // heads
    across = tl.cdiv(columns, BW)
    tiles = across * tl.cdiv(rows, BR)
    i_b, i_tile = i_p // tiles, (i_p % tiles).to(tl.int32)
    o_t = tl.arange(0, BR * BW)
    return i_b, i_p, i_h, i_d * BD, (i_tile // across) * BR + o_t // BW, (i_tile % across) * BW + o_t % BW


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
    i_b, _, i_h, i_d, o_r, o_c = locate(heads, rows, columns, D, BR, BW, BD)
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
    p_dy, p_v, p_weight, p_bias, p_o, p_g, p_do, p_dg, p_parts,
    dy_b, dy_n, v_b, v_n, v_h, w_k, w_h, o_b, o_n, o_h, g_b, g_n, heads, rows, columns,
    D: tl.constexpr, KR: tl.constexpr, KW: tl.constexpr, BR: tl.constexpr, BW: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """Compute do, dg and each tile's part [KR * KW + 1, C] of dW and db (E19), except outputs that are None."""
    i_b, i_part, i_h, i_d, o_r, o_c = locate(heads, rows, columns, D, BR, BW, BD)
    m_t = (o_r < rows) & (o_c < columns)
    o_t, o_d = o_r.to(tl.int64) * columns + o_c, i_d + tl.arange(0, BD)
    m_d = o_d < D
    m_x = m_t[:, None] & m_d[None, :]
    o_y = ((i_b * rows * columns + o_t) * heads + i_h)[:, None] * D + o_d[None, :]
    p_dy += i_b * dy_b + i_h * D + (o_t * dy_n)[:, None] + o_d[None, :]
    b_dy = tl.load(p_dy, mask=m_x, other=0.0).to(tl.float32)
    if (p_do is not None) or (p_parts is not None):
        p_g += i_b * g_b + i_h * D + (o_t * g_n)[:, None] + o_d[None, :]
        b_do = b_dy * tl.load(p_g, mask=m_x, other=0.0).to(tl.float32)
    if p_do is not None:
        tl.store(p_do + o_y, b_do.to(p_do.dtype.element_ty), mask=m_x)
    if p_parts is not None:
        p_parts += (i_part * (KR * KW + 1) * heads + i_h) * D + o_d
        tl.store(p_parts + KR * KW * heads * D, tl.sum(b_do, 0), mask=m_d)
    if (p_dg is not None) or (p_parts is not None):
        p_v += i_b * v_b + i_h * v_h + (o_t * v_n)[:, None] + o_d[None, :]
        p_weight += i_h * w_h + o_d
        b_mixed = tl.zeros((BR * BW, BD), tl.float32)
        for i in range(KR):
            for j in tl.static_range(KW):
                b_v = load_shifted(p_v, v_n, o_r, o_c, m_t, m_d, i - KR // 2, j - KW // 2, rows, columns)
                if p_parts is not None:
                    tl.store(p_parts + (i * KW + j) * heads * D, tl.sum(b_do * b_v, 0), mask=m_d)
                if p_dg is not None:
                    b_w = tl.load(p_weight + (i * KW + j) * w_k, mask=m_d, other=0.0).to(tl.float32)
                    b_mixed += b_v * b_w[None, :]
        if p_dg is not None:
            if p_bias is not None:
                b_mixed += tl.load(p_bias + i_h * w_h + o_d, mask=m_d, other=0.0).to(tl.float32)[None, :]
            p_o += i_b * o_b + i_h * o_h + (o_t * o_n)[:, None] + o_d[None, :]
            b_mixed += tl.load(p_o, mask=m_x, other=0.0).to(tl.float32)
            b_dy = tl.load(p_dy, mask=m_x, other=0.0).to(tl.float32)  # reloaded from the cache to save registers
            tl.store(p_dg + o_y, (b_dy * b_mixed).to(p_dg.dtype.element_ty), mask=m_x)


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
    plan = plan_tiles('mix_and_gate', values, grid, taps)
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
    wants: tuple[bool, bool, bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Compute do [B, N, H, D], dg [B, N, C], and dW and db as rows of one tensor
    [KR * KW + 1, D or C] (E19).

    Args:
        dy: gradient of the output [B, N, C], unit stride in C.
        wants: whether do, dg, and dW with db are wanted; None is returned for the others.
    """
    heads, dim = values.shape[2:]
    plan = plan_tiles('mix_and_gate_gradient', values, grid, taps)
    do = torch.empty(values.shape, device=dy.device, dtype=dy.dtype) if wants[0] else None
    dg = torch.empty(gate.shape, device=dy.device, dtype=dy.dtype) if wants[1] else None
    parts = None
    if wants[2]:
        parts = torch.empty(plan.tiles, taps[..., 0].numel() + 1, heads, dim, device=dy.device, dtype=torch.float32)
    if plan.programs:
        with on_device_of(values):
            mix_and_gate_gradient_kernel[(plan.programs,)](
                dy, values, taps, bias, attended, gate, do, dg, parts,
                *dy.stride()[:2], *values.stride()[:3], taps.stride(1), _head_stride(taps, dim),
                *attended.stride()[:3], *gate.stride()[:2], heads, *grid, **plan.options,
            )  # fmt: skip
    if parts is None:
        return do, dg, None
    is_shared = taps.shape[2] == dim  # parts are added in a fixed order, so that results are reproducible bit for bit
    return do, dg, parts.sum((0, 2)) if is_shared else parts.sum(0).flatten(1)


def _head_stride(taps: Tensor, dim: int) -> int:
    """Return the offset between two heads' channels of the convolution kernel: 0 if the heads share one."""
    return 0 if taps.shape[2] == dim else dim
