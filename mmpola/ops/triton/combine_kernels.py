"""Kernels that add partial results of programs in a fixed order: results are reproducible."""
# mypy: allow-untyped-defs, allow-incomplete-defs
# ruff: noqa: N803

import triton
import triton.language as tl

from mmpola.ops.triton.approximations import LN_2


@triton.jit(do_not_specialize=['chunks', 'factor'])
def combine_states_kernel(
    p_parts, p_combined, p_state, p_products, chunks, factor,
    D: tl.constexpr, BP: tl.constexpr, BR: tl.constexpr, BD: tl.constexpr, HAS_SHIFT: tl.constexpr,
):  # fmt: skip
    """Add partial states or gradients [B * H, chunks, SIZE]; multiply the sums by `factor`.

    A program adds BR rows of S with their entries of k̄, BP chunks at a time. With shifts (E11) all
    parts are first brought to the largest shift. `p_products` [B * H, 2D], unless it is None,
    receives w of (E18a): the parts are then those of the gradient of the state `p_state`.
    """
    size: tl.constexpr = 2 * D * (D + 2) if HAS_SHIFT else 2 * D * (D + 1)
    i_bh = tl.program_id(0).to(tl.int64)
    o_p = tl.arange(0, BP)
    o_r = tl.program_id(1) * BR + tl.arange(0, BR)
    o_d = tl.arange(0, BD)
    m_r = o_r < 2 * D
    m_d = o_d < D
    o_rows = o_r[:, None] * D + o_d[None, :]
    p_parts += i_bh * chunks * size
    p_combined += i_bh * size
    b_shift = tl.zeros((BR,), tl.float32)
    if HAS_SHIFT:
        b_shifts = tl.zeros((BP, BR), tl.float32)
        for i_p in range(0, chunks, BP):
            m_p = (i_p + o_p < chunks)[:, None] & m_r[None, :]
            p_shift = p_parts + 2 * D * (D + 1) + ((i_p + o_p) * size)[:, None] + o_r[None, :]
            b_shifts = tl.maximum(b_shifts, tl.load(p_shift, mask=m_p, other=0.0))
        b_shift = tl.max(b_shifts, 0)
        tl.store(p_combined + 2 * D * (D + 1) + o_r, b_shift, mask=m_r)
    b_rows = tl.zeros((BP, BR, BD), tl.float32)
    b_means = tl.zeros((BP, BR), tl.float32)
    for i_p in range(0, chunks, BP):
        m_p = (i_p + o_p < chunks)[:, None] & m_r[None, :]
        p_part = p_parts + (i_p + o_p) * size
        b_part = tl.load(
            p_part[:, None, None] + o_rows[None, :, :],
            mask=m_p[:, :, None] & m_d[None, None, :],
            other=0.0,
        )
        p_mean = p_part[:, None] + 2 * D * D + o_r[None, :]
        b_mean = tl.load(p_mean, mask=m_p, other=0.0)
        if HAS_SHIFT:
            b_decay = tl.exp(tl.load(p_mean + 2 * D, mask=m_p, other=0.0) - b_shift[None, :])
            b_part *= b_decay[:, :, None]
            b_mean *= b_decay
        b_rows += b_part
        b_means += b_mean
    b_row = tl.sum(b_rows, 0)
    b_mean = tl.sum(b_means, 0)
    m_rows = m_r[:, None] & m_d[None, :]
    tl.store(p_combined + o_rows, b_row * factor, mask=m_rows)
    tl.store(p_combined + 2 * D * D + o_r, b_mean * factor, mask=m_r)
    if p_products is not None:
        p_state += i_bh * size
        b_product = tl.sum(tl.load(p_state + o_rows, mask=m_rows, other=0.0) * b_row, 1)
        b_product += tl.load(p_state + 2 * D * D + o_r, mask=m_r, other=0.0) * b_mean
        tl.store(p_products + i_bh * 2 * D + o_r, b_product, mask=m_r)


@triton.jit
def sum_over_batch(
    p_parts,
    i_h,
    batch,
    heads,
    chunks,
    o_w,
    m_w,
    W: tl.constexpr,
    BP: tl.constexpr,
    BW: tl.constexpr,
):
    """Add the entries o_w [BW] of all parts [B, H, chunks, W] of one head."""
    o_p = tl.arange(0, BP)
    b_sum = tl.zeros((BP, BW), tl.float32)
    for i_p in range(0, batch * chunks, BP):
        i_b = (i_p + o_p) // chunks
        i_chunk = (i_p + o_p) % chunks
        o_part = ((i_b * heads + i_h) * chunks + i_chunk).to(tl.int64) * W
        b_sum += tl.load(
            p_parts + o_part[:, None] + o_w[None, :],
            mask=(i_b < batch)[:, None] & m_w[None, :],
            other=0.0,
        )
    return tl.sum(b_sum, 0)


@triton.jit(do_not_specialize=['batch', 'heads', 'query_chunks', 'key_chunks'])
def power_parameters_kernel(
    p_from_queries, p_from_keys, p_products, p_exponent, p_scale, p_dexponent, p_dscale,
    batch, heads, query_chunks, key_chunks,
    D: tl.constexpr, BP: tl.constexpr, BW: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of a PowerMap's exponent and scale [H, D], except those that are None.

    The exponent's parts are in units of ln 2. For the scale: Σ_n φ dφ over the queries and Σ_m ψ dψ
    over the keys are both equal to the row sum of S ⊙ dS + k̄ ⊙ dk̄, because multiplying a channel
    of φ or of ψ by a number is the same as multiplying its row of the state. A feature is (x /
    s)^p, hence ds = -p / s Σ (φ dφ + ψ dψ).
    """
    i_h = tl.program_id(0)
    o_w = tl.program_id(1) * BW + tl.arange(0, BW)
    m_w = o_w < D
    if p_dexponent is not None:
        b_dexponent = sum_over_batch(
            p_from_queries, i_h, batch, heads, query_chunks, o_w, m_w, D, BP, BW
        )
        b_dexponent += sum_over_batch(
            p_from_keys, i_h, batch, heads, key_chunks, o_w, m_w, D, BP, BW
        )
        tl.store(
            p_dexponent + i_h * D + o_w,
            (b_dexponent * LN_2).to(p_dexponent.dtype.element_ty),
            mask=m_w,
        )
    if p_dscale is not None:
        b_product = sum_over_batch(p_products, i_h, batch, heads, 1, o_w, m_w, 2 * D, BP, BW)
        b_product += sum_over_batch(p_products + D, i_h, batch, heads, 1, o_w, m_w, 2 * D, BP, BW)
        b_exponent = tl.load(p_exponent + i_h * D + o_w, mask=m_w, other=0.0).to(tl.float32)
        b_scale = tl.load(p_scale + i_h * D + o_w, mask=m_w, other=1.0).to(tl.float32)
        b_dscale = -2 * b_exponent / b_scale * b_product
        tl.store(p_dscale + i_h * D + o_w, b_dscale.to(p_dscale.dtype.element_ty), mask=m_w)
