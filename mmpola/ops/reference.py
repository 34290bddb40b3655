"""Both operators in plain PyTorch, one line per equation, on any device and in any dtype.

These lines define what the operators compute: the tests compare every backend with them. Those of
attention are in the feature maps; here are what they share and `mix_and_gate`.
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
    return inputs.feature_map.attention(inputs)


def add_key_position(inputs: AttentionInputs) -> Tensor:
    """Return k' = k + P [B, M, H, D] (E4)."""
    if inputs.key_position is None:
        return inputs.k
    return inputs.k + inputs.key_position


def swap_halves(x: Tensor, dim: int) -> Tensor:
    """Swap the two halves of `dim`: the positive features with the negative ones."""
    return x.roll(x.shape[dim] // 2, dim)


def signed_halves(x: Tensor) -> Tensor:
    """Compute [x+ ; x-] [..., 2D] of x [..., D]; the gradient at 0 is 0."""
    return torch.cat([x.relu(), x.neg().relu()], dim=-1)


def token_level(size: Tensor) -> Tensor:
    """Return the smallest integer >= 0 that no element of a token exceeds: [..., D] -> [..., 1]."""
    return size.amax(-1, keepdim=True).clamp_min_(0).ceil_()


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
    # Inductor (torch 2.11) fails if a bias that is concatenated in the graph goes into a
    # convolution of symbolic size.
    is_separate = is_traced() and heads > 1 and bias is not None
    padding = (weight.shape[2] // 2, weight.shape[3] // 2)
    mixed = F.conv2d(maps, weight, None if is_separate else bias, padding=padding, groups=channels)
    if is_separate and bias is not None:
        mixed = mixed + bias.view(-1, 1, 1)
    return mixed.flatten(2).transpose(1, 2)
