"""Device functions of an ExpMap: shifted exponentials (E9, E11-E13) and rotary position embedding (E10)."""
# mypy: allow-untyped-defs, allow-incomplete-defs
# ruff: noqa: N803

import triton
import triton.language as tl

from mmpola.ops.feature_map import EXCLUDED
from mmpola.ops.triton.blocks import load_halves, load_tokens, normaliser, select_mean

EXCLUDED_SHIFT = tl.constexpr(EXCLUDED)
SERIES_BELOW = tl.constexpr(0.35)
SMALLEST_NORMAL = tl.constexpr(2.0**-126)


@triton.jit
def expm1(x):
    """Compute exp(x) - 1 without cancellation: below SERIES_BELOW the terms to x^7/7! reach float32's last bit."""
    series = 1.0 + x * (1.0 / 6.0) * (1.0 + x * (1.0 / 7.0))
    series = 1.0 + x * (1.0 / 4.0) * (1.0 + x * (1.0 / 5.0) * series)
    series = x * (1.0 + x * (1.0 / 2.0) * (1.0 + x * (1.0 / 3.0) * series))
    return tl.where(tl.abs(x) < SERIES_BELOW, series, tl.exp(x) - 1.0)


@triton.jit
def shifted_expm1(b_size, b_offset):
    """Compute a = (exp(size) - 1) exp(offset) and its slope exp(size + offset), but never exp(size) itself."""
    b_slope = tl.exp(b_size + b_offset)
    return -expm1(-b_size) * b_slope, b_slope


@triton.jit
def shifted_key(b_k, b_shift_1, b_shift_2):
    """Compute a [BN, BD] of ψ' and its slope (E12) from the shifts [BD] of keys above and below 0."""
    return shifted_expm1(tl.abs(b_k), -tl.where(b_k < 0, b_shift_2[None, :], b_shift_1[None, :]))


@triton.jit
def shifted_query(b_q, b_t_1, b_t_2, b_shift_1, b_shift_2, b_mean_1, b_mean_2, m_n, eps):
    """Compute one stream's features of a block of queries and their normaliser (E3, E9, E13).

    Arguments ending in 1 belong to queries above 0, those in 2 to queries below 0: the opposite-signed stream passes
    temperatures, shifts and key means [BD] with their halves swapped.

    Returns:
        a of φ', its slope, its temperature and the key mean selected by sign, [BN, BD] each, and r [BN].
    """
    b_t = tl.where(b_q < 0, b_t_2[None, :], b_t_1[None, :])
    b_size = tl.abs(b_q) * b_t
    b_shift = tl.where(b_q < 0, b_shift_2[None, :], tl.where(b_q > 0, b_shift_1[None, :], 0.0))
    b_level = tl.ceil(tl.maximum(tl.max(b_size + b_shift, 1), 0.0))
    b_a, b_slope = shifted_expm1(b_size, b_shift - b_level[:, None])
    b_mean = select_mean(b_q, b_mean_1, b_mean_2)
    r = normaliser(b_a, b_mean, m_n, tl.maximum(eps * tl.exp(-b_level), SMALLEST_NORMAL))
    return b_a, b_slope, b_t, b_mean, r


@triton.jit
def exp_gradient(x, b_size_gradient):
    """Turn the gradient of |x| into that of x; 0 at x = 0."""
    return tl.where(x < 0, -b_size_gradient, tl.where(x == 0, 0.0, b_size_gradient))


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
    """Swap the two channels of each pair. They lie in one thread, after a product as after a load: no shuffle."""
    even, odd = tl.split(tl.reshape(x, (BN, BD // 2, 2)))
    return tl.reshape(tl.join(odd, even), (BN, BD))


@triton.jit
def rotate(x, b_cos, b_sin, BN: tl.constexpr, BD: tl.constexpr):
    """Rotate interleaved pairs: (a, b) -> (a cos - b sin, b cos + a sin) (E10)."""
    return x * b_cos + swap_pairs(x, BN, BD) * b_sin


@triton.jit
def rotate_back(x, b_cos, b_sin, BN: tl.constexpr, BD: tl.constexpr):
    """Apply the transpose of `rotate`."""
    return x * b_cos + swap_pairs(x * b_sin, BN, BD)


@triton.jit
def rotate_halves(b_1, b_2, b_cos_1, b_sin_1, b_cos_2, b_sin_2, BN: tl.constexpr, BD: tl.constexpr):
    """Rotate both tiles of a feature tensor."""
    return rotate(b_1, b_cos_1, b_sin_1, BN, BD), rotate(b_2, b_cos_2, b_sin_2, BN, BD)


@triton.jit
def rotate_halves_back(b_1, b_2, b_cos_1, b_sin_1, b_cos_2, b_sin_2, BN: tl.constexpr, BD: tl.constexpr):
    """Apply the transpose of `rotate_halves`."""
    return rotate_back(b_1, b_cos_1, b_sin_1, BN, BD), rotate_back(b_2, b_cos_2, b_sin_2, BN, BD)
