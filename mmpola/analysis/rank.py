"""The effective rank of the matrix that mixes tokens: attention alone, and with the depth-wise convolution.

For a value channel, (E14) without the gate is y = (A + T) v, with the weights A [N, N] of the channel's head and stream
and the matrix T [N, N] of its convolution kernel. A has rank 2D at most, and T usually has full rank.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from mmpola.analysis.capture import LayerInputs
from mmpola.analysis.entropy import positive_sequence_entropy
from mmpola.analysis.weights import polarity_factors, sample_tokens
from mmpola.layers import Grid


@dataclass(frozen=True, eq=False)
class EffectiveRanks:
    """Effective ranks of a layer for one image, [2, H] for each stream and head.

    Attributes:
        attention: of A, exact, from its factors; at most 2D.
        rows: number R of the rows of the next two: all N, or evenly spaced ones, whose rank is at most R. Rows of T
            further apart than its kernel are orthogonal, so a sample overstates what T adds to the whole matrix.
        attention_rows: of these rows of A.
        mixing_rows: of these rows of A + T, the mean over evenly spaced channels of the stream; None if the layer
            reduces its keys, where T does not act on the same tokens as A.
    """

    attention: NDArray[np.float32]
    rows: int
    attention_rows: NDArray[np.float32]
    mixing_rows: NDArray[np.float32] | None


def effective_rank(singular_values: Tensor) -> Tensor:
    """Compute exp(entropy of the singular values [..., R] divided by their sum) (Roy and Vetterli, EUSIPCO 2007)."""
    return positive_sequence_entropy(singular_values).exp()


def effective_ranks(layer: LayerInputs, rows: int, channels: int) -> EffectiveRanks:
    """Compute the effective ranks of a layer in float64 on the CPU, without an [N, N] matrix.

    Args:
        layer: with B = 1.
        rows: largest number of rows for A + T.
        channels: largest number of channels of a stream whose kernels are used.
    """
    factors = polarity_factors(layer.attention)
    streams, heads, tokens, _ = factors.queries.shape
    dim = layer.attention.q.shape[-1]
    index, offsets = sample_tokens(tokens, rows), sample_tokens(dim // 2, channels)
    weight = layer.mixing.weight[:, 0].cpu().double()
    attention, attention_rows, mixing_rows = np.zeros((3, streams, heads), np.float32)
    for stream in range(streams):
        for head in range(heads):
            queries, keys = factors.queries[stream, head].cpu().double(), factors.keys[head].cpu().double()
            attention[stream, head] = effective_rank(singular_values(queries, keys))
            gram = queries[index] @ (keys.mT @ keys) @ queries[index].mT  # A A^T
            attention_rows[stream, head] = _rank_from_gram(gram)
            if layer.sr_ratio == 1:
                kernels = weight[(head * dim + stream * (dim // 2) + offsets) % len(weight)]
                convolution, read = convolution_rows(kernels, layer.grid, index)
                crossed = queries[index] @ (convolution @ keys[read]).mT  # A T^T
                gram = gram + crossed + crossed.mT + convolution @ convolution.mT  # (A + T) (A + T)^T
                mixing_rows[stream, head] = _rank_from_gram(gram).mean()
    return EffectiveRanks(attention, len(index), attention_rows, mixing_rows if layer.sr_ratio == 1 else None)


def singular_values(queries: Tensor, keys: Tensor) -> Tensor:
    """Return the singular values [F] of Q K^T for Q [N, F] and K [M, F], from the QR decompositions of both."""
    upper_q, upper_k = (torch.linalg.qr(x, mode='r').R for x in (queries, keys))
    return torch.linalg.svdvals(upper_q @ upper_k.mT)


def convolution_rows(kernels: Tensor, grid: Grid, index: Tensor) -> tuple[Tensor, Tensor]:
    """Return rows of the matrices T of zero-padded kernels, without the columns that are 0 in all of these rows.

    Args:
        kernels: [P, k, k].
        grid: (h, w), h * w = N.
        index: tokens [R] of the rows.

    Returns:
        [P, R, U], and the tokens [U] of its columns.
    """
    numbers = torch.arange(1, grid[0] * grid[1] + 1, dtype=torch.float64).view(1, 1, *grid)  # 0 is the padding
    side = kernels.shape[-1]
    read = F.unfold(numbers, side, padding=side // 2)[0][:, index].long().mT - 1  # [R, k * k] tokens
    tokens, columns = read.unique(return_inverse=True)
    shape = (len(kernels), len(index), -1)
    rows = kernels.new_zeros(len(kernels), len(index), len(tokens))
    rows.scatter_(2, columns.expand(shape), kernels.flatten(1).unsqueeze(1).expand(shape))
    return rows[..., tokens >= 0], tokens[tokens >= 0]


def _rank_from_gram(gram: Tensor) -> Tensor:
    """Return the effective rank of rows [..., R, N] from their products with each other [..., R, R]."""
    return effective_rank(torch.linalg.eigvalsh(gram).clamp_min(0).sqrt())
