"""The weights of queries over keys, a few rows at a time: memory O(rows x N), never N^2.

The weights of linear attention are the product of two thin factors: the features of the queries,
divided by the normaliser, and the features of the keys.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from mmpola.ops.inputs import AttentionInputs
from mmpola.ops.numerics import accumulation_dtype
from mmpola.ops.reference import add_key_position, normaliser, rotate

MAP_KINDS = ('same', 'opposite', 'both', 'softmax')
"""Kinds of weights that are drawn over the image; 'both' is the mean of the two streams."""

WEIGHT_KINDS = (*MAP_KINDS, 'linear', 'relu')
"""All kinds: the layer's own weights, and those of other attention for the same q and k.

The others are softmax(q k / sqrt D), and linear attention with the features elu(x) + 1 and with
max(x, 0).
"""

FEATURES: dict[str, Callable[[Tensor], Tensor]] = {'linear': lambda x: F.elu(x) + 1, 'relu': F.relu}
"""The features of queries and keys of other linear attention."""


@dataclass(frozen=True, eq=False)
class Factors:
    """Two factors of attention weights, queries[s, h] @ keys[h].T for stream s and head h.

    Attributes:
        queries: [S, H, N, F], divided by the normaliser.
        keys: [H, M, F], divided by M.
    """

    queries: Tensor
    keys: Tensor

    def rows(self, index: Tensor) -> Tensor:
        """Return the weights of some queries over all keys, [S, H, R, M], for their indices [R]."""
        return self.queries[:, :, index] @ self.keys.mT


def polarity_factors(inputs: AttentionInputs) -> Factors:
    """Compute the factors of both streams (E1-E13), F = 2D.

    The lines are those of `polarity_attention_reference`. With rotary tables both factors are
    rotated, as in the operator's numerator (E10): weights may then be negative.
    """
    rotary = inputs.rotary
    q, k = _queries_and_keys(inputs)
    psi, same, opposite = inputs.feature_map.features(q, k, inputs.eps, paired=rotary is not None)
    phi_same, eps_same = same
    phi_opposite, eps_opposite = opposite
    key_mean = psi.mean(dim=-2).unsqueeze(-1)
    queries_same = rotate(phi_same, rotary) / normaliser(phi_same, key_mean, eps_same)
    queries_opposite = rotate(phi_opposite, rotary)
    queries_opposite = queries_opposite / normaliser(phi_opposite, key_mean, eps_opposite)
    queries = torch.stack([queries_same[0], queries_opposite[0]])
    return Factors(queries, rotate(psi, rotary)[0] / psi.shape[-2])


def attention_rows(
    inputs: AttentionInputs, kinds: tuple[str, ...] = WEIGHT_KINDS
) -> Callable[[Tensor], dict[str, Tensor]]:
    """Return a function that computes the weights of some queries [R] over all keys.

    Args:
        inputs: of a layer, B = 1. All kinds read the same q, and k with its positions; only the two
            streams are rotated, because rotary tables are made for their features.
        kinds: of weights, from `WEIGHT_KINDS`.

    Returns:
        A function from the indices of queries [R] to [H, R, M] for each kind.
    """
    q, k = _queries_and_keys(inputs)
    q = q[0]
    k = k[0]
    factors = polarity_factors(inputs)
    key_features = {}
    for kind, feature in FEATURES.items():
        if kind in kinds:
            key_features[kind] = feature(k)

    def rows(index: Tensor) -> dict[str, Tensor]:
        same, opposite = factors.rows(index)
        weights = {'same': same, 'opposite': opposite, 'both': (same + opposite) / 2}
        if 'softmax' in kinds:
            logits = q[:, index] @ k.mT / q.shape[-1] ** 0.5
            weights['softmax'] = logits.softmax(dim=-1)
        for kind, psi in key_features.items():
            phi = FEATURES[kind](q[:, index])
            key_mean = psi.mean(dim=-2).unsqueeze(-1)
            keys = psi.shape[-2]
            weights[kind] = (phi / normaliser(phi, key_mean, inputs.eps)) @ (psi / keys).mT
        return {kind: weights[kind] for kind in kinds}

    return rows


def sample_tokens(tokens: int, number: int) -> Tensor:
    """Return the indices of up to `number` tokens, evenly spaced from the first to the last."""
    return torch.linspace(0, tokens - 1, min(tokens, number), dtype=torch.float64).round().long()


def _queries_and_keys(inputs: AttentionInputs) -> tuple[Tensor, Tensor]:
    """Return q and k' = k + P (E4) as [B, H, N, D] in the accumulation dtype."""
    dtype = accumulation_dtype(inputs.q.dtype)
    q = inputs.q.to(dtype).transpose(1, 2)
    k = add_key_position(inputs).to(dtype).transpose(1, 2)
    return q, k
