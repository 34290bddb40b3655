"""Statistics of a linear attention layer for one image: entropy, gate, rank of the token mixing."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from mmpola.layers import Grid
from mmpola.ops.inputs import AttentionInputs
from mmpola.papers.analysis.attention_weights import (
    FEATURES,
    WEIGHT_KINDS,
    attention_rows,
    queries_and_keys,
    sample_tokens,
    softmax_weights,
    weight_factors,
)
from mmpola.papers.analysis.capture import LayerInputs

Array = NDArray[np.float32]

PCA_TOKENS = 1024
"""Largest number of tokens whose gates the principal components are computed from."""

STREAMS = ('same', 'opposite')

RANK_KINDS = (*STREAMS, *FEATURES, 'softmax')
"""Kinds of weights whose rank is computed."""

CHUNK_WEIGHTS = 2**22
"""Weights of one kind that exist at a time, unless one row has more: 16 MB in float32."""


def positive_sequence_entropy(x: Tensor) -> Tensor:
    """Compute the entropy, in nats, of non-negative sequences [..., N] (PolaFormer, eq. 7).

    A sequence is divided by its sum. The entropy is 0 if one element is all, log N if all are
    equal, and NaN for a sequence of zeros.
    """
    return torch.special.entr(x / x.sum(dim=-1, keepdim=True)).sum(dim=-1)


def row_entropies(inputs: AttentionInputs, index: Tensor) -> dict[str, Tensor]:
    """Compute the entropy of rows of the weights of all `WEIGHT_KINDS`, for queries [R].

    Rotary tables are left out: rotated weights may be negative.

    Args:
        inputs: of a layer, B = 1.
        index: of the queries.

    Returns:
        [H, R] in nats for each kind, on the CPU; NaN for the queries to which 'relu' gives no key
        any weight.
    """
    weights_of = attention_rows(replace(inputs, rotary=None))
    _, keys, heads, _ = inputs.k.shape
    queries_per_chunk = max(1, CHUNK_WEIGHTS // (keys * heads))
    chunks: dict[str, list[Tensor]] = {kind: [] for kind in WEIGHT_KINDS}
    for queries in index.to(inputs.q.device).split(queries_per_chunk):
        for kind, weights in weights_of(queries).items():
            chunks[kind].append(positive_sequence_entropy(weights).cpu())
    return {kind: torch.cat(entropies, dim=-1) for kind, entropies in chunks.items()}


@dataclass(frozen=True, eq=False)
class GateStatistics:
    """Statistics of the gate's halves G_same and G_opposite over the tokens of one image.

    A half has [N, D/2] entries per head.

    Attributes:
        mean, std: of each stream and head, [2, H].
        correlation: of the entries of the two halves, paired by their channel's position in its
            half, per head [H].
        token_correlation: of the two halves' means over channels, which says whether tokens that
            open one stream close the other, per head [H].
        components: the halves of evenly spaced tokens, of all heads together, on the first two
            principal components of both halves: [2, tokens, 2].
        explained: shares of the variance of these components [2].
    """

    mean: Array
    std: Array
    correlation: Array
    token_correlation: Array
    components: Array
    explained: Array


def gate_statistics(gate: Tensor, heads: int) -> GateStatistics:
    """Compute the statistics of a gate [1, N, C]."""
    halves = torch.stack(gate[0].float().unflatten(-1, (heads, 2, -1)).unbind(-2))  # [2, N, H, D/2]
    per_head = halves.transpose(1, 2).flatten(2)  # [2, H, N * D/2]
    index = sample_tokens(gate.shape[1], PCA_TOKENS).to(gate.device)
    sampled = halves[:, index].flatten(2)  # [2, tokens, H * D/2]
    components, explained = principal_components(sampled.flatten(0, 1))
    same, opposite = per_head
    same_means, opposite_means = halves.mean(-1).mT  # [H, N]
    return GateStatistics(
        mean=per_head.mean(-1).cpu().numpy(),
        std=per_head.std(-1, correction=0).cpu().numpy(),
        correlation=correlation(same, opposite).cpu().numpy(),
        token_correlation=correlation(same_means, opposite_means).cpu().numpy(),
        components=components.unflatten(0, (2, -1)).cpu().numpy(),
        explained=explained.cpu().numpy(),
    )


def correlation(x: Tensor, y: Tensor) -> Tensor:
    """Compute Pearson's correlation of x and y over the last dimension; NaN if one is constant."""
    x = x - x.mean(dim=-1, keepdim=True)
    y = y - y.mean(dim=-1, keepdim=True)
    return (x * y).sum(-1) / (x.square().sum(-1) * y.square().sum(-1)).sqrt()


def principal_components(x: Tensor) -> tuple[Tensor, Tensor]:
    """Project points [P, C] on their first two principal components.

    Returns:
        [P, 2], and the shares of the variance that the components have [2].
    """
    centred = x - x.mean(dim=0)
    variances, axes = torch.linalg.eigh(centred.mT @ centred)  # ascending
    axes = axes[:, -2:].flip(-1)
    # An axis has no sign of its own; a fixed one makes figures comparable.
    axes = axes * torch.where(axes.sum(dim=0) < 0, -1.0, 1.0)
    return centred @ axes, variances[-2:].flip(-1) / variances.sum()


@dataclass(frozen=True, eq=False)
class EffectiveRanks:
    """Effective ranks of a layer for one image.

    Attributes:
        rows: number R of rows of the matrices: all N, or evenly spaced ones, whose rank is at most
            R.
        attention: of these rows of the weights A, per head [H], for each of `RANK_KINDS`.
        mixing: of these rows of A + T, the mean over evenly spaced channels of the stream, for each
            stream and head [2, H]; None if the layer reduces its keys, where T does not act on the
            same tokens as A. Rows of T further apart than its kernel are orthogonal, so a sample
            overstates what T adds to the whole matrix.
    """

    rows: int
    attention: dict[str, Array]
    mixing: Array | None


def effective_rank(singular_values: Tensor) -> Tensor:
    """Compute the effective rank of singular values [..., R] (Roy and Vetterli, EUSIPCO 2007).

    It is exp(entropy of the values divided by their sum).
    """
    return positive_sequence_entropy(singular_values).exp()


def effective_ranks(layer: LayerInputs, rows: int, channels: int) -> EffectiveRanks:
    """Compute the effective ranks of the matrix that mixes tokens, in float64 on the CPU.

    No [N, N] matrix is formed. For a value channel, (E14) without the gate is y = (A + T) v, with
    the weights A [N, N] of the channel's head and stream and the matrix T [N, N] of its convolution
    kernel. A has rank 2D at most, and T usually has full rank. For comparison, it has the
    ranks of other kinds of attention for the same q and k.

    Args:
        layer: with B = 1.
        rows: largest number of rows.
        channels: largest number of channels of a stream whose kernels are used.
    """
    q, k = queries_and_keys(layer.attention)
    _, heads, tokens, dim = q.shape
    index = sample_tokens(tokens, rows)
    factors = weight_factors(layer.attention)
    offsets = sample_tokens(dim // 2, channels)
    kernels = layer.mixing.weight[:, 0].cpu().double()
    has_mixing_matrix = layer.sr_ratio == 1

    attention = {kind: np.zeros(heads, np.float32) for kind in RANK_KINDS}
    mixing = np.zeros((len(STREAMS), heads), np.float32)
    for head in range(heads):
        softmax = softmax_weights(q[0, head, index], k[0, head]).cpu().double()
        attention['softmax'][head] = _rank_from_gram(softmax @ softmax.mT)
        for kind, (of_queries, of_keys) in factors.items():
            queries = of_queries[head, index].cpu().double()
            keys = of_keys[head].cpu().double()
            gram = queries @ (keys.mT @ keys) @ queries.mT  # A A^T
            attention[kind][head] = _rank_from_gram(gram)
            if kind not in STREAMS or not has_mixing_matrix:
                continue
            stream = STREAMS.index(kind)
            channel = head * dim + stream * (dim // 2) + offsets
            convolution, read = convolution_rows(kernels[channel % len(kernels)], layer.grid, index)
            crossed = queries @ (convolution @ keys[read]).mT  # A T^T
            squared = convolution @ convolution.mT  # T T^T
            gram = gram + crossed + crossed.mT + squared  # (A + T) (A + T)^T
            mixing[stream, head] = _rank_from_gram(gram).mean()
    return EffectiveRanks(len(index), attention, mixing if has_mixing_matrix else None)


def convolution_rows(kernels: Tensor, grid: Grid, index: Tensor) -> tuple[Tensor, Tensor]:
    """Return rows of the matrices T of zero-padded kernels, without columns that are 0 in all rows.

    Args:
        kernels: [P, k, k].
        grid: (h, w), h * w = N.
        index: tokens [R] of the rows.

    Returns:
        [P, R, U], and the tokens [U] of its columns.
    """
    height, width = grid
    side = kernels.shape[-1]
    numbers = torch.arange(1, height * width + 1, dtype=torch.float64)  # 0 is the padding
    windows = F.unfold(numbers.view(1, 1, height, width), side, padding=side // 2)[0]
    read = windows[:, index].long().mT - 1  # [R, k * k] tokens
    tokens, columns = read.unique(return_inverse=True)
    shape = (len(kernels), len(index), -1)
    rows = kernels.new_zeros(len(kernels), len(index), len(tokens))
    rows.scatter_(2, columns.expand(shape), kernels.flatten(1).unsqueeze(1).expand(shape))
    inside = tokens >= 0
    return rows[..., inside], tokens[inside]


def _rank_from_gram(gram: Tensor) -> Tensor:
    """Return the effective rank of rows from their products with each other [..., R, R]."""
    return effective_rank(torch.linalg.eigvalsh(gram).clamp_min(0).sqrt())
