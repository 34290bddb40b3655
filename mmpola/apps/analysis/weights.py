"""The weights with which queries attend to keys, a few rows at a time: memory O(rows x N), never N^2.

The weights of linear attention are the operator's output for values that are the identity. With the
2D features in the place of the N keys, the lines of the reference give two thin factors of which
every row of the weights is a product.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from mmpola.ops.features import PowerMap, swap_halves
from mmpola.ops.inputs import AttentionInputs
from mmpola.ops.numerics import accumulation_dtype
from mmpola.ops.reference import add_key_position, normaliser, rotate

STREAMS = ('same', 'opposite')
"""The streams of linear attention, in the order of the operator's value channels."""

KINDS = (*STREAMS, 'both', 'softmax', 'linear', 'relu')
"""The layer's own weights, 'both' being the mean of the two streams, and other attention's for the same q and k.

The others are softmax(q k / sqrt D), and linear attention with the features elu(x) + 1 and with
max(x, 0).
"""

MAPS = ('same', 'opposite', 'both', 'softmax')
"""Kinds of weights that are drawn over the image."""

FEATURES: dict[str, Callable[[Tensor], Tensor]] = {'linear': lambda x: F.elu(x) + 1, 'relu': F.relu}
"""The features of queries and keys in the kinds of linear attention other than the layer's own."""


@dataclass(frozen=True, eq=False)
class Factors:
    """Attention weights as products: those of stream s and head h are queries[s, h] @ keys[h].T.

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
    """Compute the factors of both streams (E1-E13), F = 2D, by the lines of `polarity_attention_reference`.

    With rotary tables both factors are rotated, as in the operator's numerator (E10): weights may
    then be negative.
    """
    feature_map = inputs.feature_map
    rotary = inputs.rotary
    q, k = _queries_and_keys(inputs)
    if isinstance(feature_map, PowerMap):
        psi = feature_map.key_features(k)
        phi_same, eps = feature_map.query_features(q, inputs.eps)
        phi_opposite = swap_halves(phi_same, -1)  # (E8)
        eps_same: Tensor | float = eps
        eps_opposite: Tensor | float = eps
    else:
        shift = feature_map.key_shift(q, k, paired=rotary is not None)
        psi = feature_map.key_features(k, shift)
        same, opposite = feature_map.query_features(q, shift, inputs.eps)
        phi_same, eps_same = same
        phi_opposite, eps_opposite = opposite
    key_mean = psi.mean(dim=-2).unsqueeze(-1)
    queries_same = rotate(phi_same, rotary) / normaliser(phi_same, key_mean, eps_same)
    queries_opposite = rotate(phi_opposite, rotary)
    queries_opposite = queries_opposite / normaliser(phi_opposite, key_mean, eps_opposite)
    queries = torch.stack([queries_same[0], queries_opposite[0]])
    return Factors(queries, rotate(psi, rotary)[0] / psi.shape[-2])


def attention_rows(
    inputs: AttentionInputs, kinds: tuple[str, ...] = KINDS
) -> Callable[[Tensor], dict[str, Tensor]]:
    """Return a function that computes the weights of some queries over all keys, for their indices [R].

    Args:
        inputs: of a layer, B = 1. All kinds read the same q, and k with its positions; only the two
            streams are rotated, because rotary tables are made for their features.
        kinds: of weights, from `KINDS`.

    Returns:
        A function that returns [H, R, M] for each kind.
    """
    q, k = (x[0] for x in _queries_and_keys(inputs))
    factors = polarity_factors(inputs)
    keys = {
        kind: (psi / psi.shape[-2], psi.mean(dim=-2).unsqueeze(-1))
        for kind, psi in _features(k, kinds).items()
    }

    def rows(index: Tensor) -> dict[str, Tensor]:
        same, opposite = factors.rows(index)
        found = {'same': same, 'opposite': opposite, 'both': (same + opposite) / 2}
        if 'softmax' in kinds:
            found['softmax'] = (q[:, index] @ k.mT / q.shape[-1] ** 0.5).softmax(dim=-1)
        for kind, phi in _features(q[:, index], kinds).items():
            psi, key_mean = keys[kind]
            found[kind] = (phi / normaliser(phi, key_mean, inputs.eps)) @ psi.mT
        return {kind: found[kind] for kind in kinds}

    return rows


def sample_tokens(tokens: int, number: int) -> Tensor:
    """Return the indices of up to `number` tokens, evenly spaced from the first to the last."""
    return torch.linspace(0, tokens - 1, min(tokens, number), dtype=torch.float64).round().long()


def _features(x: Tensor, kinds: tuple[str, ...]) -> dict[str, Tensor]:
    return {kind: feature(x) for kind, feature in FEATURES.items() if kind in kinds}


def _queries_and_keys(inputs: AttentionInputs) -> tuple[Tensor, Tensor]:
    """Return q and k' = k + P (E4) as [B, H, N, D] in the accumulation dtype."""
    dtype = accumulation_dtype(inputs.q.dtype)
    q, k = inputs.q.to(dtype), add_key_position(inputs).to(dtype)
    return q.transpose(1, 2), k.transpose(1, 2)
