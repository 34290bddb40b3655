"""Device functions: loads, features, rotations and gradients of features, for a block of tokens in registers.

A feature tensor [BN, 2D] is held as two tiles [BN, BD], its first and its second half. For a key and for the
same-signed query these are the features of x > 0 and of x < 0; for the opposite-signed query the other way round.
"""
# Parameters are pointers, blocks and Triton constants, named as in the README; Python's types say nothing about them.
# mypy: allow-untyped-defs, allow-incomplete-defs
# ruff: noqa: N803

import triton
import triton.language as tl

from mmpola.ops.feature_map import LOG2_OF_ZERO, UNREACHED

LOG2_FLOOR = tl.constexpr(LOG2_OF_ZERO)
NO_REACH = tl.constexpr(UNREACHED)
SERIES_BELOW = tl.constexpr(0.35)
SMALLEST_NORMAL = tl.constexpr(2.0**-126)


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
def load_streams(p_state, D: tl.constexpr, BD: tl.constexpr, BC: tl.constexpr, PRECISION: tl.constexpr):
    """A state [2D, D] as the queries read it, in factors [BD, BC]: S_same's two halves, S_opposite's two halves."""
    b_same_1 = load_state(p_state, 0, 0, D // 2, D, BD, BC, PRECISION)
    b_same_2 = load_state(p_state, D, 0, D // 2, D, BD, BC, PRECISION)
    b_opposite_1 = load_state(p_state, 0, D // 2, D // 2, D, BD, BC, PRECISION)
    b_opposite_2 = load_state(p_state, D, D // 2, D // 2, D, BD, BC, PRECISION)
    return b_same_1, b_same_2, b_opposite_1, b_opposite_2


@triton.jit
def load_halves(p_x, D: tl.constexpr, BD: tl.constexpr):
    """The two halves [BD] of a vector [2D]; 0 outside."""
    o_d = tl.arange(0, BD)
    return tl.load(p_x + o_d, mask=o_d < D, other=0.0), tl.load(p_x + D + o_d, mask=o_d < D, other=0.0)


@triton.jit
def store_halves(p_x, b_x_1, b_x_2, D: tl.constexpr, BD: tl.constexpr):
    """Write what `load_halves` reads."""
    o_d = tl.arange(0, BD)
    tl.store(p_x + o_d, b_x_1, mask=o_d < D)
    tl.store(p_x + D + o_d, b_x_2, mask=o_d < D)


@triton.jit
def load_power(p_exponent, p_scale, i_h, D: tl.constexpr, BD: tl.constexpr):
    """A PowerMap's p and 1/s of one head, [BD] each; both 1 outside, and 1/s without a scale."""
    o_d = tl.arange(0, BD)
    b_exponent = tl.load(p_exponent + i_h * D + o_d, mask=o_d < D, other=1.0)
    if p_scale is None:
        return b_exponent, tl.where(o_d < D, 1.0, 1.0)
    else:  # noqa: RET505 - as in `factor`
        return b_exponent, 1.0 / tl.load(p_scale + i_h * D + o_d, mask=o_d < D, other=1.0)


@triton.jit
def load_reach(p_shift, D: tl.constexpr, BD: tl.constexpr):
    """The shift [2D] of (E11) in two halves, as queries take it: their feature counts nothing where no key reaches."""
    b_shift_1, b_shift_2 = load_halves(p_shift, D, BD)
    return tl.where(b_shift_1 == 0, NO_REACH, b_shift_1), tl.where(b_shift_2 == 0, NO_REACH, b_shift_2)


@triton.jit
def log2_of_magnitude(x):
    """log2|x| with a finite floor, so that 0 * log(0) is 0; NaN stays NaN."""
    log2 = tl.log2(tl.abs(x))
    return tl.where(log2 < LOG2_FLOOR, LOG2_FLOOR, log2)


@triton.jit
def exp_minus_one(x):
    """exp(x) - 1 without cancellation: below SERIES_BELOW the terms to x^7/7! reach float32's last bit."""
    series = 1.0 + x * (1.0 / 6.0) * (1.0 + x * (1.0 / 7.0))
    series = 1.0 + x * (1.0 / 4.0) * (1.0 + x * (1.0 / 5.0) * series)
    series = x * (1.0 + x * (1.0 / 2.0) * (1.0 + x * (1.0 / 3.0) * series))
    return tl.where(tl.abs(x) < SERIES_BELOW, series, tl.exp(x) - 1.0)


@triton.jit
def scaled_exp(b_size, b_offset):
    """a = (exp(size) - 1) exp(offset) and its slope exp(size + offset); exp(size) itself is never formed."""
    b_slope = tl.exp(b_size + b_offset)
    return -exp_minus_one(-b_size) * b_slope, b_slope


@triton.jit
def scaled_key(b_k, b_shift_1, b_shift_2):
    """a [BN, BD] of ψ' and its slope (E12), given the shifts [BD] of keys above and below 0."""
    return scaled_exp(tl.abs(b_k), -tl.where(b_k < 0, b_shift_2[None, :], b_shift_1[None, :]))


@triton.jit
def scaled_query(b_q, b_t_1, b_t_2, b_reach_1, b_reach_2, eps):
    """a [BN, BD] of φ', its slope and temperature, and ε' [BN] (E13).

    Temperatures and shifts are those of queries above 0, then below: the opposite-signed stream passes halves swapped.
    """
    b_t = tl.where(b_q < 0, b_t_2[None, :], b_t_1[None, :])
    b_size = tl.abs(b_q) * b_t
    b_shift = tl.where(b_q < 0, b_reach_2[None, :], tl.where(b_q > 0, b_reach_1[None, :], 0.0))
    b_level = tl.ceil(tl.maximum(tl.max(b_size + b_shift, 1), 0.0))
    b_a, b_slope = scaled_exp(b_size, b_shift - b_level[:, None])
    return b_a, b_slope, b_t, tl.maximum(eps * tl.exp(-b_level), SMALLEST_NORMAL)


@triton.jit
def largest_of_pairs(x, BD: tl.constexpr):
    """Channels (a, b) -> (max, max) of a vector [BD]."""
    largest = tl.max(tl.reshape(x, (BD // 2, 2)), 1)
    return tl.reshape(tl.join(largest, largest), (BD,))


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
    """(a, b) -> (a cos - b sin, b cos + a sin) on interleaved pairs (E10)."""
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
    """r [BN] (E3), eps [BN] or a number; 1 outside, where 0 / 0 would reach the sums over tokens."""
    return tl.where(m_n, tl.sum(b_a * b_met_mean, 1) + eps, 1.0)


@triton.jit
def power_gradient(x, b_a, b_log2, b_exponent, b_da):
    """Given da of a = |x|^p: dx [BN, BD] and the terms of dp [BN, BD], in units of ln 2 (E18); 0 at x = 0."""
    b_weighted = b_a * b_da
    return b_exponent[None, :] * b_weighted / tl.where(x == 0, 1.0, x), b_weighted * b_log2
