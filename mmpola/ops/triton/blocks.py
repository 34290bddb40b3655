"""Device functions of both feature maps: loads, stores and products on a block of tokens.

A feature tensor [BN, 2D] is held in registers as two tiles [BN, BD]: its first half, of x > 0, and
its second half, of x < 0. (For the opposite-signed queries the first half is that of x < 0.) A
state [2D, D] is held as tiles in the same way. In memory the state of one head is a vector: S [2D,
D], then k̄ [2D], then the shift [2D] of an ExpMap.
"""
# Arguments are pointers, blocks and Triton constants, for which Python has no types.
# mypy: allow-untyped-defs, allow-incomplete-defs
# ruff: noqa: N803

import triton
import triton.language as tl

from mmpola.ops.triton.approximations import COMPILED, compute_once, round_factor


@triton.jit
def locate_program(heads):
    """Return the program's row of the grid [B * H], chunk, sample and head; 64-bit, for offsets."""
    i_bh = tl.program_id(0).to(tl.int64)
    i_chunk = tl.program_id(1).to(tl.int64)
    return i_bh, i_chunk, i_bh // heads, i_bh % heads


@triton.jit
def load_tokens(p_x, stride, o_n, o_c, mask):
    """Load rows o_n [BN], channels o_c [BD] of the tokens at p_x as float32; 0 outside the mask."""
    p_rows = p_x + (o_n * stride)[:, None] + o_c[None, :]
    return tl.load(p_rows, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def load_keys(p_k, p_position, stride, i_n, i_h, heads, o_n, o_d, mask, D: tl.constexpr):
    """Load a block of keys from token i_n on, plus their key positions [M, H, D] if given (E4)."""
    b_k = load_tokens(p_k + i_n * stride, stride, o_n, o_d, mask)
    if p_position is not None:
        b_k += load_tokens(p_position + (i_n * heads + i_h) * D, heads * D, o_n, o_d, mask)
    return b_k


@triton.jit
def load_values(p_v, stride, o_n, o_d, mask, PRECISION: tl.constexpr):
    """Load a block of values as factors of a product; only float32 ones need rounding to tf32."""
    b_v = load_tokens(p_v, stride, o_n, o_d, mask)
    if p_v.dtype.element_ty == tl.float32:
        b_v = round_factor(b_v, PRECISION)
    return b_v


@triton.jit
def load_state(
    p_state,
    row,
    column,
    columns,
    D: tl.constexpr,
    BD: tl.constexpr,
    BC: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Load D rows and `columns` columns of a state [2D, D] as a factor [BD, BC]; 0 outside."""
    o_d = tl.arange(0, BD)
    o_c = tl.arange(0, BC)
    mask = (o_d < D)[:, None] & (o_c < columns)[None, :]
    p_rows = p_state + (row + o_d)[:, None] * D + (column + o_c)[None, :]
    return round_factor(tl.load(p_rows, mask=mask, other=0.0), PRECISION)


@triton.jit
def store_state(
    p_state, row, column, columns, b_state, D: tl.constexpr, BD: tl.constexpr, BC: tl.constexpr
):
    """Store the part of a state that `load_state` loads."""
    o_d = tl.arange(0, BD)
    o_c = tl.arange(0, BC)
    mask = (o_d < D)[:, None] & (o_c < columns)[None, :]
    p_rows = p_state + (row + o_d)[:, None] * D + (column + o_c)[None, :]
    tl.store(p_rows, b_state, mask=mask)


@triton.jit
def load_halves(p_x, D: tl.constexpr, BD: tl.constexpr, STREAM: tl.constexpr = 0):
    """Load the halves [BD] of a vector [2D] that belong to queries above 0 and below 0; 0 outside.

    In the same-signed stream (STREAM = 0) they are the first and the second half, in the
    opposite-signed one (1) the second and the first.
    """
    o_d = tl.arange(0, BD)
    b_1 = tl.load(p_x + STREAM * D + o_d, mask=o_d < D, other=0.0)
    b_2 = tl.load(p_x + (1 - STREAM) * D + o_d, mask=o_d < D, other=0.0)
    return b_1, b_2


@triton.jit
def store_halves(p_x, b_1, b_2, D: tl.constexpr, BD: tl.constexpr, STREAM: tl.constexpr = 0):
    """Store the vector that `load_halves` loads."""
    o_d = tl.arange(0, BD)
    tl.store(p_x + STREAM * D + o_d, b_1, mask=o_d < D)
    tl.store(p_x + (1 - STREAM) * D + o_d, b_2, mask=o_d < D)


@triton.jit
def sign_mask(x):
    """Return a mask of all bits where x < 0, else of none: a thread has only seven predicates."""
    if COMPILED:
        # Triton 3.6: assembly, because it turns arithmetic on the sign back into comparisons.
        return tl.inline_asm_elementwise(
            'shr.s32 $0, $1, 31;', '=r,r', [x], tl.int32, is_pure=True, pack=1
        )
    else:  # noqa: RET505 - as in `reciprocal`
        return x.to(tl.int32, bitcast=True) >> 31


@triton.jit
def split_by_sign(x, b_a):
    """Split features a(|x|), 0 at x = 0, into the tiles of x > 0 and of x < 0."""
    mask = sign_mask(x)
    bits = b_a.to(tl.int32, bitcast=True)
    # The second tile is not a minus the first: where a is a product, the compiler would fuse the
    # subtraction with it and leave its rounding error instead of 0.
    b_1 = (bits & ~mask).to(tl.float32, bitcast=True)
    b_2 = (bits & mask).to(tl.float32, bitcast=True)
    return b_1, b_2


@triton.jit
def select_by_sign(x, b_1, b_2):
    """Select the value of the one non-zero feature of each x: b_2 for x < 0, else b_1."""
    mask = sign_mask(x)
    b_1 = b_1.to(tl.int32, bitcast=True)
    b_2 = b_2.to(tl.int32, bitcast=True)
    return ((b_1 & ~mask) | (b_2 & mask)).to(tl.float32, bitcast=True)


@triton.jit
def with_sign_of(x, b_y):
    """Return y where x > 0 and -y where x < 0."""
    sign = x.to(tl.int32, bitcast=True) & -0x80000000
    return (b_y.to(tl.int32, bitcast=True) ^ sign).to(tl.float32, bitcast=True)


@triton.jit
def split_for_product(x, b_a):
    """Split features like `split_by_sign`, in the register layout of factors; NaN is not kept.

    A single tile, which has the sign of x, is moved to that layout instead of two.
    """
    b_signed = compute_once(with_sign_of(x, b_a))  # Triton 3.6: else it computes a in both layouts
    return tl.maximum(b_signed, 0.0), tl.maximum(-b_signed, 0.0)


@triton.jit
def add_by_sign(b_sum_1, b_sum_2, x, b_terms, BN: tl.constexpr, BD: tl.constexpr):
    """Add terms [BN, BD], 0 at x = 0, to the sums [BN / 2, BD] of x > 0 and of x < 0.

    Rows r and r + 8 of every 16 rows are added first: in Triton 3.6's layout of products, one
    thread holds both.
    """
    b_1, b_2 = split_by_sign(x, b_terms)
    b_sum_1 += tl.reshape(tl.sum(tl.reshape(b_1, (BN // 16, 2, 8, BD)), 1), (BN // 2, BD))
    b_sum_2 += tl.reshape(tl.sum(tl.reshape(b_2, (BN // 16, 2, 8, BD)), 1), (BN // 2, BD))
    return b_sum_1, b_sum_2


@triton.jit
def select_channels(x, b_1, b_2):
    """Apply `select_by_sign` to the halves [BD] of a vector: φ·k̄ is a sum over D instead of 2D."""
    return select_by_sign(x, b_1[None, :], b_2[None, :])


@triton.jit
def add_products(b_state_1, b_state_2, b_features_1, b_features_2, b_y, PRECISION: tl.constexpr):
    """Add featuresᵀ y, y [BN, BC], to both halves of a state [BD, BC], all rounded (E2, E16)."""
    # [BD, BN] x [BN, BC]
    b_state_1 = tl.dot(tl.trans(b_features_1), b_y, b_state_1, input_precision=PRECISION)
    b_state_2 = tl.dot(tl.trans(b_features_2), b_y, b_state_2, input_precision=PRECISION)
    return b_state_1, b_state_2


@triton.jit
def multiply(b_features_1, b_features_2, b_state_1, b_state_2, PRECISION: tl.constexpr):
    """Compute features [BN, BD] times a state [BD, BC] -> [BN, BC] (E3, E17); all are rounded."""
    # [BN, BD] x [BD, BC]
    b_product = tl.dot(b_features_1, b_state_1, input_precision=PRECISION)
    return tl.dot(b_features_2, b_state_2, b_product, input_precision=PRECISION)


@triton.jit
def multiply_transposed(b_y, b_state_1, b_state_2, PRECISION: tl.constexpr):
    """Compute y Sᵀ [BN, BD], y [BN, BC], for both halves of a state [BD, BC] (E16, E17)."""
    # [BN, BC] x [BC, BD]
    b_1 = tl.dot(b_y, tl.trans(b_state_1), input_precision=PRECISION)
    b_2 = tl.dot(b_y, tl.trans(b_state_2), input_precision=PRECISION)
    return b_1, b_2
