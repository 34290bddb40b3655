"""The gradient kernel over keys and values: dk and dv from the state's gradient, features recomputed (E17, E18)."""
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
    load_halves,
    load_power,
    load_state,
    load_tokens,
    load_turn,
    log2_of_magnitude,
    power_gradient,
    scaled_key,
    store_halves,
    turn,
    turn_back,
)
from mmpola.ops.triton.launch import ONE_PRODUCT_STATE, on_device_of, plan
from mmpola.ops.triton.tensors import Parameters


@triton.jit(do_not_specialize=['heads', 'keys', 'tokens'])
def key_gradient_kernel(
    p_k, p_v, p_position, p_exponent, p_scale, p_cos, p_sin, p_dstate, p_dmean, p_shift,
    p_dk, p_dv, p_dparameters,
    k_b, k_n, k_h, v_b, v_n, v_h, heads, keys, tokens,
    D: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, BC: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dk, dv, and per program the parts of the parameters' gradients [4, D]; None: not wanted. dS, dk̄ carry the 1/M."""
    i_bh, i_chunk = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    i_b, i_h = i_bh // heads, i_bh % heads
    p_k += i_b * k_b + i_h * k_h
    p_v += i_b * v_b + i_h * v_h
    o_n, o_d = tl.arange(0, BN), tl.arange(0, BD)
    m_d = o_d < D
    if p_exponent is not None:
        b_exponent, b_inverse_scale = load_power(p_exponent, p_scale, i_h, D, BD)
    else:
        b_shift_1, b_shift_2 = load_halves(p_shift + i_bh * 2 * D, D, BD)
    p_dstate += i_bh * 2 * D * D
    b_dstate_1 = load_state(p_dstate, 0, 0, D, D, BD, BD, PRECISION)
    b_dstate_2 = load_state(p_dstate, D, 0, D, D, BD, BD, PRECISION)
    b_dmean_1, b_dmean_2 = load_halves(p_dmean + i_bh * 2 * D, D, BD)

    b_dp_0, b_dp_1 = tl.zeros((BN, BD), tl.float32), tl.zeros((BN, BD), tl.float32)  # summed over BN at the end
    start = i_chunk * tokens
    for i_n in range(start, tl.minimum(start + tokens, keys), BN):
        m_n = i_n + o_n < keys
        m_k = m_n[:, None] & m_d[None, :]
        o_row = ((i_b * keys + i_n) * heads + i_h) * D + (o_n * heads * D)[:, None]
        b_k = load_tokens(p_k + i_n * k_n, k_n, o_n, o_d, m_k)
        if p_position is not None:
            b_k += load_tokens(p_position + (i_n * heads + i_h) * D, heads * D, o_n, o_d, m_k)  # (E4)
        if p_exponent is not None:
            b_k *= b_inverse_scale[None, :]
            b_log2 = log2_of_magnitude(b_k)
            b_a = tl.exp2(b_exponent[None, :] * b_log2)  # (E6)
        else:
            b_a, b_slope = scaled_key(b_k, b_shift_1, b_shift_2)  # (E9, E12)
        if p_cos is not None:
            b_cos_1, b_sin_1 = load_turn(p_cos, p_sin, i_n, 0, m_n, D, BN, BD)
            b_cos_2, b_sin_2 = load_turn(p_cos, p_sin, i_n, D, m_n, D, BN, BD)

        if (p_dk is not None) or (p_dparameters is not None):
            b_v = factor(load_tokens(p_v + i_n * v_n, v_n, o_n, o_d, m_k), PRECISION)
            # [BN, BD] x [BD, BD]  (E17)
            b_dpsi_1 = tl.dot(b_v, tl.trans(b_dstate_1), input_precision=PRECISION)
            b_dpsi_2 = tl.dot(b_v, tl.trans(b_dstate_2), input_precision=PRECISION)
            if p_cos is not None:
                b_dpsi_1 = turn_back(b_dpsi_1, b_cos_1, b_sin_1, BN, BD)
                b_dpsi_2 = turn_back(b_dpsi_2, b_cos_2, b_sin_2, BN, BD)
            b_da = tl.where(b_k < 0, b_dpsi_2, b_dpsi_1) + choose_mean(b_k, b_dmean_1, b_dmean_2)
            if p_exponent is not None:
                b_dk, b_dexponent = power_gradient(b_k, b_a, b_log2, b_exponent, b_da)
                b_dp_0 += b_dexponent
                b_dp_1 += b_dk * b_k
                b_dk *= b_inverse_scale[None, :]
            else:
                b_dk = b_da * b_slope
                b_dk = tl.where(b_k < 0, -b_dk, tl.where(b_k == 0, 0.0, b_dk))
            if p_dk is not None:
                tl.store(p_dk + o_row + o_d[None, :], b_dk.to(p_dk.dtype.element_ty), mask=m_k)

        if p_dv is not None:
            b_psi_1, b_psi_2 = by_sign(b_k, b_a)
            if p_cos is not None:
                b_psi_1 = turn(b_psi_1, b_cos_1, b_sin_1, BN, BD)
                b_psi_2 = turn(b_psi_2, b_cos_2, b_sin_2, BN, BD)
            # [BN, BD] x [BD, BD]  (E17)
            b_dv = tl.dot(factor(b_psi_1, PRECISION), b_dstate_1, input_precision=PRECISION)
            b_dv = tl.dot(factor(b_psi_2, PRECISION), b_dstate_2, b_dv, input_precision=PRECISION)
            tl.store(p_dv + o_row + o_d[None, :], b_dv.to(p_dv.dtype.element_ty), mask=m_k)

    if p_dparameters is not None:
        p_dparameters += (i_bh * tl.num_programs(1) + i_chunk) * 4 * D
        store_halves(p_dparameters, tl.sum(b_dp_0, 0), tl.sum(b_dp_1, 0), D, BD)
        store_halves(p_dparameters + 2 * D, tl.zeros((BD,), tl.float32), tl.zeros((BD,), tl.float32), D, BD)


def key_gradient(
    k: Tensor,
    v: Tensor,
    dstate: Tensor,
    dmean: Tensor,
    shift: Tensor | None,
    parameters: Parameters,
    wants: tuple[bool, bool, bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """dk, dv [B, M, H, D] and the parameters' gradients [H, 4, D], None where not wanted.

    Args:
        dstate: gradient of the state [B, H, 2D, D], divided by M.
        dmean: gradient of the key mean [B, H, 2D], divided by M.
        wants: whether dk, dv and the parameters' gradients are wanted.
    """
    batch, keys, heads, dim = k.shape
    todo = plan('key_gradient', k, parameters)
    rows, chunks = todo.grid
    dk = torch.empty(k.shape, device=k.device, dtype=k.dtype) if wants[0] else None
    dv = torch.empty(v.shape, device=v.device, dtype=v.dtype) if wants[1] else None
    dparameters = torch.empty(rows, chunks, 4, dim, device=k.device, dtype=torch.float32) if wants[2] else None
    # dS stands on the right of one product for dk and, not transposed, of one for dv: at BD = 128 that is 256 KB of
    # shared memory, more than there is, so dk and dv get a launch each.
    outputs = [(dk, dv, dparameters)]
    if todo.options['BD'] >= ONE_PRODUCT_STATE:
        outputs = [(dk, None, dparameters), (None, dv, None)]
    for out in outputs:
        if not todo.is_empty and any(x is not None for x in out):
            with on_device_of(k):
                key_gradient_kernel[todo.grid](
                    k, v, parameters.key_position, parameters.exponent, parameters.scale,
                    parameters.cos, parameters.sin, dstate, dmean, shift, *out,
                    *k.stride()[:3], *v.stride()[:3], heads, keys, todo.tokens, **todo.options,
                )  # fmt: skip
    return dk, dv, None if dparameters is None else dparameters.view(batch, heads, chunks, 4, dim).sum((0, 2))
