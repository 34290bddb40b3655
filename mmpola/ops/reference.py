"""Both operators in plain PyTorch, one line per equation, on any device and in any dtype.

These lines define what the operators compute: the tests compare every backend with them. Inside
`polarity_attention` tensors are [B, H, N, D], heads before tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from mmpola.ops.inputs import AttentionInputs, ExpMap, MixAndGateInputs, PowerMap
from mmpola.ops.numerics import without_autocast
from mmpola.ops.tracing import is_traced


def polarity_attention_reference(inputs: AttentionInputs) -> Tensor:
    """Compute o [B, N, H, D] (E1-E13) under ordinary autograd, in the dtype of the inputs."""
    if isinstance(inputs.feature_map, PowerMap):
        return _power_attention(inputs, inputs.feature_map)
    return _exp_attention(inputs, inputs.feature_map)


def _power_attention(inputs: AttentionInputs, feature_map: PowerMap) -> Tensor:
    q = inputs.q.transpose(1, 2)  # [B, H, N, D]
    k = add_key_position(inputs).transpose(1, 2)  # [B, H, M, D]  (E4)
    v = inputs.v.transpose(1, 2)
    psi = feature_map.key_features(k)  # [B, H, M, 2D]  (E6)
    key_mean = psi.mean(dim=-2).unsqueeze(-1)  # [B, H, 2D, 1]  (E1)
    state = psi.mT @ (v / v.shape[-2])  # [B, H, 2D, D] = [S_same | S_opposite]  (E2)
    states, key_means = swap_opposite(state, key_mean)
    phi, eps = feature_map.query_features(q, inputs.eps)  # phi_same [B, H, N, 2D]  (E7, E8a)
    numerator = (phi @ states).unflatten(-1, (2, -1))  # [B, H, N, 2, D/2]
    denominator = normaliser(phi, key_means, eps).unsqueeze(-1)
    output = (numerator / denominator).flatten(-2)  # [B, H, N, D]  (E3)
    return output.transpose(1, 2)


def _exp_attention(inputs: AttentionInputs, feature_map: ExpMap) -> Tensor:
    rotary = inputs.rotary
    q = inputs.q.transpose(1, 2)  # [B, H, N, D]
    k = add_key_position(inputs).transpose(1, 2)  # [B, H, M, D]
    v = inputs.v.transpose(1, 2)
    shift = feature_map.key_shift(q, k, paired=rotary is not None)  # [B, H, 1, 2D]  (E11)
    psi = feature_map.key_features(k, shift)  # [B, H, M, 2D]  (E9, E12)
    key_mean = psi.mean(dim=-2).unsqueeze(-1)  # [B, H, 2D, 1]  (E1)
    state = rotate(psi, rotary).mT @ (v / v.shape[-2])  # [B, H, 2D, D]  (E2, E10)
    state_same, state_opposite = state.chunk(2, dim=-1)
    same, opposite = feature_map.query_features(q, shift, inputs.eps)
    phi_same, eps_same = same  # [B, H, N, 2D]  (E9, E13)
    phi_opposite, eps_opposite = opposite
    # (E3, E10): the normaliser is not rotated
    output_same = rotate(phi_same, rotary) @ state_same
    output_same = output_same / normaliser(phi_same, key_mean, eps_same)
    output_opposite = rotate(phi_opposite, rotary) @ state_opposite
    output_opposite = output_opposite / normaliser(phi_opposite, key_mean, eps_opposite)
    return torch.cat([output_same, output_opposite], dim=-1).transpose(1, 2)


def add_key_position(inputs: AttentionInputs) -> Tensor:
    """Return k' = k + P [B, M, H, D] (E4)."""
    if inputs.key_position is None:
        return inputs.k
    return inputs.k + inputs.key_position


def swap_opposite(state: Tensor, key_mean: Tensor) -> tuple[Tensor, Tensor]:
    """Swap the halves of the features in the opposite-signed stream of a PowerMap's state.

    phi_opposite S = phi_same swap(S): with the rows of the small state swapped, one product with
    phi_same serves both streams.

    Args:
        state: [S_same | S_opposite], [..., 2D, D].
        key_mean: [..., 2D, 1].

    Returns:
        The state [..., 2D, D], and the key means of both streams [..., 2D, 2].
    """
    dim = state.shape[-1]
    same, opposite = state.chunk(2, dim=-1)
    states = torch.cat([same, opposite.roll(dim, -2)], dim=-1)
    key_means = torch.cat([key_mean, key_mean.roll(dim, -2)], dim=-1)
    return states, key_means


def normaliser(phi: Tensor, key_mean: Tensor, eps: Tensor | float) -> Tensor:
    """Compute the denominator of (E3) [B, H, N, S] of phi [B, H, N, 2D] and key_mean [B, H, 2D, S].

    The transposed product is computed, because on a CPU a matrix product with one or two columns is
    many times slower than one with one or two rows.
    """
    return (key_mean.mT @ phi.mT).mT + eps


def rotate(features: Tensor, rotary: tuple[Tensor, Tensor] | None) -> Tensor:
    """Rotate the interleaved channel pairs of [..., N, 2D] by the angles of (cos, sin) (E10)."""
    if rotary is None:
        return features
    cos, sin = rotary
    even, odd = features.unflatten(-1, (-1, 2)).unbind(-1)
    return features * cos + torch.stack([-odd, even], dim=-1).flatten(-2) * sin


def rotate_by_complex(x: Tensor, rotation: Tensor) -> Tensor:
    """Compute `rotate` in one pass over memory instead of five, which compilers cannot record.

    Args:
        x: [..., D], float32 or float64.
        rotation: exp(i angle), one complex number per pair of channels, [..., D / 2] that
            broadcasts to x's pairs.
    """
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * rotation).flatten(-2)


def mix_and_gate_reference(inputs: MixAndGateInputs) -> Tensor:
    """Compute y [B, N, C] (E14) under ordinary autograd, in the dtype of `attended`."""
    values = inputs.values.flatten(2)
    weight = inputs.weight.to(values.dtype)
    bias = inputs.bias
    if bias is not None:
        bias = bias.to(values.dtype)
    with without_autocast(values.device):
        convolved = convolve_tokens(values, weight, bias, inputs.grid)
        return (inputs.attended.flatten(2) + convolved) * inputs.gate


def convolve_tokens(x: Tensor, weight: Tensor, bias: Tensor | None, grid: Sequence[int]) -> Tensor:
    """Apply a depth-wise convolution to tokens on a grid: zero padding, same size.

    Args:
        x: [B, N, C], tokens in row-major order.
        weight: [C, 1, kh, kw], or [C / H, 1, kh, kw] shared by H heads; kh and kw odd.
        bias: one entry per channel of `weight`, or None.
        grid: (h, w) with h * w = N.

    Returns:
        [B, N, C].
    """
    if not is_traced() and x.shape[1] == 0:
        # torch refuses to convolve an empty map; the gradients of the parameters are 0
        total = weight.sum()
        if bias is not None:
            total = total + bias.sum()
        return x * total
    channels = x.shape[-1]
    heads = channels // weight.shape[0]
    # [B, N, C] has the memory layout of a channels-last map: no values are copied, only the small
    # kernel is repeated.
    maps = x.unflatten(1, grid).permute(0, 3, 1, 2)
    if heads > 1:
        weight = torch.cat([weight] * heads)
        if bias is not None:
            bias = torch.cat([bias] * heads)
    padding = (weight.shape[2] // 2, weight.shape[3] // 2)
    mixed = F.conv2d(maps, weight, bias, padding=padding, groups=channels)
    return mixed.flatten(2).transpose(1, 2)
