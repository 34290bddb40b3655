"""The gradient kernel over queries: dq and the sums over queries, features recomputed (E15, E16, E18).

o is neither saved nor read: do·o of (E15) equals φ·(y Sᵀ), and y Sᵀ is needed for (E16) anyway.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs
# ruff: noqa: N803

import torch
import triton
import triton.language as tl
from torch import Tensor

from mmpola.ops.triton.features import (
    by_sign,
    choose_mean,
    factor,
    load_halves,
    load_power,
    load_reach,
    load_streams,
    load_tokens,
    load_turn,
    log2_of_magnitude,
    normaliser,
    power_gradient,
    scaled_query,
    store_halves,
    store_state,
    turn,
    turn_back,
)
from mmpola.ops.triton.launch import on_device_of, plan
from mmpola.ops.triton.tensors import Parameters


@triton.jit(do_not_specialize=['heads', 'queries', 'tokens', 'eps'])
def query_gradient_kernel(
    p_q, p_do, p_exponent, p_scale, p_same, p_opposite, p_cos, p_sin, p_state, p_mean, p_shift,
    p_dq, p_dstate, p_dmean, p_dparameters,
    q_b, q_n, q_h, do_b, do_n, do_h, heads, queries, tokens, eps,
    D: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, BC: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dq, and per program the parts of dS [2D, D], dk̄ [2D] and the parameters' gradients [4, D]; None: not wanted."""
    i_bh, i_chunk = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    i_b, i_h = i_bh // heads, i_bh % heads
    p_q += i_b * q_b + i_h * q_h
    p_do += i_b * do_b + i_h * do_h
    o_n, o_d, o_c = tl.arange(0, BN), tl.arange(0, BD), tl.arange(0, BC)
    m_d, m_c = o_d < D, o_c < D // 2
    if p_exponent is not None:
        b_exponent, b_inverse_scale = load_power(p_exponent, p_scale, i_h, D, BD)
    else:
        b_t_same_1, b_t_same_2 = load_halves(p_same + i_h * 2 * D, D, BD)
        b_t_opposite_1, b_t_opposite_2 = load_halves(p_opposite + i_h * 2 * D, D, BD)
        b_reach_1, b_reach_2 = load_reach(p_shift + i_bh * 2 * D, D, BD)
    b_same_1, b_same_2, b_opposite_1, b_opposite_2 = load_streams(p_state + i_bh * 2 * D * D, D, BD, BC, PRECISION)
    b_mean_1, b_mean_2 = load_halves(p_mean + i_bh * 2 * D, D, BD)

    b_dsame_1, b_dsame_2 = tl.zeros((BD, BC), tl.float32), tl.zeros((BD, BC), tl.float32)
    b_dopposite_1, b_dopposite_2 = tl.zeros((BD, BC), tl.float32), tl.zeros((BD, BC), tl.float32)
    # Sums over tokens stay [BN, BD] to the end: as many registers as a replicated [BD], and no reduction per block.
    b_dmean_1, b_dmean_2 = tl.zeros((BN, BD), tl.float32), tl.zeros((BN, BD), tl.float32)
    b_dp_0, b_dp_1 = tl.zeros((BN, BD), tl.float32), tl.zeros((BN, BD), tl.float32)
    b_dp_2, b_dp_3 = tl.zeros((BN, BD), tl.float32), tl.zeros((BN, BD), tl.float32)
    start = i_chunk * tokens
    for i_n in range(start, tl.minimum(start + tokens, queries), BN):
        m_n = i_n + o_n < queries
        m_q, m_do = m_n[:, None] & m_d[None, :], m_n[:, None] & m_c[None, :]
        b_q = load_tokens(p_q + i_n * q_n, q_n, o_n, o_d, m_q)
        m_negative = b_q < 0
        if p_exponent is not None:
            b_q *= b_inverse_scale[None, :]
            b_log2 = log2_of_magnitude(b_q)
            b_a_same = tl.exp2(b_exponent[None, :] * b_log2)  # (E7)
            b_a_opposite = b_a_same  # (E8)
            eps_same, eps_opposite = eps, eps
        else:
            b_a_same, b_slope_same, b_t_same, eps_same = scaled_query(
                b_q, b_t_same_1, b_t_same_2, b_reach_1, b_reach_2, eps
            )
            b_a_opposite, b_slope_opposite, b_t_opposite, eps_opposite = scaled_query(
                b_q, b_t_opposite_2, b_t_opposite_1, b_reach_2, b_reach_1, eps
            )
        b_met_same, b_met_opposite = choose_mean(b_q, b_mean_1, b_mean_2), choose_mean(b_q, b_mean_2, b_mean_1)
        r_same = normaliser(b_a_same, b_met_same, m_n, eps_same)
        r_opposite = normaliser(b_a_opposite, b_met_opposite, m_n, eps_opposite)
        b_y_same = load_tokens(p_do + i_n * do_n, do_n, o_n, o_c, m_do) / r_same[:, None]  # (E15)
        b_y_opposite = load_tokens(p_do + i_n * do_n, do_n, o_n, D // 2 + o_c, m_do) / r_opposite[:, None]
        b_y_same, b_y_opposite = factor(b_y_same, PRECISION), factor(b_y_opposite, PRECISION)
        b_phi_same_1, b_phi_same_2 = by_sign(b_q, b_a_same)
        b_phi_opposite_2, b_phi_opposite_1 = by_sign(b_q, b_a_opposite)
        if p_cos is not None:  # (E10)
            b_cos_1, b_sin_1 = load_turn(p_cos, p_sin, i_n, 0, m_n, D, BN, BD)
            b_cos_2, b_sin_2 = load_turn(p_cos, p_sin, i_n, D, m_n, D, BN, BD)
            b_phi_same_1 = turn(b_phi_same_1, b_cos_1, b_sin_1, BN, BD)
            b_phi_same_2 = turn(b_phi_same_2, b_cos_2, b_sin_2, BN, BD)
            b_phi_opposite_1 = turn(b_phi_opposite_1, b_cos_1, b_sin_1, BN, BD)
            b_phi_opposite_2 = turn(b_phi_opposite_2, b_cos_2, b_sin_2, BN, BD)
        if p_dstate is not None:
            # [BD, BN] x [BN, BC]  (E16)
            b_t_1, b_t_2 = tl.trans(factor(b_phi_same_1, PRECISION)), tl.trans(factor(b_phi_same_2, PRECISION))
            b_dsame_1 = tl.dot(b_t_1, b_y_same, b_dsame_1, input_precision=PRECISION)
            b_dsame_2 = tl.dot(b_t_2, b_y_same, b_dsame_2, input_precision=PRECISION)
            b_t_1, b_t_2 = tl.trans(factor(b_phi_opposite_1, PRECISION)), tl.trans(factor(b_phi_opposite_2, PRECISION))
            b_dopposite_1 = tl.dot(b_t_1, b_y_opposite, b_dopposite_1, input_precision=PRECISION)
            b_dopposite_2 = tl.dot(b_t_2, b_y_opposite, b_dopposite_2, input_precision=PRECISION)

        # y Sᵀ of (E16), where an element's one non-zero feature stands: [BN, BC] x [BC, BD]
        b_g_1 = tl.dot(b_y_same, tl.trans(b_same_1), input_precision=PRECISION)
        b_g_2 = tl.dot(b_y_same, tl.trans(b_same_2), input_precision=PRECISION)
        if p_cos is not None:
            b_g_1, b_g_2 = turn_back(b_g_1, b_cos_1, b_sin_1, BN, BD), turn_back(b_g_2, b_cos_2, b_sin_2, BN, BD)
        b_da_same = tl.where(m_negative, b_g_2, b_g_1)
        b_g_1 = tl.dot(b_y_opposite, tl.trans(b_opposite_1), input_precision=PRECISION)
        b_g_2 = tl.dot(b_y_opposite, tl.trans(b_opposite_2), input_precision=PRECISION)
        if p_cos is not None:
            b_g_1, b_g_2 = turn_back(b_g_1, b_cos_1, b_sin_1, BN, BD), turn_back(b_g_2, b_cos_2, b_sin_2, BN, BD)
        b_da_opposite = tl.where(m_negative, b_g_1, b_g_2)
        c_same = -tl.sum(b_a_same * b_da_same, 1) / r_same  # (E15)
        c_opposite = -tl.sum(b_a_opposite * b_da_opposite, 1) / r_opposite
        b_da_same += c_same[:, None] * b_met_same  # (E16)
        b_da_opposite += c_opposite[:, None] * b_met_opposite
        if p_dstate is not None:
            b_c_same, b_c_opposite = c_same[:, None] * b_a_same, c_opposite[:, None] * b_a_opposite
            b_dmean_1 += tl.where(m_negative, b_c_opposite, b_c_same)  # (E16)
            b_dmean_2 += tl.where(m_negative, b_c_same, b_c_opposite)

        if p_exponent is not None:
            b_dq, b_dexponent = power_gradient(b_q, b_a_same, b_log2, b_exponent, b_da_same + b_da_opposite)
            b_dp_0 += b_dexponent
            b_dp_1 += b_dq * b_q
            b_dq *= b_inverse_scale[None, :]
        else:
            # d a = slope (t d|q| + |q| dt)
            b_size = tl.abs(b_q)
            b_da_same *= b_slope_same
            b_da_opposite *= b_slope_opposite
            b_dq = b_da_same * b_t_same + b_da_opposite * b_t_opposite
            b_dq = tl.where(m_negative, -b_dq, tl.where(b_q == 0, 0.0, b_dq))
            b_da_same *= b_size
            b_da_opposite *= b_size
            b_dp_0 += tl.where(m_negative, 0.0, b_da_same)
            b_dp_1 += tl.where(m_negative, b_da_same, 0.0)
            b_dp_2 += tl.where(m_negative, b_da_opposite, 0.0)
            b_dp_3 += tl.where(m_negative, 0.0, b_da_opposite)
        if p_dq is not None:
            p_rows = p_dq + ((i_b * queries + i_n) * heads + i_h) * D + (o_n * heads * D)[:, None] + o_d[None, :]
            tl.store(p_rows, b_dq.to(p_dq.dtype.element_ty), mask=m_q)

    i_part = i_bh * tl.num_programs(1) + i_chunk
    if p_dstate is not None:
        p_dstate += i_part * 2 * D * D
        store_state(p_dstate, 0, 0, D // 2, b_dsame_1, D, BD, BC)
        store_state(p_dstate, D, 0, D // 2, b_dsame_2, D, BD, BC)
        store_state(p_dstate, 0, D // 2, D // 2, b_dopposite_1, D, BD, BC)
        store_state(p_dstate, D, D // 2, D // 2, b_dopposite_2, D, BD, BC)
        store_halves(p_dmean + i_part * 2 * D, tl.sum(b_dmean_1, 0), tl.sum(b_dmean_2, 0), D, BD)
    if p_dparameters is not None:
        p_dparameters += i_part * 4 * D
        store_halves(p_dparameters, tl.sum(b_dp_0, 0), tl.sum(b_dp_1, 0), D, BD)
        store_halves(p_dparameters + 2 * D, tl.sum(b_dp_2, 0), tl.sum(b_dp_3, 0), D, BD)


def query_gradient(
    do: Tensor,
    q: Tensor,
    state: Tensor,
    mean: Tensor,
    shift: Tensor | None,
    parameters: Parameters,
    eps: float,
    wants: tuple[bool, bool, bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]:
    """dq [B, N, H, D], dS [B, H, 2D, D], dk̄ [B, H, 2D] and the parameters' gradients [H, 4, D], None where not wanted.

    Args:
        do: gradient of the output [B, N, H, D], unit stride in D.
        wants: whether dq, the state's gradients and the parameters' are wanted.
    """
    batch, queries, heads, dim = q.shape
    todo = plan('query_gradient', q, parameters)
    rows, chunks = todo.grid
    dq = torch.empty(q.shape, device=q.device, dtype=q.dtype) if wants[0] else None
    dstate = torch.empty(rows, chunks, 2 * dim, dim, device=q.device, dtype=torch.float32) if wants[1] else None
    dmean = torch.empty(rows, chunks, 2 * dim, device=q.device, dtype=torch.float32) if wants[1] else None
    dparameters = torch.empty(rows, chunks, 4, dim, device=q.device, dtype=torch.float32) if wants[2] else None
    if not todo.is_empty:
        with on_device_of(q):
            query_gradient_kernel[todo.grid](
                q, do, parameters.exponent, parameters.scale, parameters.same, parameters.opposite,
                parameters.cos, parameters.sin, state, mean, shift, dq, dstate, dmean, dparameters,
                *q.stride()[:3], *do.stride()[:3], heads, queries, todo.tokens, eps, **todo.options,
            )  # fmt: skip
    return (
        dq,
        None if dstate is None else dstate.sum(1).view(batch, heads, 2 * dim, dim),
        None if dmean is None else dmean.sum(1).view(batch, heads, 2 * dim),
        None if dparameters is None else dparameters.view(batch, heads, chunks, 4, dim).sum((0, 2)),
    )
