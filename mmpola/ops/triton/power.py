"""PowerMap: kernels of state (E1, E2), output (E3) and gradients (E15-E18a), and their launches.

|x|^p is computed once per element. φ_opposite is φ_same with its halves swapped (E8): a query above
0 reads the rows [S_same of the first half | S_opposite of the second half], a query below 0 the
other rows. The output pass loads the state with its rows in this order, so that products of the
full width D serve both streams at once.

The gradient of the scale is not summed over tokens: see `power_parameters_kernel`.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs
# ruff: noqa: N803

import torch
import triton
import triton.language as tl
from torch import Tensor

from mmpola.ops.triton import block_of
from mmpola.ops.triton.blocks import (
    FUSION_OPTIONS,
    LN_2,
    LOG2_FLOOR,
    SMALLEST_NORMAL,
    Launch,
    LaunchTable,
    add_products,
    add_row_pairs,
    compute_once,
    in_product_layout,
    load_halves,
    load_keys,
    load_state,
    load_stream,
    load_tokens,
    load_values,
    locate_program,
    log2_of_magnitude,
    multiply,
    multiply_transposed,
    reciprocal,
    round_factor,
    round_feature,
    select_by_sign,
    select_channels,
    split_by_sign,
    split_for_product,
    store_halves,
    store_state,
    store_stream,
    with_sign_of,
)

# ---- Features


@triton.jit
def load_power(p_exponent, p_scale, i_h, D: tl.constexpr, BD: tl.constexpr):
    """Load p and compute log2(s) of a head, [BD] each: 2 and 0 outside D, 0 without a scale."""
    o_d = tl.arange(0, BD)
    b_exponent = tl.load(p_exponent + i_h * D + o_d, mask=o_d < D, other=2.0).to(tl.float32)
    if p_scale is None:
        b_log2_scale = tl.zeros((BD,), tl.float32)
    else:
        b_scale = tl.load(p_scale + i_h * D + o_d, mask=o_d < D, other=1.0).to(tl.float32)
        b_log2_scale = tl.log2(b_scale)
    return b_exponent, b_log2_scale


@triton.jit
def power(x, b_exponent, b_offset, PRECISION: tl.constexpr):
    """Compute |x|^p 2^offset [BN, BD]; with an offset of -p log2(s) it is (|x| / s)^p (E6, E7)."""
    return tl.exp2(b_exponent[None, :] * log2_of_magnitude(x, PRECISION) + b_offset[None, :])


@triton.jit
def power_slope(x, b_exponent, b_log2_scale, b_shift, PRECISION: tl.constexpr):
    """Compute a / |x|, where a is |x|^p 2^-shift, and log2(|x| / s), each [BN, BD] (E18).

    At x = 0 the slope is 0, also for p <= 1.
    """
    b_log2 = log2_of_magnitude(x, PRECISION)
    b_slope = tl.exp2((b_exponent - 1.0)[None, :] * b_log2 - b_shift[None, :])
    b_slope = tl.where(b_log2 == LOG2_FLOOR, 0.0, b_slope)
    b_scaled_log2 = b_log2 - b_log2_scale[None, :]
    return b_slope, b_scaled_log2


@triton.jit
def product_scale(b_mean_1, b_mean_2):
    """Compute c, a power of two whose square brings the largest key mean below 4, and log2(c).

    A query's features are in float32's range, but their products with a large state need not be.
    Multiplying features and state by c, and eps by its square, leaves (E3) unchanged, like the
    query's level (E8a), and costs nothing per token. c is 1 if the key means are smaller than 4;
    half of the scale for each factor keeps the small entries of a state with large ones.
    """
    b_largest = tl.maximum(tl.max(b_mean_1, 0), tl.max(b_mean_2, 0))
    exponent = (b_largest.to(tl.int32, bitcast=True) >> 23) & 0xFF  # as in a float32, 127 for 1
    half = (tl.minimum(tl.maximum(exponent, 127), 253) - 127) // 2
    return ((127 - half) << 23).to(tl.float32, bitcast=True), -half.to(tl.float32)


@triton.jit
def by_stream(b_same, b_opposite, D: tl.constexpr, BD: tl.constexpr):
    """Give the first D/2 columns [BN, BD] their token's `b_same` [BN], the others `b_opposite`."""
    is_same = (tl.arange(0, BD) < D // 2)[None, :]
    return tl.where(is_same, b_same[:, None], b_opposite[:, None])


@triton.jit
def inverse_or_zero(b_sum, eps, PRECISION: tl.constexpr):
    """Compute 1 / (φ·k̄ + eps); 0 where no features are shared, since 1 / eps may overflow."""
    return tl.where(b_sum == 0.0, 0.0, reciprocal(b_sum + eps, PRECISION))


@triton.jit
def read_offsets(HALF: tl.constexpr, D: tl.constexpr, BD: tl.constexpr):
    """Compute offsets and mask [BD, BD] of what queries above 0 (HALF 0) or below 0 (1) read."""
    o_d = tl.arange(0, BD)
    first_row = tl.where(o_d < D // 2, HALF * D, (1 - HALF) * D)  # of each column
    offsets = (first_row[None, :] + o_d[:, None]) * D + o_d[None, :]
    mask = (o_d < D)[:, None] & (o_d < D)[None, :]
    return offsets, mask


@triton.jit
def load_scaled_means(p_state, D: tl.constexpr, BD: tl.constexpr):
    """Load the key means [BD] that queries of either sign read, times `product_scale`.

    The scale and its logarithm are returned too.
    """
    b_mean_1, b_mean_2 = load_halves(p_state + 2 * D * D, D, BD)
    scale, log2_scale = product_scale(b_mean_1, b_mean_2)
    return b_mean_1 * scale, b_mean_2 * scale, scale, log2_scale


@triton.jit
def load_read_state(p_state, D: tl.constexpr, BD: tl.constexpr, PRECISION: tl.constexpr):
    """Load the entries of a state that queries of either sign read, [BD, BD], and key means [BD].

    All are multiplied by `product_scale`, which is returned too.
    """
    o_1, mask = read_offsets(0, D, BD)
    o_2, _ = read_offsets(1, D, BD)
    b_1 = tl.load(p_state + o_1, mask=mask, other=0.0)
    b_2 = tl.load(p_state + o_2, mask=mask, other=0.0)
    b_mean_1, b_mean_2, scale, log2_scale = load_scaled_means(p_state, D, BD)
    b_1 = round_factor(b_1, PRECISION) * scale
    b_2 = round_factor(b_2, PRECISION) * scale
    return b_1, b_2, b_mean_1, b_mean_2, scale, log2_scale


@triton.jit(do_not_specialize=['heads', 'keys', 'tokens', 'log2_shrink', 'grow'])
def polarity_attention_power_state_kernel(
    p_k, p_v, p_position, p_exponent, p_scale, p_state,
    k_b, k_n, k_h, v_b, v_n, v_h, heads, keys, tokens, log2_shrink, grow,
    D: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute partial states [B * H, chunks, 2D * (D + 1)] of `tokens` keys per program.

    1 / M = 2^log2_shrink * grow. Features contain the first factor, a power of two, because their
    sums could overflow without it; the sums are multiplied by the second.
    """
    i_bh, i_chunk, i_b, i_h = locate_program(heads)
    p_k += i_b * k_b + i_h * k_h
    p_v += i_b * v_b + i_h * v_h
    o_n = tl.arange(0, BN)
    o_d = tl.arange(0, BD)
    b_exponent, b_log2_scale = load_power(p_exponent, p_scale, i_h, D, BD)
    b_offset = log2_shrink - b_exponent * b_log2_scale
    b_state_1 = tl.zeros((BD, BD), tl.float32)
    b_state_2 = tl.zeros((BD, BD), tl.float32)
    # Summed over BN at the end
    b_mean_1 = tl.zeros((BN, BD), tl.float32)
    b_mean_2 = tl.zeros((BN, BD), tl.float32)
    start = i_chunk * tokens
    for i_n in range(start, tl.minimum(start + tokens, keys), BN):
        m_k = (i_n + o_n < keys)[:, None] & (o_d < D)[None, :]
        b_k = load_keys(p_k, p_position, k_n, i_n, i_h, heads, o_n, o_d, m_k, D)
        b_a = round_feature(power(b_k, b_exponent, b_offset, PRECISION), PRECISION)
        b_psi_1, b_psi_2 = split_by_sign(b_k, b_a)  # (E6)
        b_mean_1 += b_psi_1  # (E1)
        b_mean_2 += b_psi_2
        b_v = load_values(p_v + i_n * v_n, v_n, o_n, o_d, m_k, PRECISION)
        b_state_1, b_state_2 = add_products(
            b_state_1, b_state_2, b_psi_1, b_psi_2, b_v, PRECISION
        )  # (E2)

    p_state += (i_bh * tl.num_programs(1) + i_chunk) * 2 * D * (D + 1)
    store_state(p_state, 0, 0, D, b_state_1 * grow, D, BD, BD)
    store_state(p_state, D, 0, D, b_state_2 * grow, D, BD, BD)
    store_halves(p_state + 2 * D * D, tl.sum(b_mean_1, 0) * grow, tl.sum(b_mean_2, 0) * grow, D, BD)


@triton.jit(do_not_specialize=['heads', 'queries', 'tokens', 'eps'])
def polarity_attention_power_output_kernel(
    p_q, p_exponent, p_scale, p_state, p_o,
    q_b, q_n, q_h, heads, queries, tokens, eps,
    D: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute o [B, N, H, D] (E3), `tokens` queries per program; the state stays on the chip."""
    i_bh, i_chunk, i_b, i_h = locate_program(heads)
    p_q += i_b * q_b + i_h * q_h
    p_o += (i_b * queries * heads + i_h) * D
    o_n = tl.arange(0, BN)
    o_d = tl.arange(0, BD)
    b_exponent, b_log2_scale = load_power(p_exponent, p_scale, i_h, D, BD)
    p_state += i_bh * 2 * D * (D + 1)
    b_state_1, b_state_2, b_mean_1, b_mean_2, scale, log2_product_scale = load_read_state(
        p_state, D, BD, PRECISION
    )
    b_offset = log2_product_scale - b_exponent * b_log2_scale
    eps = tl.maximum(eps * scale * scale, SMALLEST_NORMAL)
    start = i_chunk * tokens
    for i_n in range(start, tl.minimum(start + tokens, queries), BN):
        m_q = (i_n + o_n < queries)[:, None] & (o_d < D)[None, :]
        b_q = load_tokens(p_q + i_n * q_n, q_n, o_n, o_d, m_q)
        b_a = power(b_q, b_exponent, b_offset, PRECISION)
        r_same = tl.sum(b_a * select_channels(b_q, b_mean_1, b_mean_2), 1) + eps
        r_opposite = tl.sum(b_a * select_channels(b_q, b_mean_2, b_mean_1), 1) + eps
        b_phi_1, b_phi_2 = split_by_sign(b_q, round_feature(b_a, PRECISION))  # (E7, E8)
        b_o = multiply(b_phi_1, b_phi_2, b_state_1, b_state_2, PRECISION)
        b_o *= by_stream(reciprocal(r_same, PRECISION), reciprocal(r_opposite, PRECISION), D, BD)
        p_rows = p_o + i_n * heads * D + (o_n * heads * D)[:, None] + o_d[None, :]
        tl.store(p_rows, b_o.to(p_o.dtype.element_ty), mask=m_q)


@triton.jit
def load_y(p_do, do_n, o_n, o_c, mask, b_a, b_mean, eps, PRECISION: tl.constexpr):
    """Load do of a stream and divide it by φ·k̄ + eps: y [BN, BC] (E15), and 1 / (φ·k̄ + eps)."""
    inverse = inverse_or_zero(tl.sum(b_a * b_mean, 1), eps, PRECISION)
    b_y = load_tokens(p_do, do_n, o_n, o_c, mask) * inverse[:, None]
    return compute_once(round_factor(b_y, PRECISION)), inverse


@triton.jit
def feature_gradient(b_q, b_a, b_y, b_1, b_2, b_mean, inverse, PRECISION: tl.constexpr):
    """Compute a stream's part of dφ [BN, BD] and its c [BN, 1] (E15, E16).

    c is taken from the product y Sᵀ, not from o: where one channel dominates φ, y Sᵀ and c k̄ cancel
    in it, and o, which is rounded, would leave its rounding error.
    """
    b_1, b_2 = multiply_transposed(b_y, b_1, b_2, PRECISION)
    b_da = select_by_sign(b_q, b_1, b_2)
    c = -(tl.sum(b_a * b_da, 1) * inverse)[:, None]
    return b_da + c * b_mean, c


@triton.jit(do_not_specialize=['heads', 'queries', 'tokens', 'inverse_keys', 'eps'])
def polarity_attention_power_query_gradient_kernel(
    p_q, p_do, p_exponent, p_scale, p_state, p_dq, p_dstate, p_dexponent,
    q_b, q_n, q_h, do_b, do_n, do_h, heads, queries, tokens, inverse_keys, eps,
    D: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, BC: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute dq and parts of the state's gradient [2D * (D + 1)] and of the sum of dp / ln 2 [D].

    The state's gradient is divided by M. Outputs that are None are not computed. All sums read the
    same rounded features, so that terms that cancel do.
    """
    i_bh, i_chunk, i_b, i_h = locate_program(heads)
    p_q += i_b * q_b + i_h * q_h
    p_do += i_b * do_b + i_h * do_h
    o_n = tl.arange(0, BN)
    o_d = tl.arange(0, BD)
    o_c = tl.arange(0, BC)
    b_exponent, b_log2_scale = load_power(p_exponent, p_scale, i_h, D, BD)
    p_state += i_bh * 2 * D * (D + 1)
    b_mean_1, b_mean_2, scale, log2_product_scale = load_scaled_means(p_state, D, BD)
    b_same_1, b_same_2 = load_stream(p_state, 0, D, BD, BC, PRECISION)
    b_opposite_1, b_opposite_2 = load_stream(p_state, 1, D, BD, BC, PRECISION)
    b_same_1 *= scale
    b_same_2 *= scale
    b_opposite_1 *= scale
    b_opposite_2 *= scale
    b_shift = b_exponent * b_log2_scale - log2_product_scale
    eps = tl.maximum(eps * scale * scale, SMALLEST_NORMAL)
    b_dsame_1 = tl.zeros((BD, BC), tl.float32)
    b_dsame_2 = tl.zeros((BD, BC), tl.float32)
    b_dopposite_1 = tl.zeros((BD, BC), tl.float32)
    b_dopposite_2 = tl.zeros((BD, BC), tl.float32)
    # Summed over BN / 2 at the end
    b_dmean_1 = tl.zeros((BN // 2, BD), tl.float32)
    b_dmean_2 = tl.zeros((BN // 2, BD), tl.float32)
    b_dexponent = tl.zeros((BN // 2, BD), tl.float32)
    start = i_chunk * tokens
    for i_n in range(start, tl.minimum(start + tokens, queries), BN):
        m_n = i_n + o_n < queries
        m_q = m_n[:, None] & (o_d < D)[None, :]
        m_do = m_n[:, None] & (o_c < D // 2)[None, :]
        b_q = load_tokens(p_q + i_n * q_n, q_n, o_n, o_d, m_q)
        b_q = in_product_layout(b_q, BN, BD, PRECISION)
        b_slope, b_log2 = power_slope(b_q, b_exponent, b_log2_scale, b_shift, PRECISION)
        b_a = round_feature(b_slope * tl.abs(b_q), PRECISION)
        b_mean_same = select_channels(b_q, b_mean_1, b_mean_2)
        b_mean_opposite = select_channels(b_q, b_mean_2, b_mean_1)
        p_rows = p_do + i_n * do_n
        b_y_same, inverse_same = load_y(
            p_rows, do_n, o_n, o_c, m_do, b_a, b_mean_same, eps, PRECISION
        )
        b_y_opposite, inverse_opposite = load_y(
            p_rows + D // 2, do_n, o_n, o_c, m_do, b_a, b_mean_opposite, eps, PRECISION
        )
        # Triton 3.6 takes the layout of all products from the last ones: dφ's, which are wide
        if p_dstate is not None:  # (E16)
            b_phi_1, b_phi_2 = split_by_sign(b_q, b_a)  # (E7, E8)
            b_dsame_1, b_dsame_2 = add_products(
                b_dsame_1, b_dsame_2, b_phi_1, b_phi_2, b_y_same, PRECISION
            )
            b_dopposite_1, b_dopposite_2 = add_products(
                b_dopposite_1, b_dopposite_2, b_phi_1, b_phi_2, b_y_opposite, PRECISION
            )
        b_da_same, c_same = feature_gradient(
            b_q, b_a, b_y_same, b_same_1, b_same_2, b_mean_same, inverse_same, PRECISION
        )
        b_da_opposite, c_opposite = feature_gradient(
            b_q, b_a, b_y_opposite, b_opposite_1, b_opposite_2, b_mean_opposite,
            inverse_opposite, PRECISION,
        )  # fmt: skip
        if p_dstate is not None:  # (E16)
            b_dmean_1 += add_row_pairs(b_a * select_by_sign(b_q, c_same, c_opposite), BN, BD)
            b_dmean_2 += add_row_pairs(b_a * select_by_sign(b_q, c_opposite, c_same), BN, BD)
        if (p_dq is not None) or (p_dexponent is not None):
            b_da = b_da_same + b_da_opposite
            b_dexponent += add_row_pairs(b_a * b_da * b_log2, BN, BD)
            if p_dq is not None:
                b_dq = b_exponent[None, :] * (b_slope * with_sign_of(b_q, b_da))  # (E18)
                o_first = ((i_b * queries + i_n) * heads + i_h) * D
                o_row = o_first + (o_n * heads * D)[:, None] + o_d[None, :]
                tl.store(p_dq + o_row, b_dq.to(p_dq.dtype.element_ty), mask=m_q)

    i_part = i_bh * tl.num_programs(1) + i_chunk
    if p_dstate is not None:
        p_dstate += i_part * 2 * D * (D + 1)
        scale *= inverse_keys
        store_stream(p_dstate, b_dsame_1 * scale, b_dsame_2 * scale, 0, D, BD, BC)
        store_stream(p_dstate, b_dopposite_1 * scale, b_dopposite_2 * scale, 1, D, BD, BC)
        b_mean_1 = tl.sum(b_dmean_1, 0) * scale
        b_mean_2 = tl.sum(b_dmean_2, 0) * scale
        store_halves(p_dstate + 2 * D * D, b_mean_1, b_mean_2, D, BD)
    if p_dexponent is not None:
        tl.store(p_dexponent + i_part * D + o_d, tl.sum(b_dexponent, 0), mask=o_d < D)


@triton.jit(do_not_specialize=['heads', 'keys', 'tokens'])
def polarity_attention_power_key_gradient_kernel(
    p_k, p_v, p_position, p_exponent, p_scale, p_dstate, p_dk, p_dv, p_dexponent,
    k_b, k_n, k_h, v_b, v_n, v_h, heads, keys, tokens,
    D: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute dk, dv and parts of the sum of dp / ln 2 [D], except those that are None.

    The state's gradient is divided by M.
    """
    i_bh, i_chunk, i_b, i_h = locate_program(heads)
    p_k += i_b * k_b + i_h * k_h
    p_v += i_b * v_b + i_h * v_h
    o_n = tl.arange(0, BN)
    o_d = tl.arange(0, BD)
    b_exponent, b_log2_scale = load_power(p_exponent, p_scale, i_h, D, BD)
    b_shift = b_exponent * b_log2_scale
    p_dstate += i_bh * 2 * D * (D + 1)
    b_dstate_1 = load_state(p_dstate, 0, 0, D, D, BD, BD, PRECISION)
    b_dstate_2 = load_state(p_dstate, D, 0, D, D, BD, BD, PRECISION)
    b_dmean_1, b_dmean_2 = load_halves(p_dstate + 2 * D * D, D, BD)
    b_dexponent = tl.zeros((BN, BD), tl.float32)  # summed over BN at the end
    start = i_chunk * tokens
    for i_n in range(start, tl.minimum(start + tokens, keys), BN):
        m_k = (i_n + o_n < keys)[:, None] & (o_d < D)[None, :]
        o_first = ((i_b * keys + i_n) * heads + i_h) * D
        o_row = o_first + (o_n * heads * D)[:, None] + o_d[None, :]
        b_k = load_keys(p_k, p_position, k_n, i_n, i_h, heads, o_n, o_d, m_k, D)
        b_slope, b_log2 = power_slope(b_k, b_exponent, b_log2_scale, b_shift, PRECISION)
        if BD > 32:  # Triton 3.6: narrower ones are cheaper to compute again
            b_slope = compute_once(b_slope)
            b_log2 = compute_once(b_log2)
        if (p_dk is not None) or (p_dexponent is not None):
            b_v = load_values(p_v + i_n * v_n, v_n, o_n, o_d, m_k, PRECISION)
            b_1, b_2 = multiply_transposed(b_v, b_dstate_1, b_dstate_2, PRECISION)  # (E17)
            b_da = select_by_sign(b_k, b_1 + b_dmean_1[None, :], -b_2 - b_dmean_2[None, :])
            b_dx = b_slope * b_da  # dk / p  (E18)
            b_dexponent += b_dx * b_k * b_log2
            if p_dk is not None:
                b_dk = b_exponent[None, :] * b_dx
                tl.store(p_dk + o_row, b_dk.to(p_dk.dtype.element_ty), mask=m_k)
        if p_dv is not None:
            b_a = round_feature(b_slope * tl.abs(b_k), PRECISION)
            if BD > 32:  # (E6). Triton 3.6: narrower ones are cheaper to move as two tiles
                b_psi_1, b_psi_2 = split_for_product(b_k, b_a)
            else:
                b_psi_1, b_psi_2 = split_by_sign(b_k, b_a)
            b_dv = multiply(b_psi_1, b_psi_2, b_dstate_1, b_dstate_2, PRECISION)  # (E17)
            tl.store(p_dv + o_row, b_dv.to(p_dv.dtype.element_ty), mask=m_k)
    if p_dexponent is not None:
        p_dexponent += (i_bh * tl.num_programs(1) + i_chunk) * D
        tl.store(p_dexponent + o_d, tl.sum(b_dexponent, 0), mask=o_d < D)


@triton.jit
def sum_over_batch(
    p_parts, p_factors, i_h, batch, heads, chunks, o_w, m_w,
    W: tl.constexpr, BP: tl.constexpr, BW: tl.constexpr, ROUNDED: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Add the entries o_w [BW] of all parts [B, H, chunks, W] of one head.

    Entries are multiplied by the factors' if there are any, the first ROUNDED of BW rounded before.
    """
    o_p = tl.arange(0, BP)
    is_rounded = (tl.arange(0, BW) < ROUNDED)[None, :]
    b_sum = tl.zeros((BP, BW), tl.float32)
    for i_p in range(0, batch * chunks, BP):
        i_b = (i_p + o_p) // chunks
        i_chunk = (i_p + o_p) % chunks
        o_part = ((i_b * heads + i_h) * chunks + i_chunk).to(tl.int64) * W
        offsets = o_part[:, None] + o_w[None, :]
        mask = (i_b < batch)[:, None] & m_w[None, :]
        b_part = tl.load(p_parts + offsets, mask=mask, other=0.0)
        if p_factors is not None:
            b_part = tl.where(is_rounded, round_factor(b_part, PRECISION), b_part)
            b_part *= tl.load(p_factors + offsets, mask=mask, other=0.0)
        b_sum += b_part
    return tl.sum(b_sum, 0)


@triton.jit(do_not_specialize=['batch', 'heads', 'keys', 'query_chunks', 'key_chunks'])
def power_parameters_kernel(
    p_from_queries, p_from_keys, p_state, p_dstate, p_exponent, p_scale, p_dexponent, p_dscale,
    batch, heads, keys, query_chunks, key_chunks,
    D: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of a PowerMap's exponent and scale [H, D], except those that are None.

    A program computes one channel's. The exponent's parts are in units of ln 2. For the scale:
    Σ_n φ dφ over the queries and Σ_m ψ dψ over the keys are both equal to the row sum of S ⊙ dS +
    k̄ ⊙ dk̄, because multiplying a channel of φ or of ψ by a number is the same as multiplying its
    row of the state. A feature is (x / s)^p, hence ds = -p / s Σ (φ dφ + ψ dψ). The state's
    gradient is divided by M, the number of keys. S is rounded as the product for dφ rounds it:
    where one channel dominates φ, S ⊙ dS and k̄ ⊙ dk̄ cancel.
    """
    i_h = tl.program_id(0)
    i_d = tl.program_id(1)
    i_p = i_h * D + i_d
    if p_dexponent is not None:
        o_w = i_d + tl.arange(0, 1)
        m_w = o_w < D
        b_dexponent = sum_over_batch(
            p_from_queries, None, i_h, batch, heads, query_chunks, o_w, m_w, D, BP, 1, 0, PRECISION
        )
        b_dexponent += sum_over_batch(
            p_from_keys, None, i_h, batch, heads, key_chunks, o_w, m_w, D, BP, 1, 0, PRECISION
        )
        dexponent = tl.sum(b_dexponent, 0) * LN_2
        tl.store(p_dexponent + i_p, dexponent.to(p_dexponent.dtype.element_ty))
    if p_dscale is not None:
        o_c = tl.arange(0, BC)
        b_product = tl.zeros((BC,), tl.float32)
        for half in tl.static_range(2):
            row = half * D + i_d
            o_w = tl.where(o_c < D, row * D + o_c, 2 * D * D + row)  # a row of S, then k̄'s entry
            b_product += sum_over_batch(
                p_state, p_dstate, i_h, batch, heads, 1, o_w, o_c <= D,
                2 * D * (D + 1), BP // 4, BC, D, PRECISION,
            )  # fmt: skip
        exponent = tl.load(p_exponent + i_p).to(tl.float32)
        scale = tl.load(p_scale + i_p).to(tl.float32)
        dscale = -2 * exponent / scale * (tl.sum(b_product, 0) * keys)
        tl.store(p_dscale + i_p, dscale.to(p_dscale.dtype.element_ty))


# ---- Launches

LAUNCHES: LaunchTable = {
    ('state', 16): Launch(tokens=32, warps=1, stages=3, programs=16),
    ('state', 32): Launch(tokens=32, warps=2, stages=3, programs=6),
    ('state', 64): Launch(tokens=16, warps=4, stages=3, programs=3),
    ('output', 16): Launch(tokens=16, warps=1, stages=3, programs=16),
    ('output', 32): Launch(tokens=16, warps=1, stages=3, programs=12),
    ('output', 64): Launch(tokens=64, warps=4, stages=3, programs=2),
    ('query_gradient', 16): Launch(tokens=16, warps=1, stages=2, programs=8),
    ('query_gradient', 32): Launch(tokens=32, warps=2, stages=3, programs=4),
    ('query_gradient', 64): Launch(tokens=32, warps=4, stages=3, programs=2),
    ('key_gradient', 16): Launch(tokens=16, warps=1, stages=2, programs=12),
    ('key_gradient', 32): Launch(tokens=16, warps=1, stages=3, programs=8),
    ('key_gradient', 64): Launch(tokens=32, warps=4, stages=2, programs=2),
}
# Products in full precision keep their factors in registers. With eight warps there are launches
# without spills, but they spend more on shared memory than these spend on spills.
FULL_PRECISION_LAUNCHES: LaunchTable = {
    **LAUNCHES,
    ('state', 32): Launch(tokens=16, warps=2, stages=2, programs=6),
    ('state', 64): Launch(tokens=16, warps=4, stages=3, programs=2),
    ('output', 64): Launch(tokens=32, warps=4, stages=2, programs=2),
    ('query_gradient', 32): Launch(tokens=16, warps=2, stages=2, programs=4),
    ('query_gradient', 64): Launch(tokens=16, warps=4, stages=2, programs=2),
}


def launches(precision: str, has_rotary: bool) -> LaunchTable:
    """Return the launches of float32 in full precision ('ieee'), or of the other dtypes."""
    if precision == 'ieee':
        return FULL_PRECISION_LAUNCHES
    return LAUNCHES


KERNELS = {
    'state': polarity_attention_power_state_kernel,
    'output': polarity_attention_power_output_kernel,
    'query_gradient': polarity_attention_power_query_gradient_kernel,
    'key_gradient': polarity_attention_power_key_gradient_kernel,
}
PARAMETERS = ('exponent', 'scale')
HAS_SHIFT = False

# ---- Gradients of exponent and scale

SUMS_PER_CHANNEL = 1
"""Sums over tokens for the gradient of the exponent."""


def sums_needed(wants_exponent: bool, wants_scale: bool) -> tuple[bool, bool, bool]:
    """Return whether sums over queries and over keys and dS are needed."""
    return wants_exponent, wants_exponent, wants_scale


def parameter_gradients(
    tensors: dict[str, Tensor | None],
    batch: int,
    query_sums: Tensor | None,
    key_sums: Tensor | None,
    state: Tensor,
    d_state: Tensor | None,
    keys: int,
    precision: str,
) -> tuple[Tensor | None, Tensor | None]:
    """Compute the gradients of exponent and scale [H, D] from what `sums_needed` says, or None."""
    exponent = tensors['p_exponent']
    scale = tensors['p_scale']
    assert exponent is not None
    if query_sums is None and d_state is None:
        return None, None
    heads, dim = exponent.shape
    d_exponent = None
    query_chunks = 0
    if query_sums is not None:
        d_exponent = torch.empty_like(exponent)
        query_chunks = query_sums.shape[1]
    key_chunks = 0
    if key_sums is not None:
        key_chunks = key_sums.shape[1]
    d_scale = None
    if d_state is not None and scale is not None:
        d_scale = torch.empty_like(scale)
    power_parameters_kernel[heads, dim](
        query_sums,
        key_sums,
        state,
        d_state,
        exponent,
        scale,
        d_exponent,
        d_scale,
        batch,
        heads,
        keys,
        query_chunks,
        key_chunks,
        D=dim,
        BP=128,
        BC=2 * block_of(dim),
        PRECISION=precision,
        num_warps=4,
        **FUSION_OPTIONS,
    )
    return d_exponent, d_scale
