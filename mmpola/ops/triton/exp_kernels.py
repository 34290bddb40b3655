"""The kernels of an ExpMap: state (E1, E2), output (E3) and the gradients of both passes (E15-E18).

Features are shifted (E11-E13), and rotated for the products if there are rotary tables (E10). The opposite-signed
stream runs through the same device functions as the same-signed one, with all halves swapped.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs
# ruff: noqa: N803

import triton
import triton.language as tl

from mmpola.ops.triton.approximations import compute_once, round_factor
from mmpola.ops.triton.blocks import (
    add_products,
    load_halves,
    load_state,
    load_tokens,
    load_values,
    locate_program,
    multiply,
    multiply_transposed,
    select_by_sign,
    select_channels,
    store_halves,
    store_state,
)
from mmpola.ops.triton.exp_features import (
    exp_gradient,
    largest_of_pairs,
    load_half_rotation,
    load_query_shift,
    load_rotation,
    load_streams,
    query_feature_gradient,
    rotate_factor,
    rotate_factors,
    rotate_halves_back,
    shifted_key,
    shifted_query,
    split_factor,
    store_streams,
)


@triton.jit(do_not_specialize=['heads', 'keys', 'tokens', 'shrink', 'grow'])
def polarity_attention_exp_state_kernel(
    p_k, p_v, p_position, p_cos, p_sin, p_state,
    k_b, k_n, k_h, v_b, v_n, v_h, heads, keys, tokens, shrink, grow,
    D: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, BC: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute partial states with their shifts [B * H, chunks, 2D * (D + 2)] of `tokens` keys per program.

    1/M = shrink * grow. Values are multiplied by the power of two `shrink`, which keeps half values exact in a tf32
    product, and sums by `grow`; without `shrink` the sums could overflow. The shift is the largest key so far (E11):
    whenever it grows, the sums so far are multiplied by exp(old - new).
    """
    i_bh, i_chunk, i_b, i_h = locate_program(heads)
    p_k += i_b * k_b + i_h * k_h
    p_v += i_b * v_b + i_h * v_h
    o_n, o_d = tl.arange(0, BN), tl.arange(0, BD)
    b_shift_1, b_shift_2 = tl.zeros((BD,), tl.float32), tl.zeros((BD,), tl.float32)
    b_state_1, b_state_2 = tl.zeros((BD, BD), tl.float32), tl.zeros((BD, BD), tl.float32)
    b_mean_1, b_mean_2 = tl.zeros((BN, BD), tl.float32), tl.zeros((BN, BD), tl.float32)  # summed over BN at the end
    start = i_chunk * tokens
    for i_n in range(start, tl.minimum(start + tokens, keys), BN):
        m_n = i_n + o_n < keys
        m_k = m_n[:, None] & (o_d < D)[None, :]
        b_k = load_tokens(p_k + i_n * k_n, k_n, o_n, o_d, m_k)
        if p_position is not None:
            b_k += load_tokens(p_position + (i_n * heads + i_h) * D, heads * D, o_n, o_d, m_k)  # (E4)
        b_old_1, b_old_2 = b_shift_1, b_shift_2
        b_shift_1 = tl.maximum(b_shift_1, tl.ceil(tl.max(b_k, 0)))  # (E11)
        b_shift_2 = tl.maximum(b_shift_2, tl.ceil(tl.max(-b_k, 0)))
        if p_cos is not None:
            b_shift_1, b_shift_2 = largest_of_pairs(b_shift_1, BD), largest_of_pairs(b_shift_2, BD)
        b_decay_1, b_decay_2 = tl.exp(b_old_1 - b_shift_1), tl.exp(b_old_2 - b_shift_2)
        b_mean_1 *= b_decay_1[None, :]
        b_mean_2 *= b_decay_2[None, :]
        b_state_1 *= b_decay_1[:, None]
        b_state_2 *= b_decay_2[:, None]
        b_a, _ = shifted_key(b_k, b_shift_1, b_shift_2, PRECISION)
        b_psi_1, b_psi_2 = split_factor(b_k, b_a, PRECISION, p_cos is not None)  # (E9, E12)
        b_mean_1 += b_psi_1  # (E1)
        b_mean_2 += b_psi_2
        if p_cos is not None:  # (E10)
            b_cos, b_sin = load_half_rotation(p_cos, p_sin, i_n, 0, m_n, D, BN, BD)
            b_psi_1 = rotate_factor(b_psi_1, b_cos, b_sin, BN, BD, PRECISION)
            b_cos, b_sin = load_half_rotation(p_cos, p_sin, i_n, D, m_n, D, BN, BD)
            b_psi_2 = rotate_factor(b_psi_2, b_cos, b_sin, BN, BD, PRECISION)
        b_v = load_values(p_v + i_n * v_n, v_n, o_n, o_d, m_k, PRECISION) * shrink
        b_state_1, b_state_2 = add_products(b_state_1, b_state_2, b_psi_1, b_psi_2, b_v, PRECISION)  # (E2)

    p_state += (i_bh * tl.num_programs(1) + i_chunk) * 2 * D * (D + 2)
    store_state(p_state, 0, 0, D, b_state_1 * grow, D, BD, BD)
    store_state(p_state, D, 0, D, b_state_2 * grow, D, BD, BD)
    p_mean = p_state + 2 * D * D
    store_halves(p_mean, tl.sum(b_mean_1, 0) * (shrink * grow), tl.sum(b_mean_2, 0) * (shrink * grow), D, BD)
    store_halves(p_mean + 2 * D, b_shift_1, b_shift_2, D, BD)


@triton.jit(do_not_specialize=['heads', 'queries', 'tokens', 'eps'])
def polarity_attention_exp_output_kernel(
    p_q, p_same, p_opposite, p_cos, p_sin, p_state, p_o,
    q_b, q_n, q_h, heads, queries, tokens, eps,
    D: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, BC: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute o [B, N, H, D] (E3) for `tokens` queries per program; the state stays on the chip for all of them."""
    i_bh, i_chunk, i_b, i_h = locate_program(heads)
    p_q += i_b * q_b + i_h * q_h
    p_o += (i_b * queries * heads + i_h) * D
    o_n, o_d, o_c = tl.arange(0, BN), tl.arange(0, BD), tl.arange(0, BC)
    b_t_same_1, b_t_same_2 = load_halves(p_same + i_h * 2 * D, D, BD)
    b_t_opposite_1, b_t_opposite_2 = load_halves(p_opposite + i_h * 2 * D, D, BD)
    p_state += i_bh * 2 * D * (D + 2)
    b_same_1, b_same_2, b_opposite_1, b_opposite_2 = load_streams(p_state, D, BD, BC, PRECISION)
    b_mean_1, b_mean_2 = load_halves(p_state + 2 * D * D, D, BD)
    b_shift_1, b_shift_2 = load_query_shift(p_state + 2 * D * (D + 1), D, BD)
    start = i_chunk * tokens
    for i_n in range(start, tl.minimum(start + tokens, queries), BN):
        m_n = i_n + o_n < queries
        b_q = load_tokens(p_q + i_n * q_n, q_n, o_n, o_d, m_n[:, None] & (o_d < D)[None, :])
        b_a_same, _, _, _, inverse_same = shifted_query(
            b_q, b_t_same_1, b_t_same_2, b_shift_1, b_shift_2, b_mean_1, b_mean_2, m_n, eps, PRECISION
        )
        b_a_opposite, _, _, _, inverse_opposite = shifted_query(
            b_q, b_t_opposite_2, b_t_opposite_1, b_shift_2, b_shift_1, b_mean_2, b_mean_1, m_n, eps, PRECISION
        )
        b_same_phi_1, b_same_phi_2 = split_factor(b_q, b_a_same, PRECISION, p_cos is not None)  # (E9, E13)
        b_opposite_phi_2, b_opposite_phi_1 = split_factor(b_q, b_a_opposite, PRECISION, p_cos is not None)
        if p_cos is not None:  # (E10)
            b_cos, b_sin = load_half_rotation(p_cos, p_sin, i_n, 0, m_n, D, BN, BD)
            b_same_phi_1 = rotate_factor(b_same_phi_1, b_cos, b_sin, BN, BD, PRECISION)
            b_opposite_phi_1 = rotate_factor(b_opposite_phi_1, b_cos, b_sin, BN, BD, PRECISION)
            b_cos, b_sin = load_half_rotation(p_cos, p_sin, i_n, D, m_n, D, BN, BD)
            b_same_phi_2 = rotate_factor(b_same_phi_2, b_cos, b_sin, BN, BD, PRECISION)
            b_opposite_phi_2 = rotate_factor(b_opposite_phi_2, b_cos, b_sin, BN, BD, PRECISION)
        b_o_same = multiply(b_same_phi_1, b_same_phi_2, b_same_1, b_same_2, PRECISION) * inverse_same[:, None]
        b_o_opposite = multiply(b_opposite_phi_1, b_opposite_phi_2, b_opposite_1, b_opposite_2, PRECISION)
        b_o_opposite *= inverse_opposite[:, None]
        p_rows = p_o + i_n * heads * D + (o_n * heads * D)[:, None] + o_c[None, :]
        m_o = m_n[:, None] & (o_c < D // 2)[None, :]
        tl.store(p_rows, b_o_same.to(p_o.dtype.element_ty), mask=m_o)
        tl.store(p_rows + D // 2, b_o_opposite.to(p_o.dtype.element_ty), mask=m_o)


@triton.jit(do_not_specialize=['heads', 'queries', 'tokens', 'eps'])
def polarity_attention_exp_query_gradient_kernel(
    p_q, p_do, p_same, p_opposite, p_cos, p_sin, p_state, p_dq, p_dstate, p_dtemperatures,
    q_b, q_n, q_h, do_b, do_n, do_h, heads, queries, tokens, eps,
    D: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, BC: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute dq and each program's part of the state's gradient [2D * (D + 1)] and of the temperatures' [4, D].

    Outputs that are None are not computed. do·o of (E15) is computed as φ·(y Sᵀ), so o is not needed.
    """
    i_bh, i_chunk, i_b, i_h = locate_program(heads)
    p_q += i_b * q_b + i_h * q_h
    p_do += i_b * do_b + i_h * do_h
    o_n, o_d, o_c = tl.arange(0, BN), tl.arange(0, BD), tl.arange(0, BC)
    b_t_same_1, b_t_same_2 = load_halves(p_same + i_h * 2 * D, D, BD)
    b_t_opposite_1, b_t_opposite_2 = load_halves(p_opposite + i_h * 2 * D, D, BD)
    p_state += i_bh * 2 * D * (D + 2)
    b_same_1, b_same_2, b_opposite_1, b_opposite_2 = load_streams(p_state, D, BD, BC, PRECISION)
    b_mean_1, b_mean_2 = load_halves(p_state + 2 * D * D, D, BD)
    b_shift_1, b_shift_2 = load_query_shift(p_state + 2 * D * (D + 1), D, BD)
    b_dsame_1, b_dsame_2 = tl.zeros((BD, BC), tl.float32), tl.zeros((BD, BC), tl.float32)
    b_dopposite_1, b_dopposite_2 = tl.zeros((BD, BC), tl.float32), tl.zeros((BD, BC), tl.float32)
    # Sums over tokens stay [BN, BD] to the end: as many registers as a replicated [BD], and no reduction per block.
    b_dmean_1, b_dmean_2 = tl.zeros((BN, BD), tl.float32), tl.zeros((BN, BD), tl.float32)
    b_dt_same_1, b_dt_same_2 = tl.zeros((BN, BD), tl.float32), tl.zeros((BN, BD), tl.float32)
    b_dt_opposite_1, b_dt_opposite_2 = tl.zeros((BN, BD), tl.float32), tl.zeros((BN, BD), tl.float32)
    start = i_chunk * tokens
    for i_n in range(start, tl.minimum(start + tokens, queries), BN):
        m_n = i_n + o_n < queries
        m_q, m_do = m_n[:, None] & (o_d < D)[None, :], m_n[:, None] & (o_c < D // 2)[None, :]
        b_q = load_tokens(p_q + i_n * q_n, q_n, o_n, o_d, m_q)
        b_a_same, b_slope_same, b_t_same, b_mean_same, inverse_same = shifted_query(
            b_q, b_t_same_1, b_t_same_2, b_shift_1, b_shift_2, b_mean_1, b_mean_2, m_n, eps, PRECISION
        )
        b_a_opposite, b_slope_opposite, b_t_opposite, b_mean_opposite, inverse_opposite = shifted_query(
            b_q, b_t_opposite_2, b_t_opposite_1, b_shift_2, b_shift_1, b_mean_2, b_mean_1, m_n, eps, PRECISION
        )
        b_y_same = load_tokens(p_do + i_n * do_n, do_n, o_n, o_c, m_do) * inverse_same[:, None]  # (E15)
        b_y_opposite = load_tokens(p_do + i_n * do_n, do_n, o_n, D // 2 + o_c, m_do) * inverse_opposite[:, None]
        b_y_same, b_y_opposite = round_factor(b_y_same, PRECISION), round_factor(b_y_opposite, PRECISION)
        b_same_phi_1, b_same_phi_2 = split_factor(b_q, b_a_same, PRECISION, p_cos is not None)  # (E9, E13)
        b_opposite_phi_2, b_opposite_phi_1 = split_factor(b_q, b_a_opposite, PRECISION, p_cos is not None)
        if p_cos is not None:  # (E10)
            b_cos_1, b_sin_1, b_cos_2, b_sin_2 = load_rotation(p_cos, p_sin, i_n, m_n, D, BN, BD)
            b_same_phi_1, b_same_phi_2 = rotate_factors(
                b_same_phi_1, b_same_phi_2, b_cos_1, b_sin_1, b_cos_2, b_sin_2, BN, BD, PRECISION
            )
            b_opposite_phi_1, b_opposite_phi_2 = rotate_factors(
                b_opposite_phi_1, b_opposite_phi_2, b_cos_1, b_sin_1, b_cos_2, b_sin_2, BN, BD, PRECISION
            )
        if p_dstate is not None:  # (E16)
            b_dsame_1, b_dsame_2 = add_products(b_dsame_1, b_dsame_2, b_same_phi_1, b_same_phi_2, b_y_same, PRECISION)
            b_dopposite_1, b_dopposite_2 = add_products(
                b_dopposite_1, b_dopposite_2, b_opposite_phi_1, b_opposite_phi_2, b_y_opposite, PRECISION
            )
        b_1, b_2 = multiply_transposed(b_y_same, b_same_1, b_same_2, PRECISION)
        if p_cos is not None:
            b_1, b_2 = rotate_halves_back(b_1, b_2, b_cos_1, b_sin_1, b_cos_2, b_sin_2, BN, BD)
        b_da_same, b_c_same = query_feature_gradient(b_a_same, select_by_sign(b_q, b_1, b_2), b_mean_same, inverse_same)
        b_1, b_2 = multiply_transposed(b_y_opposite, b_opposite_1, b_opposite_2, PRECISION)
        if p_cos is not None:
            b_1, b_2 = rotate_halves_back(b_1, b_2, b_cos_1, b_sin_1, b_cos_2, b_sin_2, BN, BD)
        b_da_opposite, b_c_opposite = query_feature_gradient(
            b_a_opposite, select_by_sign(b_q, b_2, b_1), b_mean_opposite, inverse_opposite
        )
        if p_dstate is not None:  # (E16)
            b_dmean_1 += select_by_sign(b_q, b_c_same, b_c_opposite)
            b_dmean_2 += select_by_sign(b_q, b_c_opposite, b_c_same)
        # The feature's size is |q| times the temperature.
        b_dsize_same, b_dsize_opposite = b_da_same * b_slope_same, b_da_opposite * b_slope_opposite
        b_dq = exp_gradient(b_q, b_dsize_same * b_t_same + b_dsize_opposite * b_t_opposite)
        b_dt_same, b_dt_opposite = b_dsize_same * tl.abs(b_q), b_dsize_opposite * tl.abs(b_q)
        b_dt_same_1 += select_by_sign(b_q, b_dt_same, 0.0)
        b_dt_same_2 += select_by_sign(b_q, 0.0, b_dt_same)
        b_dt_opposite_1 += select_by_sign(b_q, 0.0, b_dt_opposite)
        b_dt_opposite_2 += select_by_sign(b_q, b_dt_opposite, 0.0)
        if p_dq is not None:
            p_rows = p_dq + ((i_b * queries + i_n) * heads + i_h) * D + (o_n * heads * D)[:, None] + o_d[None, :]
            tl.store(p_rows, b_dq.to(p_dq.dtype.element_ty), mask=m_q)

    i_part = i_bh * tl.num_programs(1) + i_chunk
    if p_dstate is not None:
        p_dstate += i_part * 2 * D * (D + 1)
        store_streams(p_dstate, b_dsame_1, b_dsame_2, b_dopposite_1, b_dopposite_2, D, BD, BC)
        store_halves(p_dstate + 2 * D * D, tl.sum(b_dmean_1, 0), tl.sum(b_dmean_2, 0), D, BD)
    if p_dtemperatures is not None:
        p_dtemperatures += i_part * 4 * D
        store_halves(p_dtemperatures, tl.sum(b_dt_same_1, 0), tl.sum(b_dt_same_2, 0), D, BD)
        store_halves(p_dtemperatures + 2 * D, tl.sum(b_dt_opposite_1, 0), tl.sum(b_dt_opposite_2, 0), D, BD)


@triton.jit(do_not_specialize=['heads', 'keys', 'tokens'])
def polarity_attention_exp_key_gradient_kernel(
    p_k, p_v, p_position, p_cos, p_sin, p_state, p_dstate, p_dk, p_dv,
    k_b, k_n, k_h, v_b, v_n, v_h, heads, keys, tokens,
    D: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, BC: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute dk and dv; outputs that are None are not computed. The state's gradient is divided by M."""
    i_bh, i_chunk, i_b, i_h = locate_program(heads)
    p_k += i_b * k_b + i_h * k_h
    p_v += i_b * v_b + i_h * v_h
    o_n, o_d = tl.arange(0, BN), tl.arange(0, BD)
    b_shift_1, b_shift_2 = load_halves(p_state + i_bh * 2 * D * (D + 2) + 2 * D * (D + 1), D, BD)
    p_dstate += i_bh * 2 * D * (D + 1)
    b_dstate_1 = load_state(p_dstate, 0, 0, D, D, BD, BD, PRECISION)
    b_dstate_2 = load_state(p_dstate, D, 0, D, D, BD, BD, PRECISION)
    b_dmean_1, b_dmean_2 = load_halves(p_dstate + 2 * D * D, D, BD)
    start = i_chunk * tokens
    for i_n in range(start, tl.minimum(start + tokens, keys), BN):
        m_n = i_n + o_n < keys
        m_k = m_n[:, None] & (o_d < D)[None, :]
        o_row = ((i_b * keys + i_n) * heads + i_h) * D + (o_n * heads * D)[:, None]
        b_k = load_tokens(p_k + i_n * k_n, k_n, o_n, o_d, m_k)
        if p_position is not None:
            b_k += load_tokens(p_position + (i_n * heads + i_h) * D, heads * D, o_n, o_d, m_k)  # (E4)
        b_a, b_slope = shifted_key(b_k, b_shift_1, b_shift_2, PRECISION)  # (E9, E12)
        if BD > 32:  # narrower ones are cheaper to compute again
            b_a, b_slope = compute_once(b_a), compute_once(b_slope)
        if p_cos is not None:
            b_cos_1, b_sin_1, b_cos_2, b_sin_2 = load_rotation(p_cos, p_sin, i_n, m_n, D, BN, BD)
        if p_dk is not None:
            b_v = load_values(p_v + i_n * v_n, v_n, o_n, o_d, m_k, PRECISION)
            b_dpsi_1, b_dpsi_2 = multiply_transposed(b_v, b_dstate_1, b_dstate_2, PRECISION)  # (E17)
            if p_cos is not None:
                b_dpsi_1, b_dpsi_2 = rotate_halves_back(b_dpsi_1, b_dpsi_2, b_cos_1, b_sin_1, b_cos_2, b_sin_2, BN, BD)
            b_da = select_by_sign(b_k, b_dpsi_1, b_dpsi_2) + select_channels(b_k, b_dmean_1, b_dmean_2)
            b_dk = exp_gradient(b_k, b_da * b_slope)
            tl.store(p_dk + o_row + o_d[None, :], b_dk.to(p_dk.dtype.element_ty), mask=m_k)
        if p_dv is not None:
            b_psi_1, b_psi_2 = split_factor(b_k, b_a, PRECISION, p_cos is not None)
            if p_cos is not None:  # (E10)
                b_psi_1, b_psi_2 = rotate_factors(
                    b_psi_1, b_psi_2, b_cos_1, b_sin_1, b_cos_2, b_sin_2, BN, BD, PRECISION
                )
            b_dv = multiply(b_psi_1, b_psi_2, b_dstate_1, b_dstate_2, PRECISION)  # (E17)
            tl.store(p_dv + o_row + o_d[None, :], b_dv.to(p_dv.dtype.element_ty), mask=m_k)
