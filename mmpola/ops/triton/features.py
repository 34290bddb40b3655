"""Device functions: loads, features, rotations and gradients of features, for a block of tokens in registers.

A feature tensor [BN, 2D] is held as two tiles [BN, BD], its first and its second half. For a key and for the
same-signed query these are the features of x > 0 and of x < 0; for the opposite-signed query the other way round.
"""
# Parameters are pointers, blocks and Triton constants, named as in the README; Python's types say nothing about them.
# mypy: allow-untyped-defs, allow-incomplete-defs
# ruff: noqa: N803

import triton
import triton.language as tl

from mmpola.ops.feature_map import LOG2_OF_ZERO

LOG2_FLOOR = tl.constexpr(LOG2_OF_ZERO)
SERIES_BELOW = tl.constexpr(0.35)


@triton.jit
def load_tokens(p_x, stride, o_n, o_c, mask):
    """Rows o_n [BN] (of one block, from p_x on) and channels o_c [BD] of a matrix, as float32; 0 outside."""
    return tl.load(p_x + (o_n * stride)[:, None] + o_c[None, :], mask=mask, other=0.0).to(tl.float32)


@triton.jit
def factor(x, PRECISION: tl.constexpr):
    """x as a product takes it: for 'tf32' rounded to the nearest 11-bit mantissa.

    The hardware cuts the 13 lower bits off, which shrinks positive features: the output by 4e-4 for each cut factor.
    """
    if PRECISION == 'tf32':
        bits = (x.to(tl.int32, bitcast=True) + 0x1000) & ~0x1FFF
        return tl.where(x == x, bits.to(tl.float32, bitcast=True), x)  # the carry would hide a NaN
    else:  # noqa: RET505 - Triton compiles one of two branches, not what follows a taken one
        return x


@triton.jit
def load_state(
    p_state, row, column, columns, D: tl.constexpr, BD: tl.constexpr, BC: tl.constexpr, PRECISION: tl.constexpr
):
    """D rows from `row` and `columns` from `column` of a state [2D, D], as a factor [BD, BC]; 0 outside."""
    o_d, o_c = tl.arange(0, BD), tl.arange(0, BC)
    mask = (o_d < D)[:, None] & (o_c < columns)[None, :]
    b_state = tl.load(p_state + (row + o_d)[:, None] * D + (column + o_c)[None, :], mask=mask, other=0.0)
    return factor(b_state, PRECISION)


@triton.jit
def store_state(p_state, row, column, columns, b_state, D: tl.constexpr, BD: tl.constexpr, BC: tl.constexpr):
    """Write what `load_state` reads."""
    o_d, o_c = tl.arange(0, BD), tl.arange(0, BC)
    mask = (o_d < D)[:, None] & (o_c < columns)[None, :]
    tl.store(p_state + (row + o_d)[:, None] * D + (column + o_c)[None, :], b_state, mask=mask)


@triton.jit
def load_inverse_scale(p_scale, o_d, mask):
    """1/s [BD]; 1 without a scale and outside."""
    if p_scale is None:
        return tl.where(mask, 1.0, 1.0)
    else:  # noqa: RET505 - as in `factor`
        return 1.0 / tl.load(p_scale + o_d, mask=mask, other=1.0)


@triton.jit
def log2_of_magnitude(x):
    """log2|x| with a finite floor, so that 0 * log(0) is 0; NaN stays NaN."""
    log2 = tl.log2(tl.abs(x))
    return tl.where(log2 < LOG2_FLOOR, LOG2_FLOOR, log2)


@triton.jit
def exp_minus_one(x):
    """exp(x) - 1 for x >= 0, without cancellation: below SERIES_BELOW the terms to x^7/7! reach float32's last bit."""
    series = 1.0 + x * (1.0 / 6.0) * (1.0 + x * (1.0 / 7.0))
    series = 1.0 + x * (1.0 / 4.0) * (1.0 + x * (1.0 / 5.0) * series)
    series = x * (1.0 + x * (1.0 / 2.0) * (1.0 + x * (1.0 / 3.0) * series))
    return tl.where(x < SERIES_BELOW, series, tl.exp(x) - 1.0)


@triton.jit
def by_sign(x, a):
    """Feature a(|x|), 0 at x = 0 -> its tiles for x > 0 and for x < 0. A NaN stands in both."""
    return tl.where(x < 0, 0.0, a), tl.where(x > 0, 0.0, a)


@triton.jit
def load_turn(p_cos, p_sin, i_n, first, m_n, D: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr):
    """cos [BN, BD], and sin with the sign it has in `turn`: tokens from i_n, feature channels from `first` on."""
    o_n, o_d = tl.arange(0, BN), tl.arange(0, BD)
    mask = m_n[:, None] & (o_d < D)[None, :]
    b_cos = load_tokens(p_cos + i_n * 2 * D + first, 2 * D, o_n, o_d, mask)
    b_sin = load_tokens(p_sin + i_n * 2 * D + first, 2 * D, o_n, o_d, mask)
    return b_cos, tl.where((o_d % 2 == 0)[None, :], -b_sin, b_sin)


@triton.jit
def exchange_pairs(x, BN: tl.constexpr, BD: tl.constexpr):
    """Channels (a, b) -> (b, a). Neighbours lie in one thread, in a product's result as in a load: no shuffle."""
    even, odd = tl.split(tl.reshape(x, (BN, BD // 2, 2)))
    return tl.reshape(tl.join(odd, even), (BN, BD))


@triton.jit
def turn(x, b_cos, b_sin, BN: tl.constexpr, BD: tl.constexpr):
    """(a, b) -> (a cos - b sin, b cos + a sin) on interleaved pairs (E15)."""
    return x * b_cos + exchange_pairs(x, BN, BD) * b_sin


@triton.jit
def turn_back(x, b_cos, b_sin, BN: tl.constexpr, BD: tl.constexpr):
    """The transpose of `turn`."""
    return x * b_cos + exchange_pairs(x * b_sin, BN, BD)


@triton.jit
def choose_mean(x, b_mean_1, b_mean_2):
    """The entry of k̄ [2D] that each element's one non-zero feature meets [BN, BD]; the second for x < 0.

    So φ·k̄ is one sum over D of a(|x|) times this tile.
    """
    return tl.where(x < 0, b_mean_2[None, :], b_mean_1[None, :])


@triton.jit
def normaliser(b_a, b_met_mean, m_n, eps):
    """r [BN] (E3); 1 outside, where 0 / 0 would reach the sums over tokens."""
    return tl.where(m_n, tl.sum(b_a * b_met_mean, 1) + eps, 1.0)


@triton.jit
def power_gradient(x, b_a, b_log2, b_exponent, b_da):
    """Given da of a = |x|^p: dx [BN, BD] and the terms of dp [BN, BD], in units of ln 2 (E13); 0 at x = 0."""
    b_weighted = b_a * b_da
    return b_exponent[None, :] * b_weighted / tl.where(x == 0, 1.0, x), b_weighted * b_log2
