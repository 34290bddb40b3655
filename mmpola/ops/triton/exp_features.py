"""Device functions of an ExpMap: shifted exponentials (E9, E11-E13) and rotary position embedding (E10)."""
# mypy: allow-untyped-defs, allow-incomplete-defs
# ruff: noqa: N803

import triton
import triton.language as tl

from mmpola.ops.feature_map import EXCLUDED
from mmpola.ops.triton.approximations import expm1, exponential, reciprocal, round_feature
from mmpola.ops.triton.blocks import (
    load_halves,
    load_state,
    load_tokens,
    select_channels,
    split_by_sign,
    store_state,
)

EXCLUDED_SHIFT = tl.constexpr(EXCLUDED)
SMALLEST_NORMAL = tl.constexpr(2.0**-126)


@triton.jit
def shifted_expm1(b_size, b_offset, PRECISION: tl.constexpr):
    """Compute a = (exp(size) - 1) exp(offset) and its slope exp(size + offset), but never exp(size) itself."""
    b_slope = exponential(b_size + b_offset, PRECISION)
    return -expm1(-b_size, PRECISION) * b_slope, b_slope


@triton.jit
def shifted_key(b_k, b_shift_1, b_shift_2, PRECISION: tl.constexpr):
    """Compute a [BN, BD] of ψ' and its slope (E12) from the shifts [BD] of keys above and below 0."""
    return shifted_expm1(tl.abs(b_k), -select_channels(b_k, b_shift_1, b_shift_2), PRECISION)


@triton.jit
def shifted_query(b_q, b_t_1, b_t_2, b_shift_1, b_shift_2, b_mean_1, b_mean_2, m_n, eps, PRECISION: tl.constexpr):
    """Compute one stream's features of a block of queries and the inverse of their normaliser (E3, E9, E13).

    Arguments ending in 1 belong to queries above 0, those in 2 to queries below 0: the opposite-signed stream passes
    temperatures, shifts and key means [BD] with their halves swapped.

    Returns:
        a of φ', its slope, its temperature and the key mean selected by sign, [BN, BD] each, and 1 / r [BN],
        which is 0 outside the mask.
    """
    b_t = select_channels(b_q, b_t_1, b_t_2)
    b_size = tl.abs(b_q) * b_t
    b_shift = tl.where(b_q == 0, 0.0, select_channels(b_q, b_shift_1, b_shift_2))
    b_level = tl.ceil(tl.maximum(tl.max(b_size + b_shift, 1), 0.0))
    b_a, b_slope = shifted_expm1(b_size, b_shift - b_level[:, None], PRECISION)
    b_mean = select_channels(b_q, b_mean_1, b_mean_2)
    r = tl.sum(b_a * b_mean, 1) + tl.maximum(eps * tl.exp(-b_level), SMALLEST_NORMAL)
    return b_a, b_slope, b_t, b_mean, tl.where(m_n, reciprocal(r, PRECISION), 0.0)


@triton.jit
def split_factor(x, b_a, PRECISION: tl.constexpr, ROTATED: tl.constexpr):
    """Split features by sign for a product; they are rounded before, unless a rotation follows (`rotate_factor`)."""
    return split_by_sign(x, b_a if ROTATED else round_feature(b_a, PRECISION))


@triton.jit
def query_feature_gradient(b_a, b_y_state, b_mean, inverse):
    """Compute da [BN, BD] of one stream and its terms c a [BN, BD] of dk̄ (E15, E16).

    `b_y_state` is y Sᵀ, selected by sign like the key mean. do·o of (E15) equals φ·(y Sᵀ), so o is not needed.
    """
    c = -tl.sum(b_a * b_y_state, 1) * inverse
    return b_y_state + c[:, None] * b_mean, c[:, None] * b_a


@triton.jit
def exp_gradient(x, b_size_gradient):
    """Turn the gradient of |x| into that of x; 0 at x = 0."""
    return tl.where(x == 0, 0.0, tl.where(x < 0, -b_size_gradient, b_size_gradient))


@triton.jit
def load_query_shift(p_shift, D: tl.constexpr, BD: tl.constexpr):
    """Load the two halves of the shift [2D] of (E11) for queries: channels in which no key is positive are excluded."""
    b_shift_1, b_shift_2 = load_halves(p_shift, D, BD)
    b_shift_1 = tl.where(b_shift_1 == 0, EXCLUDED_SHIFT, b_shift_1)
    b_shift_2 = tl.where(b_shift_2 == 0, EXCLUDED_SHIFT, b_shift_2)
    return b_shift_1, b_shift_2


@triton.jit
def largest_of_pairs(x, BD: tl.constexpr):
    """Replace both channels of each interleaved pair of a vector [BD] by their maximum."""
    largest = tl.max(tl.reshape(x, (BD // 2, 2)), 1)
    return tl.reshape(tl.join(largest, largest), (BD,))


@triton.jit
def load_half_rotation(p_cos, p_sin, i_n, first, m_n, D: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr):
    """Load cos and the sin that `rotate` needs [BN, BD]: tokens from i_n on, feature channels from `first` on."""
    o_n, o_d = tl.arange(0, BN), tl.arange(0, BD)
    mask = m_n[:, None] & (o_d < D)[None, :]
    b_cos = load_tokens(p_cos + i_n * 2 * D + first, 2 * D, o_n, o_d, mask)
    b_sin = load_tokens(p_sin + i_n * 2 * D + first, 2 * D, o_n, o_d, mask)
    return b_cos, tl.where((o_d % 2 == 0)[None, :], -b_sin, b_sin)


@triton.jit
def load_rotation(p_cos, p_sin, i_n, m_n, D: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr):
    """Load cos and sin of both halves as tiles [BN, BD]."""
    b_cos_1, b_sin_1 = load_half_rotation(p_cos, p_sin, i_n, 0, m_n, D, BN, BD)
    b_cos_2, b_sin_2 = load_half_rotation(p_cos, p_sin, i_n, D, m_n, D, BN, BD)
    return b_cos_1, b_sin_1, b_cos_2, b_sin_2


@triton.jit
def swap_pairs(x, BN: tl.constexpr, BD: tl.constexpr):
    """Swap the two channels of each pair. One thread holds both, after a load or a product, so nothing is shuffled."""
    even, odd = tl.split(tl.reshape(x, (BN, BD // 2, 2)))
    return tl.reshape(tl.join(odd, even), (BN, BD))


@triton.jit
def rotate(x, b_cos, b_sin, BN: tl.constexpr, BD: tl.constexpr):
    """Rotate interleaved pairs: (a, b) -> (a cos - b sin, b cos + a sin) (E10)."""
    return x * b_cos + swap_pairs(x, BN, BD) * b_sin


@triton.jit
def rotate_factor(x, b_cos, b_sin, BN: tl.constexpr, BD: tl.constexpr, PRECISION: tl.constexpr):
    """Rotate features and round them for a product."""
    return round_feature(rotate(x, b_cos, b_sin, BN, BD), PRECISION)


@triton.jit
def rotate_back(x, b_cos, b_sin, BN: tl.constexpr, BD: tl.constexpr):
    """Apply the transpose of `rotate`."""
    return x * b_cos + swap_pairs(x * b_sin, BN, BD)


@triton.jit
def rotate_factors(
    b_1, b_2, b_cos_1, b_sin_1, b_cos_2, b_sin_2, BN: tl.constexpr, BD: tl.constexpr, PRECISION: tl.constexpr
):
    """Apply `rotate_factor` to both tiles of a feature tensor."""
    b_1 = rotate_factor(b_1, b_cos_1, b_sin_1, BN, BD, PRECISION)
    return b_1, rotate_factor(b_2, b_cos_2, b_sin_2, BN, BD, PRECISION)


@triton.jit
def rotate_halves_back(b_1, b_2, b_cos_1, b_sin_1, b_cos_2, b_sin_2, BN: tl.constexpr, BD: tl.constexpr):
    """Apply `rotate_back` to both tiles of a feature tensor."""
    return rotate_back(b_1, b_cos_1, b_sin_1, BN, BD), rotate_back(b_2, b_cos_2, b_sin_2, BN, BD)


@triton.jit
def load_streams(p_state, D: tl.constexpr, BD: tl.constexpr, BC: tl.constexpr, PRECISION: tl.constexpr):
    """Load a state [2D, D] as factors [BD, BC]: the two halves of S_same, then the two halves of S_opposite."""
    b_same_1 = load_state(p_state, 0, 0, D // 2, D, BD, BC, PRECISION)
    b_same_2 = load_state(p_state, D, 0, D // 2, D, BD, BC, PRECISION)
    b_opposite_1 = load_state(p_state, 0, D // 2, D // 2, D, BD, BC, PRECISION)
    b_opposite_2 = load_state(p_state, D, D // 2, D // 2, D, BD, BC, PRECISION)
    return b_same_1, b_same_2, b_opposite_1, b_opposite_2


@triton.jit
def store_streams(
    p_state, b_same_1, b_same_2, b_opposite_1, b_opposite_2, D: tl.constexpr, BD: tl.constexpr, BC: tl.constexpr
):
    """Store the tiles that `load_streams` loads."""
    store_state(p_state, 0, 0, D // 2, b_same_1, D, BD, BC)
    store_state(p_state, D, 0, D // 2, b_same_2, D, BD, BC)
    store_state(p_state, 0, D // 2, D // 2, b_opposite_1, D, BD, BC)
    store_state(p_state, D, D // 2, D // 2, b_opposite_2, D, BD, BC)
