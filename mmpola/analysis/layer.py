"""Everything that is computed of one layer for one image, as plain arrays, and as JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from mmpola.analysis.capture import LayerInputs
from mmpola.analysis.entropy import row_entropies
from mmpola.analysis.gates import GateStatistics, gate_statistics
from mmpola.analysis.rank import EffectiveRanks, effective_ranks
from mmpola.analysis.weights import attention_rows, row_chunks, sample_tokens
from mmpola.layers import Grid
from mmpola.ops.inputs import AttentionInputs

Array = NDArray[np.float32]

MAPS = ('same', 'opposite', 'both', 'softmax')
"""Kinds of weights that are drawn over the image."""

ROWS = 256
"""Queries whose entropy is computed, and rows of the token mixing whose rank is."""

CHANNELS = 4
"""Channels of each stream for whose convolution kernels the rank is computed."""


@dataclass(frozen=True, eq=False)
class LayerAnalysis:
    """What a linear attention layer does with one image.

    Attributes:
        name: of the layer.
        grid, key_grid: (h, w) of its queries and of its keys.
        sr_ratio: queries per key along each side.
        tokens: (row, column) of the chosen queries.
        maps: weights of the chosen queries over all keys, [P, H, h, w] of the key grid for each of `MAPS`.
        token_entropy: entropy of the same rows, [P, H] in nats for each of `KINDS`.
        entropy: mean over evenly spaced queries, [H] in nats for each of `KINDS`.
        rows: number of these queries.
        empty_rows: share of them to which 'relu' gives no key any weight; its entropy leaves them out.
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
                {'row': row, 'column': column, 'entropy': _lists({k: x[i] for k, x in self.token_entropy.items()})}
                for i, (row, column) in enumerate(self.tokens)
            ],
            'entropy': {'queries': self.rows, 'relu_empty': self.empty_rows, **_lists(self.entropy)},
            'parameters': _lists(self.parameters),
            'gate': _lists(
                {
                    'mean': gate.mean,
                    'std': gate.std,
                    'correlation': gate.correlation,
                    'token_correlation': gate.token_correlation,
                    'explained': gate.explained,
                }
            ),
            'effective_rank': {
                'attention': _rounded(rank.attention),
                'sampled_rows': rank.rows,
                'sampled_channels': CHANNELS,
                'attention_rows': _rounded(rank.attention_rows),
                'mixing_rows': None if rank.mixing_rows is None else _rounded(rank.mixing_rows),
            },
        }


def analyse_layer(layer: LayerInputs, tokens: Sequence[tuple[int, int]]) -> LayerAnalysis:
    """Compute everything of one layer.

    Args:
        layer: its inputs, from `observe`.
        tokens: (row, column) of the queries whose weights over all keys are returned.
    """
    inputs, heads = layer.attention, layer.attention.q.shape[2]
    chosen = torch.tensor([row * layer.grid[1] + column for row, column in tokens], dtype=torch.long)
    sampled = sample_tokens(inputs.q.shape[1], ROWS)
    entropies = {kind: x.float().numpy() for kind, x in row_entropies(inputs, torch.cat([chosen, sampled])).items()}
    means = {kind: x[:, len(chosen) :] for kind, x in entropies.items()}
    empty = np.isnan(means['relu'])
    parameters = {name: x for name, x in inputs.feature_map.parameters().items() if x is not None}
    return LayerAnalysis(
        name=layer.name,
        grid=layer.grid,
        key_grid=layer.key_grid,
        sr_ratio=layer.sr_ratio,
        tokens=list(tokens),
        maps=_maps(inputs, chosen, layer.key_grid),
        token_entropy={kind: x[:, : len(chosen)].T for kind, x in entropies.items()},
        entropy={kind: _mean_of_numbers(x) for kind, x in means.items()},
        rows=len(sampled),
        empty_rows=float(empty.mean()),
        parameters={name: x.float().cpu().numpy() for name, x in parameters.items()},
        gate=gate_statistics(layer.mixing.gate, heads),
        rank=effective_ranks(layer, ROWS, CHANNELS),
    )


def _maps(inputs: AttentionInputs, index: torch.Tensor, key_grid: Grid) -> dict[str, Array]:
    """Return the weights of the queries `index` [P] as maps [P, H, h, w] for each of `MAPS`."""
    weights_of = attention_rows(inputs, MAPS)
    parts = [weights_of(part) for part in row_chunks(index.to(inputs.q.device), inputs)]
    rows = {kind: torch.cat([part[kind] for part in parts], dim=1).float().cpu() for kind in MAPS}  # [H, P, M]
    return {kind: x.transpose(0, 1).unflatten(-1, key_grid).numpy() for kind, x in rows.items()}


def _mean_of_numbers(x: Array) -> Array:
    """Return the mean of [H, R] over the rows that are not NaN; NaN for a head without any."""
    numbers = ~np.isnan(x)
    total = np.where(numbers, x, 0).sum(axis=1)
    return np.divide(total, numbers.sum(axis=1), out=np.full(len(x), np.nan, x.dtype), where=numbers.any(axis=1))


def _lists(arrays: dict[str, Array]) -> dict[str, Any]:
    return {name: _rounded(x) for name, x in arrays.items()}


def _rounded(x: Array) -> Any:
    """Return an array as nested lists of numbers with five significant digits; NaN, which JSON lacks, becomes None."""
    if x.ndim:
        return [_rounded(row) for row in x]
    return None if np.isnan(x) else float(f'{x:.5g}')
