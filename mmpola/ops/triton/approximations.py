"""Device functions that decide the speed of the kernels: logarithm, exponential, rounding.

With PRECISION 'ieee' (float32 inputs) they are `tl.log2`, `tl.exp` and a division. On a GPU their
errors are 1 to 2 units in the last place; the error of `tl.exp` grows with its argument, because it
is computed as 2^(x log2 e). With 'tf32', where products read only 11 bits of their factors, they
are the hardware's approximations, with relative errors below 5e-5.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs
# ruff: noqa: N803

import triton
import triton.language as tl
from triton.language.extra.cuda import libdevice

from mmpola.ops.triton import IS_INTERPRETED

LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)
SMALLEST_NORMAL = tl.constexpr(2.0**-126)
# Stands for log2(0): the slope 2^((p - 1) log2|x|) is then 0, even for p near 1
LOG2_FLOOR = tl.constexpr(-1e30)
# The interpreter has neither libdevice nor inline assembly
COMPILED = tl.constexpr(not IS_INTERPRETED)


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
