"""Both operators in plain PyTorch, one line per equation, on any device and in any dtype.

These lines define what the operators compute: the tests compare every backend with them. Inside
`polarity_attention` tensors are [B, H, N, D], heads before tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from mmpola.ops.inputs import AttentionInputs, MixAndGateInputs
from mmpola.ops.numerics import without_autocast
from mmpola.ops.tracing import is_traced


def polarity_attention_reference(inputs: AttentionInputs) -> Tensor:
    """Compute o [B, N, H, D] (E1-E13) under ordinary autograd, in the dtype of the inputs."""
    feature_map, rotary = inputs.feature_map, inputs.rotary
    q, v = inputs.q.transpose(1, 2), inputs.v.transpose(1, 2)
    k = add_key_position(inputs).transpose(1, 2)  # (E4)
    shift = feature_map.shift(q, k, paired=rotary is not None)  # [B, H, 1, 2D] or None  (E11)
    psi = feature_map.key(k, shift)  # [B, H, M, 2D]  (E6, E9, E12)
    key_mean = psi.mean(dim=-2).unsqueeze(-1)  # [B, H, 2D, 1]  (E1)
    state = rotate(psi, rotary).mT @ (
        v / v.shape[-2]
    )  # [B, H, 2D, D] = [S_same | S_opposite]  (E2, E10)
    streams = feature_map.streams(state, key_mean)
    phis = feature_map.query(
        q, shift, inputs.eps
    )  # one or two pairs (phi [B, H, N, 2D], eps)  (E7-E9, E13)
    outputs = [
        read_state(phi, rotate(phi, rotary), *stream, eps)
        for (phi, eps), stream in zip(phis, streams, strict=True)
    ]
    return torch.cat(outputs, dim=-1).transpose(1, 2)


def add_key_position(inputs: AttentionInputs) -> Tensor:
    """Return k' = k + P [B, M, H, D] (E4)."""
    return inputs.k if inputs.key_position is None else inputs.k + inputs.key_position


def read_state(
    phi: Tensor, rotated_phi: Tensor, state: Tensor, key_mean: Tensor, eps: Tensor | float
) -> Tensor:
    """Compute the output of S streams that share one query feature tensor (E3).

    Args:
        phi: query features [B, H, N, 2D], for the normaliser.
        rotated_phi: the same with rotary tables applied, for the numerator (E10).
        state: [B, H, 2D, S * D/2].
        key_mean: [B, H, 2D, S].
        eps: a number or [B, H, N, 1].

    Returns:
        [B, H, N, S * D/2].
    """
    numerator, denominator = rotated_phi @ state, normaliser(phi, key_mean, eps)
    streams = key_mean.shape[-1]
    if streams == 1:
        return numerator / denominator
    return (torch.unflatten(numerator, -1, (streams, -1)) / denominator.unsqueeze(-1)).flatten(-2)


def normaliser(phi: Tensor, key_mean: Tensor, eps: Tensor | float) -> Tensor:
    """Compute the denominator of (E3) [B, H, N, S] from phi [B, H, N, 2D] and key_mean [B, H, 2D, S]; never rotated.

    The transposed product is computed, because on a CPU a matrix product with one or two columns is
    many times slower than one with one or two rows.
    """
    return (key_mean.mT @ phi.mT).mT + eps


def rotate(features: Tensor, rotary: tuple[Tensor, Tensor] | None) -> Tensor:
    """Rotate the interleaved channel pairs of [..., N, 2D] by the angles of (cos, sin) (E10); None changes nothing."""
    if rotary is None:
        return features
    cos, sin = rotary
    even, odd = features.unflatten(-1, (-1, 2)).unbind(-1)
    return features * cos + torch.stack([-odd, even], dim=-1).flatten(-2) * sin


def mix_and_gate_reference(inputs: MixAndGateInputs) -> Tensor:
    """Compute y [B, N, C] (E14) under ordinary autograd, in the dtype of `attended`."""
    values = inputs.values.flatten(2)
    weight = inputs.weight.to(values.dtype)
    bias = None if inputs.bias is None else inputs.bias.to(values.dtype)
    with without_autocast(values.device):
        return (
            inputs.attended.flatten(2) + convolve_tokens(values, weight, bias, inputs.grid)
        ) * inputs.gate


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
    if (
        not is_traced() and x.shape[1] == 0
    ):  # torch refuses to convolve an empty map; the parameters' gradients are 0
        return x * (weight.sum() if bias is None else weight.sum() + bias.sum())
    channels = x.shape[-1]
    heads = channels // weight.shape[0]
    # [B, N, C] has the memory layout of a channels-last map: no values are copied, only the small
    # kernel is repeated.
    maps = x.unflatten(1, grid).permute(0, 3, 1, 2)
    if heads > 1:
        weight = torch.cat([weight] * heads)
        bias = None if bias is None else torch.cat([bias] * heads)
    padding = [side // 2 for side in weight.shape[2:]]
    mixed = F.conv2d(maps, weight, bias, padding=padding, groups=channels)
    return mixed.flatten(2).transpose(1, 2)
