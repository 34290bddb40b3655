"""Device functions of an ExpMap: shifted exponentials (E9, E11-E13) and rotary positions (E10)."""
# mypy: allow-untyped-defs, allow-incomplete-defs
# ruff: noqa: N803

import triton
import triton.language as tl

from mmpola.ops.exp_map import EXCLUDED_SHIFT
from mmpola.ops.triton.approximations import (
    SMALLEST_NORMAL,
    exponential,
    one_minus_exponential,
    reciprocal,
    round_feature,
    to_exponent,
)
from mmpola.ops.triton.blocks import (
    load_halves,
    load_state,
    load_tokens,
    select_channels,
    split_by_sign,
    store_state,
)

KERNEL_EXCLUDED_SHIFT = tl.constexpr(EXCLUDED_SHIFT)


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


@triton.jit
def load_stream(
    p_state,
    STREAM: tl.constexpr,
    D: tl.constexpr,
    BD: tl.constexpr,
    BC: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Load a stream's columns of a state [2D, D] as factors [BD, BC], ordered as `load_halves`."""
    column = STREAM * (D // 2)
    b_1 = load_state(p_state, STREAM * D, column, D // 2, D, BD, BC, PRECISION)
    b_2 = load_state(p_state, (1 - STREAM) * D, column, D // 2, D, BD, BC, PRECISION)
    return b_1, b_2


@triton.jit
def store_stream(
    p_state, b_1, b_2, STREAM: tl.constexpr, D: tl.constexpr, BD: tl.constexpr, BC: tl.constexpr
):
    """Store the tiles that `load_stream` loads."""
    column = STREAM * (D // 2)
    store_state(p_state, STREAM * D, column, D // 2, b_1, D, BD, BC)
    store_state(p_state, (1 - STREAM) * D, column, D // 2, b_2, D, BD, BC)
