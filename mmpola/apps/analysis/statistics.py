"""Statistics of a linear attention layer for one image: entropy of its weights, its gate, rank of its token mixing."""

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
    KINDS,
    MAPS,
    attention_rows,
    polarity_factors,
    sample_tokens,
)
from mmpola.layers import Grid
from mmpola.ops.inputs import AttentionInputs

Array = NDArray[np.float32]

PCA_TOKENS = 1024
"""Largest number of tokens whose gates the principal components are computed from."""

ROWS = 256
"""Queries whose entropy is computed, and rows of the token mixing whose rank is."""

CHUNK_ELEMENTS = 2**22
"""Weights of one kind that exist at a time, for all heads together, unless one row has more: 16 MB in float32."""

CHANNELS = 4
"""Channels of each stream for whose convolution kernels the rank is computed."""


def positive_sequence_entropy(x: Tensor) -> Tensor:
    """Compute the entropy, in nats, of non-negative sequences [..., N] divided by their sum (PolaFormer, eq. 7).

    It is 0 if one element is all, and log N if all are equal; NaN for a sequence of zeros.
    """
    return torch.special.entr(x / x.sum(dim=-1, keepdim=True)).sum(dim=-1)


def row_entropies(inputs: AttentionInputs, index: Tensor) -> dict[str, Tensor]:
    """Compute the entropy of the rows of all `KINDS` of weights, for queries with indices [R].

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
    parts = [
        {
            kind: positive_sequence_entropy(weights).cpu()
            for kind, weights in weights_of(part).items()
        }
        for part in index.to(inputs.q.device).split(max(1, CHUNK_ELEMENTS // (keys * heads)))
    ]
    return {kind: torch.cat([part[kind] for part in parts], dim=-1) for kind in KINDS}


@dataclass(frozen=True, eq=False)
class GateStatistics:
    """Statistics of the gate's halves G_same and G_opposite, [N, D/2] per head, over the tokens of one image.

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
    return GateStatistics(
        mean=per_head.mean(-1).cpu().numpy(),
        std=per_head.std(-1, correction=0).cpu().numpy(),
        correlation=correlation(*per_head).cpu().numpy(),
        token_correlation=correlation(*halves.mean(-1).mT).cpu().numpy(),
        components=components.unflatten(0, (2, -1)).cpu().numpy(),
        explained=explained.cpu().numpy(),
    )


def correlation(x: Tensor, y: Tensor) -> Tensor:
    """Compute Pearson's correlation of x and y over the last dimension; NaN if one of them is constant."""
    x, y = (t - t.mean(dim=-1, keepdim=True) for t in (x, y))
    return (x * y).sum(-1) / (x.square().sum(-1) * y.square().sum(-1)).sqrt()


def principal_components(x: Tensor) -> tuple[Tensor, Tensor]:
    """Project points [P, C] on their first two principal components: [P, 2] and their shares of the variance [2]."""
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
    """Compute exp(entropy of the singular values [..., R] divided by their sum) (Roy and Vetterli, EUSIPCO 2007)."""
    return positive_sequence_entropy(singular_values).exp()


def effective_ranks(layer: LayerInputs, rows: int, channels: int) -> EffectiveRanks:
    """Compute the effective ranks of the matrix that mixes tokens, in float64 on the CPU, without an [N, N] matrix.

    For a value channel, (E14) without the gate is y = (A + T) v, with the weights A [N, N] of the
    channel's head and stream and the matrix T [N, N] of its convolution kernel. A has rank 2D at
    most, and T usually has full rank.

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
            queries, keys = (
                factors.queries[stream, head].cpu().double(),
                factors.keys[head].cpu().double(),
            )
            attention[stream, head] = effective_rank(singular_values(queries, keys))
            gram = queries[index] @ (keys.mT @ keys) @ queries[index].mT  # A A^T
            attention_rows[stream, head] = _rank_from_gram(gram)
            if layer.sr_ratio == 1:
                kernels = weight[(head * dim + stream * (dim // 2) + offsets) % len(weight)]
                convolution, read = convolution_rows(kernels, layer.grid, index)
                crossed = queries[index] @ (convolution @ keys[read]).mT  # A T^T
                gram = (
                    gram + crossed + crossed.mT + convolution @ convolution.mT
                )  # (A + T) (A + T)^T
                mixing_rows[stream, head] = _rank_from_gram(gram).mean()
    return EffectiveRanks(
        attention, len(index), attention_rows, mixing_rows if layer.sr_ratio == 1 else None
    )


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
    numbers = torch.arange(1, grid[0] * grid[1] + 1, dtype=torch.float64).view(
        1, 1, *grid
    )  # 0 is the padding
    side = kernels.shape[-1]
    read = (
        F.unfold(numbers, side, padding=side // 2)[0][:, index].long().mT - 1
    )  # [R, k * k] tokens
    tokens, columns = read.unique(return_inverse=True)
    shape = (len(kernels), len(index), -1)
    rows = kernels.new_zeros(len(kernels), len(index), len(tokens))
    rows.scatter_(2, columns.expand(shape), kernels.flatten(1).unsqueeze(1).expand(shape))
    return rows[..., tokens >= 0], tokens[tokens >= 0]


def _rank_from_gram(gram: Tensor) -> Tensor:
    """Return the effective rank of rows [..., R, N] from their products with each other [..., R, R]."""
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
            `MAPS`.
        token_entropy: entropy of the same rows, [P, H] in nats for each of `KINDS`.
        entropy: mean over evenly spaced queries, [H] in nats for each of `KINDS`.
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
        """Return everything but the maps and the gate's components; numbers per head are lists."""
        gate, rank = self.gate, self.rank
        return {
            'grid': list(self.grid),
            'key_grid': list(self.key_grid),
            'log_keys': self.largest_entropy,
            'points': [
                {
                    'row': row,
                    'column': column,
                    'entropy': _plain({k: x[i] for k, x in self.token_entropy.items()}),
                }
                for i, (row, column) in enumerate(self.tokens)
            ],
            'entropy': {
                'queries': self.rows,
                'relu_empty': self.empty_rows,
                **_plain(self.entropy),
            },
            'parameters': _plain(self.parameters),
            'gate': _plain({name: x for name, x in vars(gate).items() if name != 'components'}),
            'effective_rank': {
                'attention': _plain(rank.attention),
                'sampled_rows': rank.rows,
                'sampled_channels': CHANNELS,
                'attention_rows': _plain(rank.attention_rows),
                'mixing_rows': _plain(rank.mixing_rows),
            },
        }


def analyze_layer(layer: LayerInputs, tokens: Sequence[tuple[int, int]]) -> LayerAnalysis:
    """Compute everything of one layer.

    Args:
        layer: its inputs, from `observe`.
        tokens: (row, column) of the queries whose weights over all keys are returned.
    """
    inputs, heads = layer.attention, layer.attention.q.shape[2]
    chosen = torch.tensor(
        [row * layer.grid[1] + column for row, column in tokens], dtype=torch.long
    )
    sampled = sample_tokens(inputs.q.shape[1], ROWS)
    entropies = {
        kind: x.float() for kind, x in row_entropies(inputs, torch.cat([chosen, sampled])).items()
    }
    parameters = {name: x for name, x in inputs.feature_map.parameters().items() if x is not None}
    return LayerAnalysis(
        name=layer.name,
        grid=layer.grid,
        key_grid=layer.key_grid,
        sr_ratio=layer.sr_ratio,
        tokens=list(tokens),
        maps=_maps(inputs, chosen, layer.key_grid),
        token_entropy={kind: x[:, : len(chosen)].T.numpy() for kind, x in entropies.items()},
        entropy={kind: x[:, len(chosen) :].nanmean(dim=1).numpy() for kind, x in entropies.items()},
        rows=len(sampled),
        empty_rows=entropies['relu'][:, len(chosen) :].isnan().double().mean().item(),
        parameters={name: x.float().cpu().numpy() for name, x in parameters.items()},
        gate=gate_statistics(layer.mixing.gate, heads),
        rank=effective_ranks(layer, ROWS, CHANNELS),
    )


def _maps(inputs: AttentionInputs, index: Tensor, key_grid: Grid) -> dict[str, Array]:
    """Return the weights of the queries `index` [P] as maps [P, H, h, w] for each of `MAPS`."""
    rows = attention_rows(inputs, MAPS)(index.to(inputs.q.device))  # [H, P, M]
    return {
        kind: x.transpose(0, 1).unflatten(-1, key_grid).float().cpu().numpy()
        for kind, x in rows.items()
    }


def _plain(x: Any) -> Any:
    """Return arrays in a dict or alone as nested lists of numbers with five significant digits.

    NaN, which JSON lacks, becomes None.
    """
    if isinstance(x, dict):
        return {name: _plain(value) for name, value in x.items()}
    if np.ndim(x):
        return [_plain(row) for row in x]
    return None if x is None or np.isnan(x) else float(f'{x:.5g}')
