"""The kernels of a PowerMap: state (E1, E2), output (E3) and the gradients of both passes (E15-E18).

|x|^p is computed once per element. φ_opposite is φ_same with its halves swapped (E8), so the opposite-signed
stream passes the halves to the shared device functions in reversed order.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs
# ruff: noqa: N803

import triton
import triton.language as tl

from mmpola.ops.feature_map import LOG2_OF_ZERO
from mmpola.ops.triton.blocks import (
    add_products,
    load_halves,
    load_state,
    load_streams,
    load_tokens,
    locate_program,
    multiply_transposed,
    normaliser,
    query_feature_gradient,
    read_state,
    round_factor,
    select_by_sign,
    select_mean,
    split_by_sign,
    store_halves,
    store_state,
    store_streams,
)

LOG2_FLOOR = tl.constexpr(float(LOG2_OF_ZERO))


@triton.jit
def load_power(p_exponent, p_scale, i_h, D: tl.constexpr, BD: tl.constexpr):
    """Load p and 1/s of one head, [BD] each; both are 1 outside, and 1/s is 1 without a scale."""
    o_d = tl.arange(0, BD)
    b_exponent = tl.load(p_exponent + i_h * D + o_d, mask=o_d < D, other=1.0)
    if p_scale is None:
        return b_exponent, tl.where(o_d < D, 1.0, 1.0)
    else:  # noqa: RET505 - as in `round_factor`
        return b_exponent, 1.0 / tl.load(p_scale + i_h * D + o_d, mask=o_d < D, other=1.0)


@triton.jit
def log2_of_magnitude(x):
    """Compute log2|x| with a finite floor, so that 0 * log(0) is 0; NaN stays NaN."""
    log2 = tl.log2(tl.abs(x))
    return tl.where(log2 < LOG2_FLOOR, LOG2_FLOOR, log2)


@triton.jit
def power(x, b_exponent):
    """Compute a = |x|^p and log2|x|, [BN, BD] (E6, E7)."""
    b_log2 = log2_of_magnitude(x)
    return tl.exp2(b_exponent[None, :] * b_log2), b_log2


@triton.jit
def power_gradient(x, b_a, b_log2, b_exponent, b_da):
    """Compute dx and the terms of dp in units of ln 2, [BN, BD], from da of a = |x|^p (E18); both 0 at x = 0."""
    b_weighted = b_a * b_da
    return b_exponent[None, :] * b_weighted / tl.where(x == 0, 1.0, x), b_weighted * b_log2


@triton.jit(do_not_specialize=['heads', 'keys', 'tokens', 'shrink', 'grow'])
def polarity_attention_power_state_kernel(
    p_k, p_v, p_position, p_exponent, p_scale, p_state, p_mean,
    k_b, k_n, k_h, v_b, v_n, v_h, heads, keys, tokens, shrink, grow,
    D: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, BC: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute partial states [B * H, chunks, 2D, D] and key means [B * H, chunks, 2D] of `tokens` keys per program.

    1/M = shrink * grow. Values are multiplied by the power of two `shrink`, which keeps half values exact in a tf32
    product, and sums by `grow`; without `shrink` the sums could overflow.
    """
    i_bh, i_chunk, i_b, i_h = locate_program(heads)
    p_k += i_b * k_b + i_h * k_h
    p_v += i_b * v_b + i_h * v_h
    o_n, o_d = tl.arange(0, BN), tl.arange(0, BD)
    b_exponent, b_inverse_scale = load_power(p_exponent, p_scale, i_h, D, BD)
    b_state_1, b_state_2 = tl.zeros((BD, BD), tl.float32), tl.zeros((BD, BD), tl.float32)
    b_mean_1, b_mean_2 = tl.zeros((BN, BD), tl.float32), tl.zeros((BN, BD), tl.float32)  # summed over BN at the end
    start = i_chunk * tokens
    for i_n in range(start, tl.minimum(start + tokens, keys), BN):
        m_k = (i_n + o_n < keys)[:, None] & (o_d < D)[None, :]
        b_k = load_tokens(p_k + i_n * k_n, k_n, o_n, o_d, m_k)
        if p_position is not None:
            b_k += load_tokens(p_position + (i_n * heads + i_h) * D, heads * D, o_n, o_d, m_k)
        b_k *= b_inverse_scale[None, :]  # (E4)
        b_a, _ = power(b_k, b_exponent)
        b_psi_1, b_psi_2 = split_by_sign(b_k, b_a)  # (E6)
        b_mean_1 += b_psi_1  # (E1)
        b_mean_2 += b_psi_2
        b_v = round_factor(load_tokens(p_v + i_n * v_n, v_n, o_n, o_d, m_k) * shrink, PRECISION)
        b_state_1, b_state_2 = add_products(b_state_1, b_state_2, b_psi_1, b_psi_2, b_v, PRECISION)  # (E2)

    i_part = i_bh * tl.num_programs(1) + i_chunk
    p_state += i_part * 2 * D * D
    store_state(p_state, 0, 0, D, b_state_1 * grow, D, BD, BD)
    store_state(p_state, D, 0, D, b_state_2 * grow, D, BD, BD)
    b_mean_1, b_mean_2 = tl.sum(b_mean_1, 0) * (shrink * grow), tl.sum(b_mean_2, 0) * (shrink * grow)
    store_halves(p_mean + i_part * 2 * D, b_mean_1, b_mean_2, D, BD)


@triton.jit(do_not_specialize=['heads', 'queries', 'tokens', 'eps'])
def polarity_attention_power_output_kernel(
    p_q, p_exponent, p_scale, p_state, p_mean, p_o,
    q_b, q_n, q_h, heads, queries, tokens, eps,
    D: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, BC: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute o [B, N, H, D] (E3) for `tokens` queries per program; the state stays on the chip for all of them."""
    i_bh, i_chunk, i_b, i_h = locate_program(heads)
    p_q += i_b * q_b + i_h * q_h
    p_o += (i_b * queries * heads + i_h) * D
    o_n, o_d, o_c = tl.arange(0, BN), tl.arange(0, BD), tl.arange(0, BC)
    b_exponent, b_inverse_scale = load_power(p_exponent, p_scale, i_h, D, BD)
    b_same_1, b_same_2, b_opposite_1, b_opposite_2 = load_streams(p_state + i_bh * 2 * D * D, D, BD, BC, PRECISION)
    b_mean_1, b_mean_2 = load_halves(p_mean + i_bh * 2 * D, D, BD)
    start = i_chunk * tokens
    for i_n in range(start, tl.minimum(start + tokens, queries), BN):
        m_n = i_n + o_n < queries
        b_q = load_tokens(p_q + i_n * q_n, q_n, o_n, o_d, m_n[:, None] & (o_d < D)[None, :])
        b_q *= b_inverse_scale[None, :]  # (E4)
        b_a, _ = power(b_q, b_exponent)
        r_same = normaliser(b_a, select_mean(b_q, b_mean_1, b_mean_2), m_n, eps)
        r_opposite = normaliser(b_a, select_mean(b_q, b_mean_2, b_mean_1), m_n, eps)
        b_phi_1, b_phi_2 = split_by_sign(b_q, b_a)  # (E7)
        b_o_same = read_state(b_phi_1, b_phi_2, b_same_1, b_same_2, r_same, PRECISION)
        b_o_opposite = read_state(b_phi_2, b_phi_1, b_opposite_1, b_opposite_2, r_opposite, PRECISION)  # (E8)
        p_rows = p_o + i_n * heads * D + (o_n * heads * D)[:, None] + o_c[None, :]
        m_o = m_n[:, None] & (o_c < D // 2)[None, :]
        tl.store(p_rows, b_o_same.to(p_o.dtype.element_ty), mask=m_o)
        tl.store(p_rows + D // 2, b_o_opposite.to(p_o.dtype.element_ty), mask=m_o)


@triton.jit(do_not_specialize=['heads', 'queries', 'tokens', 'eps'])
def polarity_attention_power_query_gradient_kernel(
    p_q, p_do, p_exponent, p_scale, p_state, p_mean, p_dq, p_dstate, p_dmean, p_dparameters,
    q_b, q_n, q_h, do_b, do_n, do_h, heads, queries, tokens, eps,
    D: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, BC: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute dq and each program's part of dS [2D, D], dk̄ [2D] and the sums of dp and ds [2, D].

    Outputs that are None are not computed.
    """
    i_bh, i_chunk, i_b, i_h = locate_program(heads)
    p_q += i_b * q_b + i_h * q_h
    p_do += i_b * do_b + i_h * do_h
    o_n, o_d, o_c = tl.arange(0, BN), tl.arange(0, BD), tl.arange(0, BC)
    b_exponent, b_inverse_scale = load_power(p_exponent, p_scale, i_h, D, BD)
    b_same_1, b_same_2, b_opposite_1, b_opposite_2 = load_streams(p_state + i_bh * 2 * D * D, D, BD, BC, PRECISION)
    b_mean_1, b_mean_2 = load_halves(p_mean + i_bh * 2 * D, D, BD)
    b_dsame_1, b_dsame_2 = tl.zeros((BD, BC), tl.float32), tl.zeros((BD, BC), tl.float32)
    b_dopposite_1, b_dopposite_2 = tl.zeros((BD, BC), tl.float32), tl.zeros((BD, BC), tl.float32)
    # Sums over tokens stay [BN, BD] to the end: as many registers as a replicated [BD], and no reduction per block.
    b_dmean_1, b_dmean_2 = tl.zeros((BN, BD), tl.float32), tl.zeros((BN, BD), tl.float32)
    b_dp, b_ds = tl.zeros((BN, BD), tl.float32), tl.zeros((BN, BD), tl.float32)
    start = i_chunk * tokens
    for i_n in range(start, tl.minimum(start + tokens, queries), BN):
        m_n = i_n + o_n < queries
        m_q, m_do = m_n[:, None] & (o_d < D)[None, :], m_n[:, None] & (o_c < D // 2)[None, :]
        b_q = load_tokens(p_q + i_n * q_n, q_n, o_n, o_d, m_q) * b_inverse_scale[None, :]  # (E4)
        b_a, b_log2 = power(b_q, b_exponent)
        b_mean_same, b_mean_opposite = select_mean(b_q, b_mean_1, b_mean_2), select_mean(b_q, b_mean_2, b_mean_1)
        r_same, r_opposite = normaliser(b_a, b_mean_same, m_n, eps), normaliser(b_a, b_mean_opposite, m_n, eps)
        b_y_same = load_tokens(p_do + i_n * do_n, do_n, o_n, o_c, m_do) / r_same[:, None]  # (E15)
        b_y_opposite = load_tokens(p_do + i_n * do_n, do_n, o_n, D // 2 + o_c, m_do) / r_opposite[:, None]
        b_y_same, b_y_opposite = round_factor(b_y_same, PRECISION), round_factor(b_y_opposite, PRECISION)
        if p_dstate is not None:  # (E16)
            b_1, b_2 = split_by_sign(b_q, b_a)  # (E7, E8)
            b_dsame_1, b_dsame_2 = add_products(b_dsame_1, b_dsame_2, b_1, b_2, b_y_same, PRECISION)
            b_dopposite_1, b_dopposite_2 = add_products(b_dopposite_1, b_dopposite_2, b_2, b_1, b_y_opposite, PRECISION)
        b_1, b_2 = multiply_transposed(b_y_same, b_same_1, b_same_2, PRECISION)
        b_da_same, b_c_same = query_feature_gradient(b_a, select_by_sign(b_q, b_1, b_2), b_mean_same, r_same)
        b_1, b_2 = multiply_transposed(b_y_opposite, b_opposite_1, b_opposite_2, PRECISION)
        b_da_opposite, b_c_opposite = query_feature_gradient(
            b_a, select_by_sign(b_q, b_2, b_1), b_mean_opposite, r_opposite
        )
        if p_dstate is not None:  # (E16)
            b_dmean_1 += select_by_sign(b_q, b_c_same, b_c_opposite)
            b_dmean_2 += select_by_sign(b_q, b_c_opposite, b_c_same)
        b_dq, b_dexponent = power_gradient(b_q, b_a, b_log2, b_exponent, b_da_same + b_da_opposite)  # (E18)
        b_dp += b_dexponent
        b_ds += b_dq * b_q
        if p_dq is not None:
            p_rows = p_dq + ((i_b * queries + i_n) * heads + i_h) * D + (o_n * heads * D)[:, None] + o_d[None, :]
            tl.store(p_rows, (b_dq * b_inverse_scale[None, :]).to(p_dq.dtype.element_ty), mask=m_q)

    i_part = i_bh * tl.num_programs(1) + i_chunk
    if p_dstate is not None:
        p_dstate += i_part * 2 * D * D
        store_streams(p_dstate, b_dsame_1, b_dsame_2, b_dopposite_1, b_dopposite_2, D, BD, BC)
        store_halves(p_dmean + i_part * 2 * D, tl.sum(b_dmean_1, 0), tl.sum(b_dmean_2, 0), D, BD)
    if p_dparameters is not None:
        store_halves(p_dparameters + i_part * 2 * D, tl.sum(b_dp, 0), tl.sum(b_ds, 0), D, BD)


@triton.jit(do_not_specialize=['heads', 'keys', 'tokens'])
def polarity_attention_power_key_gradient_kernel(
    p_k, p_v, p_position, p_exponent, p_scale, p_dstate, p_dmean, p_dk, p_dv, p_dparameters,
    k_b, k_n, k_h, v_b, v_n, v_h, heads, keys, tokens,
    D: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, BC: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute dk, dv and each program's part of the sums of dp and ds [2, D]; outputs that are None are not computed.

    dS and dk̄ are divided by M.
    """
    i_bh, i_chunk, i_b, i_h = locate_program(heads)
    p_k += i_b * k_b + i_h * k_h
    p_v += i_b * v_b + i_h * v_h
    o_n, o_d = tl.arange(0, BN), tl.arange(0, BD)
    b_exponent, b_inverse_scale = load_power(p_exponent, p_scale, i_h, D, BD)
    p_dstate += i_bh * 2 * D * D
    b_dstate_1 = load_state(p_dstate, 0, 0, D, D, BD, BD, PRECISION)
    b_dstate_2 = load_state(p_dstate, D, 0, D, D, BD, BD, PRECISION)
    b_dmean_1, b_dmean_2 = load_halves(p_dmean + i_bh * 2 * D, D, BD)
    b_dp, b_ds = tl.zeros((BN, BD), tl.float32), tl.zeros((BN, BD), tl.float32)  # summed over BN at the end
    start = i_chunk * tokens
    for i_n in range(start, tl.minimum(start + tokens, keys), BN):
        m_k = (i_n + o_n < keys)[:, None] & (o_d < D)[None, :]
        o_row = ((i_b * keys + i_n) * heads + i_h) * D + (o_n * heads * D)[:, None]
        b_k = load_tokens(p_k + i_n * k_n, k_n, o_n, o_d, m_k)
        if p_position is not None:
            b_k += load_tokens(p_position + (i_n * heads + i_h) * D, heads * D, o_n, o_d, m_k)
        b_k *= b_inverse_scale[None, :]  # (E4)
        b_a, b_log2 = power(b_k, b_exponent)
        if (p_dk is not None) or (p_dparameters is not None):
            b_v = round_factor(load_tokens(p_v + i_n * v_n, v_n, o_n, o_d, m_k), PRECISION)
            b_dpsi_1, b_dpsi_2 = multiply_transposed(b_v, b_dstate_1, b_dstate_2, PRECISION)  # (E17)
            b_da = select_by_sign(b_k, b_dpsi_1, b_dpsi_2) + select_mean(b_k, b_dmean_1, b_dmean_2)
            b_dk, b_dexponent = power_gradient(b_k, b_a, b_log2, b_exponent, b_da)  # (E18)
            b_dp += b_dexponent
            b_ds += b_dk * b_k
            if p_dk is not None:
                b_dk *= b_inverse_scale[None, :]
                tl.store(p_dk + o_row + o_d[None, :], b_dk.to(p_dk.dtype.element_ty), mask=m_k)
        if p_dv is not None:
            b_psi_1, b_psi_2 = split_by_sign(b_k, b_a)  # (E6)
            # [BN, BD] x [BD, BD]  (E17)
            b_dv = tl.dot(round_factor(b_psi_1, PRECISION), b_dstate_1, input_precision=PRECISION)
            b_dv = tl.dot(round_factor(b_psi_2, PRECISION), b_dstate_2, b_dv, input_precision=PRECISION)
            tl.store(p_dv + o_row + o_d[None, :], b_dv.to(p_dv.dtype.element_ty), mask=m_k)
    if p_dparameters is not None:
        p_dparameters += (i_bh * tl.num_programs(1) + i_chunk) * 2 * D
        store_halves(p_dparameters, tl.sum(b_dp, 0), tl.sum(b_ds, 0), D, BD)
