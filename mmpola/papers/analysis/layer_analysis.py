"""The result of `analyze_layer`: weights, entropies, gates and ranks of one layer and image."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from mmpola.layers import Grid
from mmpola.papers.analysis.attention_weights import MAP_KINDS, attention_rows, sample_tokens
from mmpola.papers.analysis.capture import LayerInputs
from mmpola.papers.analysis.statistics import (
    Array,
    EffectiveRanks,
    GateStatistics,
    effective_ranks,
    gate_statistics,
    row_entropies,
)

SAMPLED_ROWS = 256
"""Queries whose entropy is computed, and rows of the token mixing whose rank is."""

SAMPLED_CHANNELS = 4
"""Channels of each stream for whose convolution kernels the rank is computed."""


@dataclass(frozen=True, eq=False)
class LayerAnalysis:
    """Weights, entropies, gates and ranks of one linear attention layer for one image.

    Attributes:
        name: of the layer.
        grid, key_grid: (h, w) of its queries and of its keys.
        tokens: (row, column) of the chosen queries.
        maps: of the chosen queries, from `query_maps`.
        token_entropy: entropy of the same rows, [P, H] in nats for each of `WEIGHT_KINDS`.
        entropy: mean over evenly spaced queries, [H] in nats for each of `WEIGHT_KINDS`; 'relu'
            leaves out queries that give no key any weight.
        rows: number of these queries.
        parameters: learned exponents and scales, [H, D], or temperatures, [H, 2D], by name.
        gate: statistics of the gate.
        rank: effective ranks of the token mixing.
    """

    name: str
    grid: Grid
    key_grid: Grid
    tokens: list[tuple[int, int]]
    maps: dict[str, Array]
    token_entropy: dict[str, Array]
    entropy: dict[str, Array]
    rows: int
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
        mixing = None if rank.mixing is None else _plain(rank.mixing)
        return {
            'grid': list(self.grid),
            'key_grid': list(self.key_grid),
            'log_keys': self.largest_entropy,
            'points': points,
            'entropy': {'queries': self.rows, **_plain_dict(self.entropy)},
            'parameters': _plain_dict(self.parameters),
            'gate': _plain_dict(gate),
            'effective_rank': {
                'sampled_rows': rank.rows,
                'sampled_channels': SAMPLED_CHANNELS,
                **_plain_dict(rank.attention),
                'mixing': mixing,
            },
        }


def analyze_layer(layer: LayerInputs, tokens: Sequence[tuple[int, int]]) -> LayerAnalysis:
    """Compute everything of one layer.

    Args:
        layer: its inputs, from `observe`.
        tokens: (row, column) of the queries whose weights over all keys are returned.
    """
    inputs = layer.attention
    chosen = _indices(layer, tokens)
    sampled = sample_tokens(inputs.q.shape[1], SAMPLED_ROWS)

    token_entropy = {}
    entropy = {}
    for kind, entropies in row_entropies(inputs, torch.cat([chosen, sampled])).items():
        of_chosen, of_sampled = entropies.float().split([len(chosen), len(sampled)], dim=1)
        token_entropy[kind] = of_chosen.T.numpy()
        entropy[kind] = of_sampled.nanmean(dim=1).numpy()

    parameters = {}
    for name, parameter in inputs.feature_map.parameters().items():
        if parameter is not None:
            parameters[name] = parameter.float().cpu().numpy()
    return LayerAnalysis(
        name=layer.name,
        grid=layer.grid,
        key_grid=layer.key_grid,
        tokens=list(tokens),
        maps=query_maps(layer, tokens),
        token_entropy=token_entropy,
        entropy=entropy,
        rows=len(sampled),
        parameters=parameters,
        gate=gate_statistics(layer.mixing.gate, heads=inputs.q.shape[2]),
        rank=effective_ranks(layer, SAMPLED_ROWS, SAMPLED_CHANNELS),
    )


def query_maps(layer: LayerInputs, tokens: Sequence[tuple[int, int]]) -> dict[str, Array]:
    """Return the weights of some queries over all keys, as maps.

    Args:
        layer: its inputs, from `observe`.
        tokens: (row, column) of the P queries.

    Returns:
        [P, H, h, w] of the layer's key grid, for each of `MAP_KINDS`.
    """
    inputs = layer.attention
    index = _indices(layer, tokens).to(inputs.q.device)
    rows = attention_rows(inputs, MAP_KINDS)(index)  # [H, P, M]
    maps = {}
    for kind, weights in rows.items():
        maps[kind] = weights.transpose(0, 1).unflatten(-1, layer.key_grid).float().cpu().numpy()
    return maps


def _indices(layer: LayerInputs, tokens: Sequence[tuple[int, int]]) -> torch.Tensor:
    """Return the indices of tokens (row, column) in a layer's sequence."""
    columns = layer.grid[1]
    return torch.tensor([row * columns + column for row, column in tokens], dtype=torch.long)


def _plain_dict(arrays: dict[str, Array]) -> dict[str, Any]:
    return {name: _plain(array) for name, array in arrays.items()}


def _plain(x: Any) -> Any:
    """Return an array as nested lists of numbers with five significant digits.

    NaN, which JSON lacks, becomes None.
    """
    if np.ndim(x) > 0:
        return [_plain(row) for row in x]
    if np.isnan(x):
        return None
    return float(f'{x:.5g}')
