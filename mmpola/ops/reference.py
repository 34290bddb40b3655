"""The equations in plain PyTorch, a line each: the meaning of the operator on any device, in any dtype.

Tensors here are [B, H, N, D]: heads before tokens. Every backend and the streamed form beside this file
(`streaming.py`) are held to these lines by the tests.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mmpola.ops.inputs import AttentionInputs

Rotary = tuple[Tensor, Tensor] | None


def plain_attention(inputs: AttentionInputs) -> Tensor:
    """E1-E8 (PowerMap) or E9-E13 (ExpMap) under ordinary autograd: o [B, N, H, D]."""
    feature_map, rotary = inputs.feature_map, inputs.rotary
    q, v = inputs.q.transpose(1, 2), inputs.v.transpose(1, 2)
    k = positioned_key(inputs).transpose(1, 2)
    shift = feature_map.shift(q, k, paired=rotary is not None)  # [B, H, 1, 2D] or None  (E11)
    psi = feature_map.key(k, shift)  # [B, H, M, 2D]  (E6, E9, E12)
    key_mean = psi.mean(dim=-2).unsqueeze(-1)  # [B, H, 2D, 1]  (E1)
    state = rotate(psi, rotary).mT @ (v / v.shape[-2])  # [B, H, 2D, D] = [S_same | S_opposite]  (E2, E10)
    streams = feature_map.streams(state, key_mean)
    phis = feature_map.query(q, shift, inputs.eps)  # one or two of [B, H, N, 2D], and their eps  (E7, E8, E9, E13)
    reads = [read(phi, rotate(phi, rotary), *stream, eps) for (phi, eps), stream in zip(phis, streams, strict=True)]
    return torch.cat(reads, dim=-1).transpose(1, 2)


def positioned_key(inputs: AttentionInputs) -> Tensor:
    """k' = k + P [B, M, H, D] (E4)."""
    return inputs.k if inputs.key_position is None else inputs.k + inputs.key_position


def read(phi: Tensor, turned: Tensor, state: Tensor, key_mean: Tensor, eps: Tensor | float) -> Tensor:
    """phi as is and turned [B, H, N, 2D], state [B, H, 2D, S*D/2], key mean [B, H, 2D, S] -> [B, H, N, S*D/2] (E3)."""
    numerator = turned @ state
    streams = (key_mean.shape[-1], -1)
    return (numerator.unflatten(-1, streams) / normaliser(phi, key_mean, eps).unsqueeze(-1)).flatten(-2)


def normaliser(phi: Tensor, key_mean: Tensor, eps: Tensor | float) -> Tensor:
    """phi [B, H, N, 2D], never rotated (E10), key mean [B, H, 2D, S] -> [B, H, N, S]: the denominator of (E3).

    Multiplied as rows, because a CPU's matrix product is many times slower with one or two columns.
    """
    return (key_mean.mT @ phi.mT).mT + eps


def rotate(features: Tensor, rotary: Rotary) -> Tensor:
    """Turn interleaved channel pairs of [..., N, 2D] by their angles (E10); unchanged without tables."""
    if rotary is None:
        return features
    cos, sin = rotary
    even, odd = features.unflatten(-1, (-1, 2)).unbind(-1)
    return features * cos + torch.stack([-odd, even], dim=-1).flatten(-2) * sin
