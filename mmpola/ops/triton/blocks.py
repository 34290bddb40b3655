"""Device functions that the kernels of both feature maps share: loads, stores and products on a block of tokens.

A feature tensor [BN, 2D] is held in registers as two tiles [BN, BD]: its first half, of x > 0, and its second half, of
x < 0. (For the opposite-signed queries the first half is that of x < 0.) A state [2D, D] is held as tiles in the same
way.
"""
# Arguments are pointers, blocks and Triton constants, for which Python has no types.
# mypy: allow-untyped-defs, allow-incomplete-defs
# ruff: noqa: N803

import triton
import triton.language as tl


@triton.jit
def locate_program(heads):
    """Return this program's row of the grid [B * H], chunk, sample and head; 64-bit, since offsets are made of them."""
    i_bh, i_chunk = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    return i_bh, i_chunk, i_bh // heads, i_bh % heads


@triton.jit
def load_tokens(p_x, stride, o_n, o_c, mask):
    """Load rows o_n [BN] and channels o_c [BD] of the block of tokens at p_x as float32; 0 outside the mask."""
    return tl.load(p_x + (o_n * stride)[:, None] + o_c[None, :], mask=mask, other=0.0).to(tl.float32)


@triton.jit
def round_factor(x, PRECISION: tl.constexpr):
    """Prepare a factor of a product: for 'tf32' round to the nearest 11-bit mantissa.

    The hardware truncates the 13 lower bits instead. On positive features that is a bias: it shrinks the output by 4e-4
    for each truncated factor.
    """
    if PRECISION == 'tf32':
        bits = (x.to(tl.int32, bitcast=True) + 0x1000) & ~0x1FFF
        return tl.where(x == x, bits.to(tl.float32, bitcast=True), x)  # the carry could turn a NaN into a number
    else:  # noqa: RET505 - Triton compiles one of two branches, but always what follows them
        return x


@triton.jit
def load_state(
    p_state, row, column, columns, D: tl.constexpr, BD: tl.constexpr, BC: tl.constexpr, PRECISION: tl.constexpr
):
    """Load D rows from `row` and `columns` columns from `column` of a state [2D, D] as a factor [BD, BC]; 0 outside."""
    o_d, o_c = tl.arange(0, BD), tl.arange(0, BC)
    mask = (o_d < D)[:, None] & (o_c < columns)[None, :]
    b_state = tl.load(p_state + (row + o_d)[:, None] * D + (column + o_c)[None, :], mask=mask, other=0.0)
    return round_factor(b_state, PRECISION)


@triton.jit
def store_state(p_state, row, column, columns, b_state, D: tl.constexpr, BD: tl.constexpr, BC: tl.constexpr):
    """Store the part of a state that `load_state` loads."""
    o_d, o_c = tl.arange(0, BD), tl.arange(0, BC)
    mask = (o_d < D)[:, None] & (o_c < columns)[None, :]
    tl.store(p_state + (row + o_d)[:, None] * D + (column + o_c)[None, :], b_state, mask=mask)


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


@triton.jit
def load_halves(p_x, D: tl.constexpr, BD: tl.constexpr):
    """Load the two halves [BD] of a vector [2D]; 0 outside."""
    o_d = tl.arange(0, BD)
    return tl.load(p_x + o_d, mask=o_d < D, other=0.0), tl.load(p_x + D + o_d, mask=o_d < D, other=0.0)


@triton.jit
def store_halves(p_x, b_x_1, b_x_2, D: tl.constexpr, BD: tl.constexpr):
    """Store the vector that `load_halves` loads."""
    o_d = tl.arange(0, BD)
    tl.store(p_x + o_d, b_x_1, mask=o_d < D)
    tl.store(p_x + D + o_d, b_x_2, mask=o_d < D)


@triton.jit
def split_by_sign(x, b_a):
    """Split features a(|x|), 0 at x = 0, into the tiles of x > 0 and of x < 0. A NaN appears in both."""
    return tl.where(x < 0, 0.0, b_a), tl.where(x > 0, 0.0, b_a)


@triton.jit
def select_by_sign(x, b_1, b_2):
    """Select for each element of x the value that belongs to its one non-zero feature: b_2 for x < 0, else b_1."""
    return tl.where(x < 0, b_2, b_1)


@triton.jit
def select_mean(x, b_mean_1, b_mean_2):
    """Do `select_by_sign` with the halves [BD] of a key mean: φ·k̄ is then one sum over D instead of 2D."""
    return select_by_sign(x, b_mean_1[None, :], b_mean_2[None, :])


@triton.jit
def normaliser(b_a, b_mean, m_n, eps):
    """Compute r [BN] (E3) from features a(|x|) and the key mean selected by sign [BN, BD]; eps is a number or [BN].

    Outside the mask r is 1, since 0 / 0 would reach the sums over tokens.
    """
    return tl.where(m_n, tl.sum(b_a * b_mean, 1) + eps, 1.0)


@triton.jit
def read_state(b_phi_1, b_phi_2, b_state_1, b_state_2, r, PRECISION: tl.constexpr):
    """Compute one stream's output [BN, BC] (E3) from its features [BN, BD] and its columns of the state [BD, BC]."""
    # [BN, BD] x [BD, BC]
    b_o = tl.dot(round_factor(b_phi_1, PRECISION), b_state_1, input_precision=PRECISION)
    b_o = tl.dot(round_factor(b_phi_2, PRECISION), b_state_2, b_o, input_precision=PRECISION)
    return b_o / r[:, None]


@triton.jit
def add_products(b_state_1, b_state_2, b_features_1, b_features_2, b_y, PRECISION: tl.constexpr):
    """Add featuresᵀ y to both halves of a state [BD, BC] (E2, E16); y [BN, BC] is a rounded factor."""
    # [BD, BN] x [BN, BC]
    b_state_1 = tl.dot(tl.trans(round_factor(b_features_1, PRECISION)), b_y, b_state_1, input_precision=PRECISION)
    b_state_2 = tl.dot(tl.trans(round_factor(b_features_2, PRECISION)), b_y, b_state_2, input_precision=PRECISION)
    return b_state_1, b_state_2


@triton.jit
def multiply_transposed(b_y, b_state_1, b_state_2, PRECISION: tl.constexpr):
    """Compute y Sᵀ [BN, BD] for both halves of a state [BD, BC] (E16, E17); y [BN, BC] is a rounded factor."""
    # [BN, BC] x [BC, BD]
    b_1 = tl.dot(b_y, tl.trans(b_state_1), input_precision=PRECISION)
    b_2 = tl.dot(b_y, tl.trans(b_state_2), input_precision=PRECISION)
    return b_1, b_2


@triton.jit
def query_feature_gradient(b_a, b_y_state, b_mean, r):
    """Compute da [BN, BD] of one stream and its terms c a [BN, BD] of dk̄ (E15, E16).

    `b_y_state` is y Sᵀ, selected by sign like the key mean. do·o of (E15) equals φ·(y Sᵀ), so o is not needed.
    """
    c = -tl.sum(b_a * b_y_state, 1) / r
    return b_y_state + c[:, None] * b_mean, c[:, None] * b_a
