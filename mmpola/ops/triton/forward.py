"""Forward kernels: the state in one pass over keys and values (E1, E2), the output in one pass over queries (E3)."""
# mypy: allow-untyped-defs, allow-incomplete-defs
# ruff: noqa: N803

import torch
import triton
import triton.language as tl
from torch import Tensor

from mmpola.ops.triton.features import (
    by_sign,
    choose_mean,
    factor,
    largest_of_pairs,
    load_halves,
    load_power,
    load_reach,
    load_streams,
    load_tokens,
    load_turn,
    log2_of_magnitude,
    normaliser,
    scaled_key,
    scaled_query,
    store_halves,
    store_state,
    turn,
)
from mmpola.ops.triton.launch import on_device_of, plan
from mmpola.ops.triton.tensors import Parameters


@triton.jit(do_not_specialize=['heads', 'keys', 'tokens', 'shrink', 'grow'])
def state_kernel(
    p_k, p_v, p_position, p_exponent, p_scale, p_cos, p_sin, p_state, p_mean, p_shift,
    k_b, k_n, k_h, v_b, v_n, v_h, heads, keys, tokens, shrink, grow,
    D: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, BC: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Partial states [B * H, chunks, 2D, D], key means and (an ExpMap's) shifts [B * H, chunks, 2D] of `tokens` keys.

    1/M = shrink * grow: values are divided by the next power of two, which leaves a half value exact in a tf32 product,
    and the sums, which could overflow if they were divided only then, by the rest. Each program scales exponential
    features by the largest key that it has met so far (E11), and what it has summed whenever that grows.
    """
    i_bh, i_chunk = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    i_b, i_h = i_bh // heads, i_bh % heads
    p_k += i_b * k_b + i_h * k_h
    p_v += i_b * v_b + i_h * v_h
    o_n, o_d = tl.arange(0, BN), tl.arange(0, BD)
    m_d = o_d < D
    if p_exponent is not None:
        b_exponent, b_inverse_scale = load_power(p_exponent, p_scale, i_h, D, BD)
    else:
        b_shift_1, b_shift_2 = tl.zeros((BD,), tl.float32), tl.zeros((BD,), tl.float32)

    b_state_1, b_state_2 = tl.zeros((BD, BD), tl.float32), tl.zeros((BD, BD), tl.float32)
    b_mean_1, b_mean_2 = tl.zeros((BN, BD), tl.float32), tl.zeros((BN, BD), tl.float32)  # summed over BN at the end
    start = i_chunk * tokens
    for i_n in range(start, tl.minimum(start + tokens, keys), BN):
        m_n = i_n + o_n < keys
        m_k = m_n[:, None] & m_d[None, :]
        b_k = load_tokens(p_k + i_n * k_n, k_n, o_n, o_d, m_k)
        if p_position is not None:
            b_k += load_tokens(p_position + (i_n * heads + i_h) * D, heads * D, o_n, o_d, m_k)  # (E4)
        if p_exponent is not None:
            b_k *= b_inverse_scale[None, :]
            b_psi_1, b_psi_2 = by_sign(b_k, tl.exp2(b_exponent[None, :] * log2_of_magnitude(b_k)))  # (E6)
        else:
            b_before_1, b_before_2 = b_shift_1, b_shift_2
            b_shift_1 = tl.maximum(b_shift_1, tl.ceil(tl.max(b_k, 0)))  # (E11)
            b_shift_2 = tl.maximum(b_shift_2, tl.ceil(tl.max(-b_k, 0)))
            if p_cos is not None:
                b_shift_1, b_shift_2 = largest_of_pairs(b_shift_1, BD), largest_of_pairs(b_shift_2, BD)
            b_fade_1, b_fade_2 = tl.exp(b_before_1 - b_shift_1), tl.exp(b_before_2 - b_shift_2)
            b_mean_1 *= b_fade_1[None, :]
            b_mean_2 *= b_fade_2[None, :]
            b_state_1 *= b_fade_1[:, None]
            b_state_2 *= b_fade_2[:, None]
            b_a, _ = scaled_key(b_k, b_shift_1, b_shift_2)
            b_psi_1, b_psi_2 = by_sign(b_k, b_a)  # (E9, E12)
        b_mean_1 += b_psi_1
        b_mean_2 += b_psi_2
        if p_cos is not None:
            b_cos, b_sin = load_turn(p_cos, p_sin, i_n, 0, m_n, D, BN, BD)
            b_psi_1 = turn(b_psi_1, b_cos, b_sin, BN, BD)
            b_cos, b_sin = load_turn(p_cos, p_sin, i_n, D, m_n, D, BN, BD)
            b_psi_2 = turn(b_psi_2, b_cos, b_sin, BN, BD)
        b_v = factor(load_tokens(p_v + i_n * v_n, v_n, o_n, o_d, m_k) * shrink, PRECISION)
        # [BD, BN] x [BN, BD]  (E2)
        b_state_1 = tl.dot(tl.trans(factor(b_psi_1, PRECISION)), b_v, b_state_1, input_precision=PRECISION)
        b_state_2 = tl.dot(tl.trans(factor(b_psi_2, PRECISION)), b_v, b_state_2, input_precision=PRECISION)

    i_part = i_bh * tl.num_programs(1) + i_chunk
    p_state += i_part * 2 * D * D
    store_state(p_state, 0, 0, D, b_state_1 * grow, D, BD, BD)
    store_state(p_state, D, 0, D, b_state_2 * grow, D, BD, BD)
    b_mean_1, b_mean_2 = tl.sum(b_mean_1, 0) * (shrink * grow), tl.sum(b_mean_2, 0) * (shrink * grow)
    store_halves(p_mean + i_part * 2 * D, b_mean_1, b_mean_2, D, BD)
    if p_exponent is None:
        store_halves(p_shift + i_part * 2 * D, b_shift_1, b_shift_2, D, BD)


@triton.jit
def read(b_phi_1, b_phi_2, b_state_1, b_state_2, r, PRECISION: tl.constexpr):
    """One stream's output [BN, BC] (E3) from its features [BN, BD] and its columns of the state [BD, BC]."""
    # [BN, BD] x [BD, BC]
    b_o = tl.dot(factor(b_phi_1, PRECISION), b_state_1, input_precision=PRECISION)
    b_o = tl.dot(factor(b_phi_2, PRECISION), b_state_2, b_o, input_precision=PRECISION)
    return b_o / r[:, None]


@triton.jit(do_not_specialize=['heads', 'queries', 'tokens', 'eps'])
def output_kernel(
    p_q, p_exponent, p_scale, p_same, p_opposite, p_cos, p_sin, p_state, p_mean, p_shift, p_o,
    q_b, q_n, q_h, heads, queries, tokens, eps,
    D: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, BC: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """o [B, N, H, D], `tokens` queries per program; the state stays on the chip for all of them."""
    i_bh, i_chunk = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    i_b, i_h = i_bh // heads, i_bh % heads
    p_q += i_b * q_b + i_h * q_h
    p_o += (i_b * queries * heads + i_h) * D
    o_n, o_d, o_c = tl.arange(0, BN), tl.arange(0, BD), tl.arange(0, BC)
    m_d, m_c = o_d < D, o_c < D // 2
    if p_exponent is not None:
        b_exponent, b_inverse_scale = load_power(p_exponent, p_scale, i_h, D, BD)
    else:
        b_t_same_1, b_t_same_2 = load_halves(p_same + i_h * 2 * D, D, BD)
        b_t_opposite_1, b_t_opposite_2 = load_halves(p_opposite + i_h * 2 * D, D, BD)
        b_reach_1, b_reach_2 = load_reach(p_shift + i_bh * 2 * D, D, BD)
    b_same_1, b_same_2, b_opposite_1, b_opposite_2 = load_streams(p_state + i_bh * 2 * D * D, D, BD, BC, PRECISION)
    b_mean_1, b_mean_2 = load_halves(p_mean + i_bh * 2 * D, D, BD)
    start = i_chunk * tokens
    for i_n in range(start, tl.minimum(start + tokens, queries), BN):
        m_n = i_n + o_n < queries
        b_q = load_tokens(p_q + i_n * q_n, q_n, o_n, o_d, m_n[:, None] & m_d[None, :])
        if p_exponent is not None:
            b_q *= b_inverse_scale[None, :]
            b_a_same = tl.exp2(b_exponent[None, :] * log2_of_magnitude(b_q))  # (E7)
            b_a_opposite = b_a_same  # (E8)
            eps_same, eps_opposite = eps, eps
        else:
            b_a_same, _, _, eps_same = scaled_query(b_q, b_t_same_1, b_t_same_2, b_reach_1, b_reach_2, eps)
            b_a_opposite, _, _, eps_opposite = scaled_query(
                b_q, b_t_opposite_2, b_t_opposite_1, b_reach_2, b_reach_1, eps
            )
        r_same = normaliser(b_a_same, choose_mean(b_q, b_mean_1, b_mean_2), m_n, eps_same)
        r_opposite = normaliser(b_a_opposite, choose_mean(b_q, b_mean_2, b_mean_1), m_n, eps_opposite)
        b_phi_same_1, b_phi_same_2 = by_sign(b_q, b_a_same)
        b_phi_opposite_2, b_phi_opposite_1 = by_sign(b_q, b_a_opposite)
        if p_cos is not None:  # (E10)
            b_cos, b_sin = load_turn(p_cos, p_sin, i_n, 0, m_n, D, BN, BD)
            b_phi_same_1 = turn(b_phi_same_1, b_cos, b_sin, BN, BD)
            b_phi_opposite_1 = turn(b_phi_opposite_1, b_cos, b_sin, BN, BD)
            b_cos, b_sin = load_turn(p_cos, p_sin, i_n, D, m_n, D, BN, BD)
            b_phi_same_2 = turn(b_phi_same_2, b_cos, b_sin, BN, BD)
            b_phi_opposite_2 = turn(b_phi_opposite_2, b_cos, b_sin, BN, BD)
        b_o_same = read(b_phi_same_1, b_phi_same_2, b_same_1, b_same_2, r_same, PRECISION)
        b_o_opposite = read(b_phi_opposite_1, b_phi_opposite_2, b_opposite_1, b_opposite_2, r_opposite, PRECISION)
        p_rows = p_o + i_n * heads * D + (o_n * heads * D)[:, None] + o_c[None, :]
        m_o = m_n[:, None] & m_c[None, :]
        tl.store(p_rows, b_o_same.to(p_o.dtype.element_ty), mask=m_o)
        tl.store(p_rows + D // 2, b_o_opposite.to(p_o.dtype.element_ty), mask=m_o)


def make_state(k: Tensor, v: Tensor, parameters: Parameters) -> tuple[Tensor, Tensor, Tensor | None]:
    """State [B, H, 2D, D], key mean and shift [B, H, 2D], float32; no shift for a PowerMap.

    Parts are added in a fixed order: the same bits twice.
    """
    batch, keys, heads, dim = k.shape
    todo = plan('state', k, parameters)
    rows, chunks = todo.grid
    state = torch.empty(rows, chunks, 2 * dim, dim, device=k.device, dtype=torch.float32)
    mean = torch.empty(rows, chunks, 2 * dim, device=k.device, dtype=torch.float32)
    shift = torch.empty_like(mean) if parameters.exponent is None else None
    shrink = 2.0 ** -(keys - 1).bit_length()
    if not todo.is_empty:
        with on_device_of(k):
            state_kernel[todo.grid](
                k, v, parameters.key_position, parameters.exponent, parameters.scale, parameters.cos, parameters.sin,
                state, mean, shift,
                *k.stride()[:3], *v.stride()[:3], heads, keys, todo.tokens, shrink, 1 / (shrink * keys), **todo.options,
            )  # fmt: skip
    if shift is not None:
        parts, shift = shift, shift.amax(1)
        fade = (parts - shift.unsqueeze(1)).exp_()
        state *= fade.unsqueeze(-1)
        mean *= fade
        shift = shift.view(batch, heads, 2 * dim)
    return state.sum(1).view(batch, heads, 2 * dim, dim), mean.sum(1).view(batch, heads, 2 * dim), shift


def read_state(
    q: Tensor, state: Tensor, mean: Tensor, shift: Tensor | None, parameters: Parameters, eps: float
) -> Tensor:
    """o [B, N, H, D] contiguous, in q's dtype."""
    _, queries, heads, _ = q.shape
    todo = plan('output', q, parameters)
    output = torch.empty(q.shape, device=q.device, dtype=q.dtype)
    if not todo.is_empty:
        with on_device_of(q):
            output_kernel[todo.grid](
                q, parameters.exponent, parameters.scale, parameters.same, parameters.opposite,
                parameters.cos, parameters.sin, state, mean, shift, output,
                *q.stride()[:3], heads, queries, todo.tokens, eps, **todo.options,
            )  # fmt: skip
    return output
