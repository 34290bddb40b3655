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
from mmpola.analysis.weights import STREAMS, Factors, polarity_factors, sample_tokens
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
    factors = Factors(factors.queries.cpu().double(), factors.keys.cpu().double())
    index = sample_tokens(factors.queries.shape[2], rows)
    queries, keys = factors.queries[:, :, index], factors.keys
    gram = queries @ (keys.mT @ keys) @ queries.mT  # [2, H, R, R] of the rows of A
    mixing = _mixing_ranks(layer, gram, queries, keys, index, channels) if layer.sr_ratio == 1 else None
    return EffectiveRanks(
        attention=effective_rank(_singular_values(factors)).float().numpy(),
        rows=len(index),
        attention_rows=_rank_from_gram(gram).float().numpy(),
        mixing_rows=None if mixing is None else mixing.float().numpy(),
    )


def convolution_rows(kernel: Tensor, grid: Grid, index: Tensor) -> tuple[Tensor, Tensor]:
    """Return the rows `index` [R] of the matrix T of a zero-padded kernel [k, k], without the columns that are 0.

    Returns:
        [R, U], and the tokens [U] of its columns.
    """
    numbers = torch.arange(1, grid[0] * grid[1] + 1, dtype=torch.float64).view(1, 1, *grid)  # 0 is the padding
    side = kernel.shape[-1]
    read = F.unfold(numbers, side, padding=side // 2)[0][:, index].long().mT - 1  # [R, k * k] tokens
    tokens, columns = read.unique(return_inverse=True)
    rows = kernel.new_zeros(len(index), len(tokens)).scatter_(1, columns, kernel.flatten().expand_as(columns))
    return rows[:, tokens >= 0], tokens[tokens >= 0]


def _singular_values(factors: Factors) -> Tensor:
    """Return the singular values [S, H, F] of Q K^T, those of R_Q R_K^T in the QR decompositions of both factors."""
    upper_q, upper_k = (torch.linalg.qr(x, mode='r').R for x in (factors.queries, factors.keys))
    return torch.linalg.svdvals(upper_q @ upper_k.mT)


def _rank_from_gram(gram: Tensor) -> Tensor:
    """Return the effective rank of rows [..., R, N] from their products with each other [..., R, R]."""
    return effective_rank(torch.linalg.eigvalsh(gram).clamp_min(0).sqrt())


def _mixing_ranks(
    layer: LayerInputs, gram: Tensor, queries: Tensor, keys: Tensor, index: Tensor, channels: int
) -> Tensor:
    """Return the effective rank of the rows `index` of A + T, the mean over channels, [2, H].

    The rows' products are (A + T)(A + T)^T = A A^T + A T^T + T A^T + T T^T, of which the first is `gram`.
    """
    _, _, heads, dim = layer.attention.q.shape
    weight = layer.mixing.weight[:, 0].cpu().double()
    found = torch.zeros(len(STREAMS), heads, dtype=torch.float64)
    offsets = sample_tokens(dim // 2, channels)
    for stream in range(len(STREAMS)):
        for head in range(heads):
            for offset in offsets.tolist():
                channel = head * dim + stream * (dim // 2) + offset
                rows, tokens = convolution_rows(weight[channel % len(weight)], layer.grid, index)
                crossed = queries[stream, head] @ (rows @ keys[head, tokens]).mT
                products = gram[stream, head] + crossed + crossed.mT + rows @ rows.mT
                found[stream, head] += _rank_from_gram(products) / len(offsets)
    return found
