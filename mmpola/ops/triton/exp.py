"""ExpMap: kernels of state (E1, E2), output (E3) and gradients (E15-E17), and their launches.

Features are shifted (E11-E13), and rotated for the products if there are rotary tables (E10). The
opposite-signed stream runs through the same device functions as the same-signed one, with all
halves swapped.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs
# ruff: noqa: N803

import torch
import triton
import triton.language as tl
from torch import Tensor

from mmpola.ops.exp_map import EXCLUDED_SHIFT
from mmpola.ops.triton.blocks import (
    SMALLEST_NORMAL,
    Launch,
    LaunchTable,
    add_by_sign,
    add_products,
    compute_once,
    exponential,
    from_exponent,
    in_product_layout,
    load_halves,
    load_keys,
    load_state,
    load_stream,
    load_tokens,
    load_values,
    locate_program,
    multiply,
    multiply_transposed,
    one_minus_exponential,
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
    to_exponent,
    with_sign_of,
)

KERNEL_EXCLUDED_SHIFT = tl.constexpr(EXCLUDED_SHIFT)


# ---- Features


@triton.jit
def shifted_expm1(b_size, b_offset, PRECISION: tl.constexpr):
    """Compute a = (exp(size) - 1) exp(offset) and its slope, but never exp(size) itself.

    Size and offset are in the unit of `to_exponent`.
    """
    b_slope = exponential(b_size + b_offset, PRECISION)
    b_a = one_minus_exponential(b_size, PRECISION) * b_slope
    return b_a, b_slope


@triton.jit
def shifted_key(b_k, b_shift_1, b_shift_2, PRECISION: tl.constexpr):
    """Compute a [BN, BD] of ψ' and its slope (E12), 0 at k = 0, from both shifts [BD]."""
    b_shift_1 = to_exponent(b_shift_1, PRECISION)
    b_shift_2 = to_exponent(b_shift_2, PRECISION)
    b_shift = select_channels(b_k, b_shift_1, b_shift_2)
    b_a, b_slope = shifted_expm1(to_exponent(tl.abs(b_k), PRECISION), -b_shift, PRECISION)
    b_slope = tl.where(b_k == 0, 0.0, b_slope)
    return b_a, b_slope


@triton.jit
def load_temperature(
    p_temperature,
    i_h,
    STREAM: tl.constexpr,
    D: tl.constexpr,
    BD: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Load a stream's halves [BD] of a head's temperatures [2D] in the unit of `to_exponent`."""
    b_t_1, b_t_2 = load_halves(p_temperature + i_h * 2 * D, D, BD, STREAM)
    b_t_1 = to_exponent(b_t_1.to(tl.float32), PRECISION)
    b_t_2 = to_exponent(b_t_2.to(tl.float32), PRECISION)
    return b_t_1, b_t_2


@triton.jit
def shifted_query(
    b_q, b_t_1, b_t_2, b_shift_1, b_shift_2, b_mean_1, b_mean_2, m_n, eps, PRECISION: tl.constexpr
):
    """Compute a stream's features of queries and the inverse of their normaliser (E3, E9, E13).

    Arguments ending in 1 belong to queries above 0, those in 2 to queries below 0. Temperatures and
    shifts are in the unit of `to_exponent`.

    Returns:
        a of φ', its slope, both 0 at q = 0, its temperature and its key mean, [BN, BD] each, and 1
        / r [BN], which is 0 outside the mask.
    """
    b_t = select_channels(b_q, b_t_1, b_t_2)
    b_size = tl.abs(b_q) * b_t
    b_shift = tl.where(b_q == 0, KERNEL_EXCLUDED_SHIFT, select_channels(b_q, b_shift_1, b_shift_2))
    b_level = tl.ceil(tl.maximum(tl.max(b_size + b_shift, 1), 0.0))
    b_a, b_slope = shifted_expm1(b_size, b_shift - b_level[:, None], PRECISION)
    b_mean = select_channels(b_q, b_mean_1, b_mean_2)
    r = tl.sum(b_a * b_mean, 1)
    r += tl.maximum(eps * exponential(-b_level, PRECISION), SMALLEST_NORMAL)
    inverse = tl.where(m_n, reciprocal(r, PRECISION), 0.0)
    return b_a, b_slope, b_t, b_mean, inverse


@triton.jit
def split_factor(x, b_a, PRECISION: tl.constexpr, ROTATED: tl.constexpr):
    """Split features by sign for a product; rounded unless a rotation follows."""
    if not ROTATED:
        b_a = round_feature(b_a, PRECISION)
    return split_by_sign(x, b_a)


@triton.jit
def load_query_shift(
    p_shift, STREAM: tl.constexpr, D: tl.constexpr, BD: tl.constexpr, PRECISION: tl.constexpr
):
    """Load a stream's halves [BD] of the shift [2D] (E11) for queries, in `to_exponent`'s unit.

    Channels in which no key is positive are excluded.
    """
    b_shift_1, b_shift_2 = load_halves(p_shift, D, BD, STREAM)
    b_shift_1 = tl.where(b_shift_1 == 0, KERNEL_EXCLUDED_SHIFT, to_exponent(b_shift_1, PRECISION))
    b_shift_2 = tl.where(b_shift_2 == 0, KERNEL_EXCLUDED_SHIFT, to_exponent(b_shift_2, PRECISION))
    return b_shift_1, b_shift_2


@triton.jit
def largest_of_pairs(x, BD: tl.constexpr):
    """Replace both channels of each interleaved pair of a vector [BD] by their maximum."""
    largest = tl.max(tl.reshape(x, (BD // 2, 2)), 1)
    return tl.reshape(tl.join(largest, largest), (BD,))


@triton.jit
def even_and_odd(x, BN: tl.constexpr, BD: tl.constexpr):
    """Split x [BN, BD] into even and odd channels [BN, BD / 2]; a thread holds both of a pair."""
    return tl.split(tl.reshape(x, (BN, BD // 2, 2)))


@triton.jit
def load_half_rotation(
    p_cos, p_sin, i_n, first, m_n, D: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr
):
    """Load cos and sin of pairs [BN, BD / 2]: tokens from i_n on, channels from `first` on."""
    o_n = tl.arange(0, BN)
    o_d = tl.arange(0, BD)
    mask = m_n[:, None] & (o_d < D)[None, :]
    b_cos = load_tokens(p_cos + i_n * 2 * D + first, 2 * D, o_n, o_d, mask)
    b_cos, _ = even_and_odd(b_cos, BN, BD)
    b_sin = load_tokens(p_sin + i_n * 2 * D + first, 2 * D, o_n, o_d, mask)
    b_sin, _ = even_and_odd(b_sin, BN, BD)
    return b_cos, b_sin


@triton.jit
def load_rotation(
    p_cos,
    p_sin,
    i_n,
    m_n,
    STREAM: tl.constexpr,
    D: tl.constexpr,
    BN: tl.constexpr,
    BD: tl.constexpr,
):
    """Load the rotations of both halves, (cos, sin) each, in the order of `load_halves`."""
    first = load_half_rotation(p_cos, p_sin, i_n, STREAM * D, m_n, D, BN, BD)
    second = load_half_rotation(p_cos, p_sin, i_n, (1 - STREAM) * D, m_n, D, BN, BD)
    return first, second


@triton.jit
def rotate_pairs(x, b_cos, b_sin, BN: tl.constexpr, BD: tl.constexpr):
    """Rotate interleaved pairs: (a, b) -> (a cos - b sin, b cos + a sin) (E10)."""
    b_even, b_odd = even_and_odd(x, BN, BD)
    b_rotated = tl.join(b_even * b_cos - b_odd * b_sin, b_odd * b_cos + b_even * b_sin)
    return tl.reshape(b_rotated, (BN, BD))


@triton.jit
def rotate_factors(b_1, b_2, rotation, BN: tl.constexpr, BD: tl.constexpr, PRECISION: tl.constexpr):
    """Rotate both tiles of a feature tensor and round them for a product."""
    b_1 = rotate_pairs(b_1, rotation[0][0], rotation[0][1], BN, BD)
    b_2 = rotate_pairs(b_2, rotation[1][0], rotation[1][1], BN, BD)
    b_1 = round_feature(b_1, PRECISION)
    b_2 = round_feature(b_2, PRECISION)
    return b_1, b_2


@triton.jit
def rotate_back(b_1, b_2, rotation, BN: tl.constexpr, BD: tl.constexpr):
    """Rotate both tiles of a feature tensor by the opposite angles."""
    b_1 = rotate_pairs(b_1, rotation[0][0], -rotation[0][1], BN, BD)
    b_2 = rotate_pairs(b_2, rotation[1][0], -rotation[1][1], BN, BD)
    return b_1, b_2


@triton.jit(do_not_specialize=['heads', 'keys', 'tokens', 'shrink', 'grow'])
def polarity_attention_exp_state_kernel(
    p_k, p_v, p_position, p_cos, p_sin, p_state,
    k_b, k_n, k_h, v_b, v_n, v_h, heads, keys, tokens, shrink, grow,
    D: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, BC: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute partial states and shifts [B * H, chunks, 2D * (D + 2)], `tokens` keys per program.

    1 / M = shrink * grow. Values are multiplied by the power of two `shrink`, because the sums
    could overflow without it; half values stay exact in a tf32 product. Sums are multiplied by
    `grow`. The shift (E11) is computed from the program's own keys by the first loop.
    """
    i_bh, i_chunk, i_b, i_h = locate_program(heads)
    p_k += i_b * k_b + i_h * k_h
    p_v += i_b * v_b + i_h * v_h
    o_n = tl.arange(0, BN)
    o_d = tl.arange(0, BD)
    start = i_chunk * tokens
    end = tl.minimum(start + tokens, keys)
    o_w = tl.arange(0, 4 * BN)  # four blocks at a time, because this loop only waits for loads
    b_max = tl.zeros((BD,), tl.float32)
    b_min = tl.zeros((BD,), tl.float32)
    for i_n in range(start, end, 4 * BN):
        m_k = (i_n + o_w < end)[:, None] & (o_d < D)[None, :]
        b_k = load_keys(p_k, p_position, k_n, i_n, i_h, heads, o_w, o_d, m_k, D)
        b_max = tl.maximum(b_max, tl.max(b_k, 0))
        b_min = tl.minimum(b_min, tl.min(b_k, 0))
    b_shift_1 = tl.ceil(b_max)  # (E11)
    b_shift_2 = tl.ceil(-b_min)
    if p_cos is not None:
        b_shift_1 = largest_of_pairs(b_shift_1, BD)
        b_shift_2 = largest_of_pairs(b_shift_2, BD)
    b_state_1 = tl.zeros((BD, BD), tl.float32)
    b_state_2 = tl.zeros((BD, BD), tl.float32)
    # Summed over BN at the end
    b_mean_1 = tl.zeros((BN, BD), tl.float32)
    b_mean_2 = tl.zeros((BN, BD), tl.float32)
    for i_n in range(start, end, BN):
        m_n = i_n + o_n < keys
        m_k = m_n[:, None] & (o_d < D)[None, :]
        b_k = load_keys(p_k, p_position, k_n, i_n, i_h, heads, o_n, o_d, m_k, D)
        b_a, _ = shifted_key(b_k, b_shift_1, b_shift_2, PRECISION)
        b_psi_1, b_psi_2 = split_factor(b_k, b_a, PRECISION, p_cos is not None)  # (E9, E12)
        b_mean_1 += b_psi_1  # (E1)
        b_mean_2 += b_psi_2
        if p_cos is not None:  # (E10)
            rotation = load_rotation(p_cos, p_sin, i_n, m_n, 0, D, BN, BD)
            b_psi_1, b_psi_2 = rotate_factors(b_psi_1, b_psi_2, rotation, BN, BD, PRECISION)
        b_v = load_values(p_v + i_n * v_n, v_n, o_n, o_d, m_k, PRECISION) * shrink
        b_state_1, b_state_2 = add_products(
            b_state_1, b_state_2, b_psi_1, b_psi_2, b_v, PRECISION
        )  # (E2)

    p_state += (i_bh * tl.num_programs(1) + i_chunk) * 2 * D * (D + 2)
    store_state(p_state, 0, 0, D, b_state_1 * grow, D, BD, BD)
    store_state(p_state, D, 0, D, b_state_2 * grow, D, BD, BD)
    p_mean = p_state + 2 * D * D
    b_mean_1 = tl.sum(b_mean_1, 0) * (shrink * grow)
    b_mean_2 = tl.sum(b_mean_2, 0) * (shrink * grow)
    store_halves(p_mean, b_mean_1, b_mean_2, D, BD)
    store_halves(p_mean + 2 * D, b_shift_1, b_shift_2, D, BD)


@triton.jit
def output_of_stream(
    p_q, p_temperature, p_cos, p_sin, p_state, p_o, q_n, o_stride, i_h, start, end, queries, eps,
    STREAM: tl.constexpr, D: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, BC: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute one stream's columns of o for the queries from `start` to `end`."""
    o_n = tl.arange(0, BN)
    o_d = tl.arange(0, BD)
    o_c = tl.arange(0, BC)
    b_t_1, b_t_2 = load_temperature(p_temperature, i_h, STREAM, D, BD, PRECISION)
    b_state_1, b_state_2 = load_stream(p_state, STREAM, D, BD, BC, PRECISION)
    b_mean_1, b_mean_2 = load_halves(p_state + 2 * D * D, D, BD, STREAM)
    b_shift_1, b_shift_2 = load_query_shift(p_state + 2 * D * (D + 1), STREAM, D, BD, PRECISION)
    for i_n in range(start, end, BN):
        m_n = i_n + o_n < queries
        m_q = m_n[:, None] & (o_d < D)[None, :]
        b_q = load_tokens(p_q + i_n * q_n, q_n, o_n, o_d, m_q)
        b_a, _, _, _, inverse = shifted_query(
            b_q, b_t_1, b_t_2, b_shift_1, b_shift_2, b_mean_1, b_mean_2, m_n, eps, PRECISION
        )
        if p_cos is None:
            b_phi_1, b_phi_2 = split_for_product(b_q, round_feature(b_a, PRECISION))  # (E9, E13)
        else:
            b_phi_1, b_phi_2 = split_by_sign(b_q, b_a)
            rotation = load_rotation(p_cos, p_sin, i_n, m_n, STREAM, D, BN, BD)  # (E10)
            b_phi_1, b_phi_2 = rotate_factors(b_phi_1, b_phi_2, rotation, BN, BD, PRECISION)
        b_o = multiply(b_phi_1, b_phi_2, b_state_1, b_state_2, PRECISION) * inverse[:, None]
        p_rows = p_o + i_n * o_stride + STREAM * (D // 2) + (o_n * o_stride)[:, None] + o_c[None, :]
        m_o = m_n[:, None] & (o_c < D // 2)[None, :]
        tl.store(p_rows, b_o.to(p_o.dtype.element_ty), mask=m_o)


@triton.jit(do_not_specialize=['heads', 'queries', 'tokens', 'eps'])
def polarity_attention_exp_output_kernel(
    p_q, p_same, p_opposite, p_cos, p_sin, p_state, p_o,
    q_b, q_n, q_h, heads, queries, tokens, eps,
    D: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, BC: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute o [B, N, H, D] (E3) for `tokens` queries per program, one stream after the other."""
    i_bh, i_chunk, i_b, i_h = locate_program(heads)
    p_q += i_b * q_b + i_h * q_h
    p_o += (i_b * queries * heads + i_h) * D
    p_state += i_bh * 2 * D * (D + 2)
    start = i_chunk * tokens
    end = tl.minimum(start + tokens, queries)
    for stream in tl.static_range(2):
        output_of_stream(
            p_q, p_same if stream == 0 else p_opposite, p_cos, p_sin, p_state, p_o,
            q_n, heads * D, i_h, start, end, queries, eps, stream, D, BN, BD, BC, PRECISION,
        )  # fmt: skip


@triton.jit
def query_gradient_of_stream(
    p_q, p_do, p_temperature, p_cos, p_sin, p_state, p_dq, p_dstate, p_dtemperature,
    q_n, do_n, dq_n, i_h, start, end, queries, inverse_keys, eps,
    STREAM: tl.constexpr, D: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, BC: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute a stream's share of dq, dS and the temperatures' gradient for a run of queries.

    The opposite-signed stream adds its dq to the dq that the same-signed one has stored. Returns
    the halves [BD] of dk̄.
    """
    o_n = tl.arange(0, BN)
    o_d = tl.arange(0, BD)
    o_c = tl.arange(0, BC)
    b_t_1, b_t_2 = load_temperature(p_temperature, i_h, STREAM, D, BD, PRECISION)
    b_state_1, b_state_2 = load_stream(p_state, STREAM, D, BD, BC, PRECISION)
    b_mean_1, b_mean_2 = load_halves(p_state + 2 * D * D, D, BD, STREAM)
    b_shift_1, b_shift_2 = load_query_shift(p_state + 2 * D * (D + 1), STREAM, D, BD, PRECISION)
    b_dstate_1 = tl.zeros((BD, BC), tl.float32)
    b_dstate_2 = tl.zeros((BD, BC), tl.float32)
    # Sums over tokens stay [BN / 2, BD] to the end, which needs no shuffles per block.
    b_dmean_1 = tl.zeros((BN // 2, BD), tl.float32)
    b_dmean_2 = tl.zeros((BN // 2, BD), tl.float32)
    b_dt_1 = tl.zeros((BN // 2, BD), tl.float32)
    b_dt_2 = tl.zeros((BN // 2, BD), tl.float32)
    for i_n in range(start, end, BN):
        m_n = i_n + o_n < queries
        m_q = m_n[:, None] & (o_d < D)[None, :]
        b_q = load_tokens(p_q + i_n * q_n, q_n, o_n, o_d, m_q)
        b_q = in_product_layout(b_q, BN, BD, PRECISION)
        b_a, b_slope, b_t, b_mean, inverse = shifted_query(
            b_q, b_t_1, b_t_2, b_shift_1, b_shift_2, b_mean_1, b_mean_2, m_n, eps, PRECISION
        )
        p_rows = p_do + i_n * do_n + STREAM * (D // 2)
        m_o = m_n[:, None] & (o_c < D // 2)[None, :]
        b_y = load_tokens(p_rows, do_n, o_n, o_c, m_o)
        b_y = round_factor(b_y * inverse[:, None], PRECISION)  # (E15)
        if p_cos is not None:
            rotation = load_rotation(p_cos, p_sin, i_n, m_n, STREAM, D, BN, BD)
        # dS comes before the products with S: for sm_80 and sm_89, Triton 3.6 lays out the warps
        # for the last products.
        if p_dstate is not None:
            b_phi_1, b_phi_2 = split_factor(b_q, b_a, PRECISION, p_cos is not None)  # (E9, E13)
            if p_cos is not None:  # (E10)
                b_phi_1, b_phi_2 = rotate_factors(b_phi_1, b_phi_2, rotation, BN, BD, PRECISION)
            b_dstate_1, b_dstate_2 = add_products(
                b_dstate_1, b_dstate_2, b_phi_1, b_phi_2, b_y, PRECISION
            )  # (E16)
        b_1, b_2 = multiply_transposed(b_y, b_state_1, b_state_2, PRECISION)
        if p_cos is not None:
            b_1, b_2 = rotate_back(b_1, b_2, rotation, BN, BD)
        b_y_state = select_by_sign(b_q, b_1, b_2)
        # do·o of (E15) is computed as φ·(y Sᵀ), so o is not needed.
        c = -tl.sum(b_a * b_y_state, 1) * inverse
        b_dmean_1, b_dmean_2 = add_by_sign(b_dmean_1, b_dmean_2, b_q, c[:, None] * b_a, BN, BD)
        # The feature's size is |q| times the temperature.
        b_dsize = (b_y_state + c[:, None] * b_mean) * b_slope
        b_dt_1, b_dt_2 = add_by_sign(b_dt_1, b_dt_2, b_q, b_dsize * tl.abs(b_q), BN, BD)
        if p_dq is not None:
            b_dq = with_sign_of(b_q, from_exponent(b_dsize * b_t, PRECISION))
            p_rows = p_dq + i_n * dq_n + (o_n * dq_n)[:, None] + o_d[None, :]
            if STREAM == 1:
                b_dq += tl.load(p_rows, mask=m_q, other=0.0).to(tl.float32)
            tl.store(p_rows, b_dq.to(p_dq.dtype.element_ty), mask=m_q)

    if p_dstate is not None:
        b_dstate_1 *= inverse_keys
        b_dstate_2 *= inverse_keys
        store_stream(p_dstate, b_dstate_1, b_dstate_2, STREAM, D, BD, BC)
    if p_dtemperature is not None:
        store_halves(p_dtemperature, tl.sum(b_dt_1, 0), tl.sum(b_dt_2, 0), D, BD, STREAM)
    return tl.sum(b_dmean_1, 0) * inverse_keys, tl.sum(b_dmean_2, 0) * inverse_keys


@triton.jit(do_not_specialize=['heads', 'queries', 'tokens', 'inverse_keys', 'eps'])
def polarity_attention_exp_query_gradient_kernel(
    p_q, p_do, p_same, p_opposite, p_cos, p_sin, p_state, p_dq, p_dstate, p_dtemperatures,
    q_b, q_n, q_h, do_b, do_n, do_h, heads, queries, tokens, inverse_keys, eps,
    D: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, BC: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute dq and parts of the gradients of state [2D * (D + 1)] and temperatures [4, D].

    The state's gradient is divided by M. Outputs that are None are not computed. One stream follows
    the other, because the registers hold the sums of one.
    """
    i_bh, i_chunk, i_b, i_h = locate_program(heads)
    i_part = i_bh * tl.num_programs(1) + i_chunk
    p_q += i_b * q_b + i_h * q_h
    p_do += i_b * do_b + i_h * do_h
    p_state += i_bh * 2 * D * (D + 2)
    p_dopposite = p_dtemperatures
    if p_dq is not None:
        p_dq += (i_b * queries * heads + i_h) * D
    if p_dstate is not None:
        p_dstate += i_part * 2 * D * (D + 1)
    if p_dtemperatures is not None:
        p_dtemperatures += i_part * 4 * D
        p_dopposite = p_dtemperatures + 2 * D
    start = i_chunk * tokens
    end = tl.minimum(start + tokens, queries)
    b_same_1, b_same_2 = query_gradient_of_stream(
        p_q, p_do, p_same, p_cos, p_sin, p_state, p_dq, p_dstate, p_dtemperatures,
        q_n, do_n, heads * D, i_h, start, end, queries, inverse_keys, eps,
        0, D, BN, BD, BC, PRECISION,
    )  # fmt: skip
    tl.debug_barrier()  # a thread may add to dq that another one has stored
    b_opposite_1, b_opposite_2 = query_gradient_of_stream(
        p_q, p_do, p_opposite, p_cos, p_sin, p_state, p_dq, p_dstate, p_dopposite,
        q_n, do_n, heads * D, i_h, start, end, queries, inverse_keys, eps,
        1, D, BN, BD, BC, PRECISION,
    )  # fmt: skip
    if p_dstate is not None:
        store_halves(p_dstate + 2 * D * D, b_same_1 + b_opposite_2, b_same_2 + b_opposite_1, D, BD)


@triton.jit(do_not_specialize=['heads', 'keys', 'tokens'])
def polarity_attention_exp_key_gradient_kernel(
    p_k, p_v, p_position, p_cos, p_sin, p_state, p_dstate, p_dk, p_dv,
    k_b, k_n, k_h, v_b, v_n, v_h, heads, keys, tokens,
    D: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, BC: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute dk and dv, except those that are None. The state's gradient is divided by M."""
    i_bh, i_chunk, i_b, i_h = locate_program(heads)
    p_k += i_b * k_b + i_h * k_h
    p_v += i_b * v_b + i_h * v_h
    o_n = tl.arange(0, BN)
    o_d = tl.arange(0, BD)
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
        b_k = load_keys(p_k, p_position, k_n, i_n, i_h, heads, o_n, o_d, m_k, D)
        b_a, b_slope = shifted_key(b_k, b_shift_1, b_shift_2, PRECISION)  # (E9, E12)
        if BD > 32 or p_cos is not None:  # Triton 3.6: otherwise they are cheaper to compute again
            b_a = compute_once(b_a)
            b_slope = compute_once(b_slope)
        if p_cos is not None:
            rotation = load_rotation(p_cos, p_sin, i_n, m_n, 0, D, BN, BD)
        if p_dk is not None:
            b_v = load_values(p_v + i_n * v_n, v_n, o_n, o_d, m_k, PRECISION)
            b_dpsi_1, b_dpsi_2 = multiply_transposed(
                b_v, b_dstate_1, b_dstate_2, PRECISION
            )  # (E17)
            if p_cos is not None:
                b_dpsi_1, b_dpsi_2 = rotate_back(b_dpsi_1, b_dpsi_2, rotation, BN, BD)
            b_da = select_by_sign(b_k, b_dpsi_1, b_dpsi_2)
            b_da += select_channels(b_k, b_dmean_1, b_dmean_2)
            b_dk = with_sign_of(b_k, b_da * b_slope)
            tl.store(p_dk + o_row + o_d[None, :], b_dk.to(p_dk.dtype.element_ty), mask=m_k)
        if p_dv is not None:
            b_psi_1, b_psi_2 = split_factor(b_k, b_a, PRECISION, p_cos is not None)
            if p_cos is not None:  # (E10)
                b_psi_1, b_psi_2 = rotate_factors(b_psi_1, b_psi_2, rotation, BN, BD, PRECISION)
            b_dv = multiply(b_psi_1, b_psi_2, b_dstate_1, b_dstate_2, PRECISION)  # (E17)
            tl.store(p_dv + o_row + o_d[None, :], b_dv.to(p_dv.dtype.element_ty), mask=m_k)


# ---- Launches

LAUNCHES: LaunchTable = {
    ('state', 16): Launch(tokens=32, warps=1, stages=3, programs=12),
    ('state', 32): Launch(tokens=16, warps=1, stages=3, programs=8),
    ('state', 64): Launch(tokens=32, warps=4, stages=3, programs=2),
    ('output', 16): Launch(tokens=16, warps=1, stages=3, programs=16),
    ('output', 32): Launch(tokens=16, warps=1, stages=3, programs=12),
    ('output', 64): Launch(tokens=32, warps=2, stages=1, programs=6),
    ('query_gradient', 16): Launch(tokens=16, warps=1, stages=2, programs=8),
    ('query_gradient', 32): Launch(tokens=32, warps=2, stages=2, programs=4),
    ('query_gradient', 64): Launch(tokens=32, warps=4, stages=2, programs=2),
    ('key_gradient', 16): Launch(tokens=16, warps=1, stages=2, programs=16),
    ('key_gradient', 32): Launch(tokens=32, warps=2, stages=3, programs=6),
    ('key_gradient', 64): Launch(tokens=32, warps=4, stages=3, programs=2),
}
# Blocks of rotary tables are loaded ahead too; they take four times the shared memory of the blocks
# of k and v.
ROTARY_LAUNCHES: LaunchTable = {
    ('state', 16): Launch(tokens=16, warps=1, stages=3, programs=16),
    ('state', 32): Launch(tokens=16, warps=1, stages=3, programs=8),
    ('state', 64): Launch(tokens=16, warps=2, stages=2, programs=4),
    ('output', 16): Launch(tokens=16, warps=1, stages=3, programs=16),
    ('output', 32): Launch(tokens=16, warps=1, stages=3, programs=8),
    ('output', 64): Launch(tokens=16, warps=2, stages=2, programs=4),
    ('query_gradient', 16): Launch(tokens=16, warps=1, stages=2, programs=8),
    ('query_gradient', 32): Launch(tokens=32, warps=2, stages=2, programs=4),
    ('query_gradient', 64): Launch(tokens=32, warps=4, stages=2, programs=2),
    ('key_gradient', 16): Launch(tokens=16, warps=1, stages=3, programs=14),
    ('key_gradient', 32): Launch(tokens=32, warps=2, stages=2, programs=6),
    ('key_gradient', 64): Launch(tokens=16, warps=4, stages=2, programs=2),
}


def launches(precision: str, has_rotary: bool) -> LaunchTable:
    """Return the launches with or without rotary tables, of all dtypes."""
    if has_rotary:
        return ROTARY_LAUNCHES
    return LAUNCHES


KERNELS = {
    'state': polarity_attention_exp_state_kernel,
    'output': polarity_attention_exp_output_kernel,
    'query_gradient': polarity_attention_exp_query_gradient_kernel,
    'key_gradient': polarity_attention_exp_key_gradient_kernel,
}
PARAMETERS = ('same', 'opposite')
HAS_SHIFT = True

# ---- Gradients of the temperatures

SUMS_PER_CHANNEL = 4
"""Sums over tokens for the gradients of the temperatures."""


def sums_needed(wants_same: bool, wants_opposite: bool) -> tuple[bool, bool, bool]:
    """Return whether sums over queries and over keys and dS are needed."""
    return wants_same or wants_opposite, False, False


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
    """Compute the gradients of both streams' temperatures [H, 2D], or None without sums."""
    same = tensors['p_same']
    opposite = tensors['p_opposite']
    assert same is not None and opposite is not None
    if query_sums is None:
        return None, None
    by_sample = query_sums.unflatten(0, (batch, same.shape[0]))  # [B, H, chunks, 4D]
    d_same, d_opposite = by_sample.sum((0, 2)).chunk(2, 1)
    return torch.empty_like(same).copy_(d_same), torch.empty_like(opposite).copy_(d_opposite)
