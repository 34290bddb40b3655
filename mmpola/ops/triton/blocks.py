"""Device functions of all kernels: loads, stores, products, and the arithmetic of features.

A feature tensor [BN, 2D] is held in registers as two tiles [BN, BD]: its first half, of x > 0, and
its second half, of x < 0. (For the opposite-signed queries the first half belongs to x < 0.) A
state [2D, D] is held as tiles in the same way. In memory the state of one head is a vector: S [2D,
D], then k̄ [2D], then the shift [2D] of an ExpMap.

With PRECISION 'ieee' (float32 inputs) logarithm, exponential and reciprocal are `tl.log2`, `tl.exp`
and a division. On a GPU their errors are 1 to 2 units in the last place; the error of `tl.exp`
grows with its argument, because it is computed as 2^(x log2 e). With 'tf32', where products read
only 11 bits of their factors, they are the hardware's approximations, with relative errors below
5e-5.
"""
# Arguments are pointers, blocks and Triton constants, for which Python has no types.
# mypy: allow-untyped-defs, allow-incomplete-defs
# ruff: noqa: N803

from typing import Any, NamedTuple

import triton
import triton.language as tl
from triton.language.extra.cuda import libdevice

from mmpola.ops.triton import IS_INTERPRETED

FUSION_OPTIONS: dict[str, Any] = {'enable_fp_fusion': True}
"""Options of every launch: fused multiply-adds, which Triton 3.10 must be asked for."""


class Launch(NamedTuple):
    """How a kernel is launched.

    Launches were chosen by compiling for sm_90 without a GPU with Triton 3.6, and reading
    instructions, registers and spills from the machine code, not by time: the kernels have not run
    on a GPU yet. `python -m benchmarks.gpu` times other launches.
    """

    tokens: int  # BN, tokens per block
    warps: int  # per program
    stages: int  # blocks in flight, loaded ahead of use
    programs: int  # per multiprocessor, as many as its registers and shared memory can hold


LaunchTable = dict[tuple[str, int], Launch]
"""By the name of a pass and BD, the head dimension rounded up to a power of two."""

LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)
SMALLEST_NORMAL = tl.constexpr(2.0**-126)
# Stands for log2(0): the power 2^(p log2|x|) is then 0, even for p near 0
LOG2_FLOOR = tl.constexpr(-1e30)
# The interpreter has neither libdevice nor inline assembly
COMPILED = tl.constexpr(not IS_INTERPRETED)


# ---- Arithmetic


@triton.jit
def log2_of_magnitude(x, PRECISION: tl.constexpr):
    """Compute log2|x| with a finite floor, so that 0 * log(0) is 0; NaN stays NaN."""
    if COMPILED and PRECISION == 'tf32':
        log2 = libdevice.fast_log2f(tl.abs(x))  # one instruction; `tl.log2` is 26
    else:
        log2 = tl.log2(tl.abs(x))
    return tl.maximum(log2, LOG2_FLOOR, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def compute_once(x):
    """Return x; the compiler moves it between register layouts instead of computing it again."""
    if COMPILED:
        # Triton 3.6 takes this for an instruction with side effects; ptxas removes it
        x = tl.inline_asm_elementwise(
            'mov.b32 $0, $1;', '=r,r', [x], tl.float32, is_pure=False, pack=1
        )
    return x


@triton.jit
def in_product_layout(x, BN: tl.constexpr, BD: tl.constexpr, PRECISION: tl.constexpr):
    """Return x [BN, BD] in the register layout of products, to compute with their results.

    Triton 3.6 computes a value in the layout of the load or the product that it depends on. Adding
    a product of zeros changes no value, but makes it depend on a product: one instruction instead
    of many conversions between layouts.
    """
    if COMPILED and PRECISION == 'tf32':
        return tl.dot(tl.zeros((BN, 16), tl.float16), tl.zeros((16, BD), tl.float16), x)
    else:  # noqa: RET505 - as in `reciprocal`
        return x


@triton.jit
def reciprocal(x, PRECISION: tl.constexpr):
    """Compute 1 / x."""
    if COMPILED and PRECISION == 'tf32':
        return libdevice.fast_dividef(1.0, x)
    else:  # noqa: RET505 - Triton compiles one of two branches, but always what follows them
        return 1.0 / x


@triton.jit
def to_exponent(x, PRECISION: tl.constexpr):
    """Convert x to the unit of exponents here: ln 2 for 'tf32', where exp2 is one instruction."""
    return x * LOG2_E if PRECISION == 'tf32' else x


@triton.jit
def from_exponent(x, PRECISION: tl.constexpr):
    """Convert x back from the unit of exponents."""
    return x * LN_2 if PRECISION == 'tf32' else x


@triton.jit
def exponential(x, PRECISION: tl.constexpr):
    """Compute e to the exponent x; for 'tf32', results below 2^-126 are 0, which is faster."""
    return tl.exp2(x) if PRECISION == 'tf32' else tl.exp(x)


@triton.jit
def one_minus_exponential(x, PRECISION: tl.constexpr):
    """Compute 1 minus e to the exponent -x, x >= 0: near 0, where it cancels, by its series."""
    if PRECISION == 'tf32':
        series = x * (LN_2 - x * (LN_2 * LN_2 / 2.0))
        return tl.where(x < 0.0078125, series, 1.0 - exponential(-x, PRECISION))
    else:  # noqa: RET505 - as in `reciprocal`
        series = 1.0 - x * (1.0 / 6.0) * (1.0 - x * (1.0 / 7.0))
        series = 1.0 - x * (1.0 / 4.0) * (1.0 - x * (1.0 / 5.0) * series)
        series = x * (1.0 - x * (1.0 / 2.0) * (1.0 - x * (1.0 / 3.0) * series))
        return tl.where(x < 0.35, series, 1.0 - exponential(-x, PRECISION))


@triton.jit
def round_feature(x, PRECISION: tl.constexpr):
    """Prepare a feature as a factor of a product: for 'tf32' round to the nearest 11-bit mantissa.

    The hardware cuts the 13 lower bits instead. Features are not negative, so that is a bias: it
    shrinks the output by 4e-4 for each factor that is cut. The minimum keeps the hardware's NaN,
    0x7FFFFFFF, which would otherwise be rounded to -0.0: a key that is NaN has to reach the loss.
    """
    if PRECISION == 'tf32':
        bits = tl.minimum(x.to(tl.int32, bitcast=True), 0x7FFFE000) + 0x1000
        return (bits & ~0x1FFF).to(tl.float32, bitcast=True)
    else:  # noqa: RET505 - as in `reciprocal`
        return x


@triton.jit
def round_factor(x, PRECISION: tl.constexpr):
    """Round like `round_feature`, but keep NaN: nothing else carries it into the results."""
    if PRECISION == 'tf32':
        return tl.where(x == x, round_feature(x, PRECISION), x)
    else:  # noqa: RET505 - as in `reciprocal`
        return x


# ---- Blocks of tokens, and states


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
def add_row_pairs(x, BN: tl.constexpr, BD: tl.constexpr):
    """Add rows r and r + 8 of every 16 rows: [BN, BD] -> [BN / 2, BD].

    In Triton 3.6's layout of products one thread holds both, so sums over tokens are kept in half
    the registers.
    """
    pairs = tl.sum(tl.reshape(x, (BN // 16, 2, 8, BD)), 1)
    return tl.reshape(pairs, (BN // 2, BD))


@triton.jit
def add_by_sign(b_sum_1, b_sum_2, x, b_terms, BN: tl.constexpr, BD: tl.constexpr):
    """Add terms [BN, BD], 0 at x = 0, to the sums [BN / 2, BD] of x > 0 and of x < 0."""
    b_1, b_2 = split_by_sign(x, b_terms)
    b_sum_1 += add_row_pairs(b_1, BN, BD)
    b_sum_2 += add_row_pairs(b_2, BN, BD)
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
