"""Statistics of a linear attention layer for one image: entropy, gate, rank of the token mixing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from mmpola.apps.analysis.capture import LayerInputs
from mmpola.apps.analysis.weights import (
    MAP_KINDS,
    WEIGHT_KINDS,
    attention_rows,
    polarity_factors,
    sample_tokens,
)
from mmpola.layers import Grid
from mmpola.ops.inputs import AttentionInputs

Array = NDArray[np.float32]

PCA_TOKENS = 1024
"""Largest number of tokens whose gates the principal components are computed from."""

SAMPLED_ROWS = 256
"""Queries whose entropy is computed, and rows of the token mixing whose rank is."""

CHUNK_WEIGHTS = 2**22
"""Weights of one kind that exist at a time, unless one row has more: 16 MB in float32."""

SAMPLED_CHANNELS = 4
"""Channels of each stream for whose convolution kernels the rank is computed."""


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
    components, explained = principal_components(halves[:, index].flatten(2).flatten(0, 1))
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
    """Effective ranks of a layer for one image, [2, H] for each stream and head.

    Attributes:
        attention: of A, exact, from its factors; at most 2D.
        rows: number R of the rows of the next two: all N, or evenly spaced ones, whose rank is at
            most R. Rows of T further apart than its kernel are orthogonal, so a sample overstates
            what T adds to the whole matrix.
        attention_rows: of these rows of A.
        mixing_rows: of these rows of A + T, the mean over evenly spaced channels of the stream;
            None if the layer reduces its keys, where T does not act on the same tokens as A.
    """

    attention: Array
    rows: int
    attention_rows: Array
    mixing_rows: Array | None


def effective_rank(singular_values: Tensor) -> Tensor:
    """Compute the effective rank of singular values [..., R] (Roy and Vetterli, EUSIPCO 2007).

    It is exp(entropy of the values divided by their sum).
    """
    return positive_sequence_entropy(singular_values).exp()


def effective_ranks(layer: LayerInputs, rows: int, channels: int) -> EffectiveRanks:
    """Compute the effective ranks of the matrix that mixes tokens, in float64 on the CPU.

    No [N, N] matrix is formed. For a value channel, (E14) without the gate is y = (A + T) v, with
    the weights A [N, N] of the channel's head and stream and the matrix T [N, N] of its convolution
    kernel. A has rank 2D at most, and T usually has full rank.

    Args:
        layer: with B = 1.
        rows: largest number of rows for A + T.
        channels: largest number of channels of a stream whose kernels are used.
    """
    factors = polarity_factors(layer.attention)
    streams, heads, tokens, _ = factors.queries.shape
    dim = layer.attention.q.shape[-1]
    index = sample_tokens(tokens, rows)
    offsets = sample_tokens(dim // 2, channels)
    weight = layer.mixing.weight[:, 0].cpu().double()
    has_mixing_matrix = layer.sr_ratio == 1

    attention = np.zeros((streams, heads), np.float32)
    attention_rows = np.zeros((streams, heads), np.float32)
    mixing_rows = np.zeros((streams, heads), np.float32)
    for stream in range(streams):
        for head in range(heads):
            queries = factors.queries[stream, head].cpu().double()
            keys = factors.keys[head].cpu().double()
            attention[stream, head] = effective_rank(singular_values(queries, keys))
            sampled = queries[index]
            gram = sampled @ (keys.mT @ keys) @ sampled.mT  # A A^T
            attention_rows[stream, head] = _rank_from_gram(gram)
            if has_mixing_matrix:
                channel = head * dim + stream * (dim // 2) + offsets
                kernels = weight[channel % len(weight)]
                convolution, read = convolution_rows(kernels, layer.grid, index)
                crossed = sampled @ (convolution @ keys[read]).mT  # A T^T
                squared = convolution @ convolution.mT  # T T^T
                gram = gram + crossed + crossed.mT + squared  # (A + T) (A + T)^T
                mixing_rows[stream, head] = _rank_from_gram(gram).mean()
    return EffectiveRanks(
        attention, len(index), attention_rows, mixing_rows if has_mixing_matrix else None
    )


def singular_values(queries: Tensor, keys: Tensor) -> Tensor:
    """Return the singular values [F] of Q K^T for Q [N, F] and K [M, F], from QR decompositions."""
    upper_q = torch.linalg.qr(queries, mode='r').R
    upper_k = torch.linalg.qr(keys, mode='r').R
    return torch.linalg.svdvals(upper_q @ upper_k.mT)


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


@dataclass(frozen=True, eq=False)
class LayerAnalysis:
    """What a linear attention layer does with one image.

    Attributes:
        name: of the layer.
        grid, key_grid: (h, w) of its queries and of its keys.
        sr_ratio: queries per key along each side.
        tokens: (row, column) of the chosen queries.
        maps: weights of the chosen queries over all keys, [P, H, h, w] of the key grid for each of
            `MAP_KINDS`.
        token_entropy: entropy of the same rows, [P, H] in nats for each of `WEIGHT_KINDS`.
        entropy: mean over evenly spaced queries, [H] in nats for each of `WEIGHT_KINDS`.
        rows: number of these queries.
        empty_rows: share of them to which 'relu' gives no key any weight; its entropy leaves them
            out.
        parameters: learned exponents and scales, [H, D], or temperatures, [H, 2D], by name.
        gate: statistics of the gate.
        rank: effective ranks of the token mixing.
    """

    name: str
    grid: Grid
    key_grid: Grid
    sr_ratio: int
    tokens: list[tuple[int, int]]
    maps: dict[str, Array]
    token_entropy: dict[str, Array]
    entropy: dict[str, Array]
    rows: int
    empty_rows: float
    parameters: dict[str, Array]
    gate: GateStatistics
    rank: EffectiveRanks

    @property
    def largest_entropy(self) -> float:
        """The entropy of equal weights for all keys, log M."""
        return math.log(math.prod(self.key_grid))

    def as_json(self) -> dict[str, Any]:
        """Return everything but maps and the gate's components; numbers per head are lists."""
        points = []
        for number, (row, column) in enumerate(self.tokens):
            entropy = {kind: x[number] for kind, x in self.token_entropy.items()}
            points.append({'row': row, 'column': column, 'entropy': _plain_dict(entropy)})
        gate = dict(vars(self.gate))
        del gate['components']
        rank = self.rank
        mixing_rows = None if rank.mixing_rows is None else _plain(rank.mixing_rows)
        return {
            'grid': list(self.grid),
            'key_grid': list(self.key_grid),
            'log_keys': self.largest_entropy,
            'points': points,
            'entropy': {
                'queries': self.rows,
                'relu_empty': self.empty_rows,
                **_plain_dict(self.entropy),
            },
            'parameters': _plain_dict(self.parameters),
            'gate': _plain_dict(gate),
            'effective_rank': {
                'attention': _plain(rank.attention),
                'sampled_rows': rank.rows,
                'sampled_channels': SAMPLED_CHANNELS,
                'attention_rows': _plain(rank.attention_rows),
                'mixing_rows': mixing_rows,
            },
        }


def analyze_layer(layer: LayerInputs, tokens: Sequence[tuple[int, int]]) -> LayerAnalysis:
    """Compute everything of one layer.

    Args:
        layer: its inputs, from `observe`.
        tokens: (row, column) of the queries whose weights over all keys are returned.
    """
    inputs = layer.attention
    columns = layer.grid[1]
    chosen = torch.tensor([row * columns + column for row, column in tokens], dtype=torch.long)
    sampled = sample_tokens(inputs.q.shape[1], SAMPLED_ROWS)

    token_entropy = {}
    entropy = {}
    empty_rows = 0.0
    for kind, entropies in row_entropies(inputs, torch.cat([chosen, sampled])).items():
        of_chosen, of_sampled = entropies.float().split([len(chosen), len(sampled)], dim=1)
        token_entropy[kind] = of_chosen.T.numpy()
        entropy[kind] = of_sampled.nanmean(dim=1).numpy()
        if kind == 'relu':
            empty_rows = of_sampled.isnan().double().mean().item()

    parameters = {}
    for name, parameter in inputs.feature_map.parameters().items():
        if parameter is not None:
            parameters[name] = parameter.float().cpu().numpy()
    return LayerAnalysis(
        name=layer.name,
        grid=layer.grid,
        key_grid=layer.key_grid,
        sr_ratio=layer.sr_ratio,
        tokens=list(tokens),
        maps=_maps(inputs, chosen, layer.key_grid),
        token_entropy=token_entropy,
        entropy=entropy,
        rows=len(sampled),
        empty_rows=empty_rows,
        parameters=parameters,
        gate=gate_statistics(layer.mixing.gate, heads=inputs.q.shape[2]),
        rank=effective_ranks(layer, SAMPLED_ROWS, SAMPLED_CHANNELS),
    )


def _maps(inputs: AttentionInputs, index: Tensor, key_grid: Grid) -> dict[str, Array]:
    """Return the weights of queries `index` [P] as maps [P, H, h, w], for each of `MAP_KINDS`."""
    rows = attention_rows(inputs, MAP_KINDS)(index.to(inputs.q.device))  # [H, P, M]
    maps = {}
    for kind, weights in rows.items():
        maps[kind] = weights.transpose(0, 1).unflatten(-1, key_grid).float().cpu().numpy()
    return maps


def _plain_dict(arrays: dict[str, Array]) -> dict[str, Any]:
    return {name: _plain(array) for name, array in arrays.items()}


def _plain(x: Any) -> Any:
    """Return an array as nested lists of numbers with five significant digits.

    NaN, which JSON lacks, becomes None.
    """
    if np.ndim(x) > 0:
        return [_plain(row) for row in x]
    return None if np.isnan(x) else float(f'{x:.5g}')
