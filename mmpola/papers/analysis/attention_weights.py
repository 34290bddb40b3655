"""The weights of queries over keys, a few rows at a time: memory O(rows x N), never N^2.

The weights of linear attention are the product of two thin factors: the features of the queries,
divided by the normaliser, and the features of the keys.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mmpola.ops.inputs import AttentionInputs
from mmpola.ops.numerics import accumulation_dtype
from mmpola.ops.reference import add_key_position, normaliser, rotate

MAP_KINDS = ('same', 'opposite', 'both', 'linear', 'focused', 'softmax')
"""Kinds of weights that are drawn over the image; 'both' is the mean of the two streams."""

WEIGHT_KINDS = (*MAP_KINDS, 'relu')
"""All kinds: the layer's own weights, and other attention's weights for the same q and k.

The others are softmax(q k / sqrt D), and linear attention with the features elu(x) + 1
('linear'), max(x, 0) ('relu') and `focused_features` ('focused').
"""


def focused_features(x: Tensor) -> Tensor:
    """Compute the features of FLatten's focused linear attention of queries or keys [B, H, N, D].

    The positive parts are cubed, and each token, of all heads together, keeps its length. The scale
    of a new FLatten layer divides all channels alike, which the normaliser cancels.

    Source: FLatten Transformer (ICCV 2023), `FocusedLinearAttention` of the authors' code.
    """
    positive = F.relu(x) + 1e-6
    cubes = positive**3
    length = torch.linalg.vector_norm(positive, dim=(1, 3), keepdim=True)
    length_of_cubes = torch.linalg.vector_norm(cubes, dim=(1, 3), keepdim=True)
    return cubes * (length / length_of_cubes)


FEATURES: dict[str, Callable[[Tensor], Tensor]] = {
    'linear': lambda x: F.elu(x) + 1,
    'relu': F.relu,
    'focused': focused_features,
}
"""The features of queries and keys [B, H, N, D] of other linear attention."""


def weight_factors(inputs: AttentionInputs) -> dict[str, tuple[Tensor, Tensor]]:
    """Compute two factors of the weights, queries @ keys^T, of every kind of linear attention.

    Both streams are computed as in `polarity_attention_reference`. With rotary tables their
    factors are rotated, as in the operator's numerator (E10): weights may then be negative.

    Returns:
        For 'same', 'opposite' and `FEATURES`: features of the queries [H, N, F], divided by the
        normaliser, and of the keys [H, M, F], divided by M. F is 2D in the streams, D elsewhere.
    """
    rotary = inputs.rotary
    q, k = queries_and_keys(inputs)
    psi, same, opposite = inputs.feature_map.features(q, k, inputs.eps, paired=rotary is not None)
    features: dict[str, tuple[Tensor, Any, Tensor, Any]] = {
        'same': (*same, psi, rotary),
        'opposite': (*opposite, psi, rotary),
    }
    for kind, feature in FEATURES.items():
        features[kind] = (feature(q), inputs.eps, feature(k), None)
    factors = {}
    for kind, (of_queries, eps, of_keys, tables) in features.items():
        key_mean = of_keys.mean(dim=-2).unsqueeze(-1)
        queries = rotate(of_queries, tables) / normaliser(of_queries, key_mean, eps)
        keys = rotate(of_keys, tables) / of_keys.shape[-2]
        factors[kind] = (queries[0], keys[0])
    return factors


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
    q, k = queries_and_keys(inputs)
    factors = weight_factors(inputs)

    def weights_of(kind: str, index: Tensor) -> Tensor:
        if kind == 'both':
            return (weights_of('same', index) + weights_of('opposite', index)) / 2
        if kind == 'softmax':
            return softmax_weights(q[0, :, index], k[0])
        queries, keys = factors[kind]
        return queries[:, index] @ keys.mT

    return lambda index: {kind: weights_of(kind, index) for kind in kinds}


def softmax_weights(q: Tensor, k: Tensor) -> Tensor:
    """Return softmax(q k^T / sqrt D) of q [..., R, D] and k [..., M, D]."""
    return (q @ k.mT / q.shape[-1] ** 0.5).softmax(dim=-1)


def sample_tokens(tokens: int, number: int) -> Tensor:
    """Return the indices of up to `number` tokens, evenly spaced from the first to the last."""
    return torch.linspace(0, tokens - 1, min(tokens, number), dtype=torch.float64).round().long()


def queries_and_keys(inputs: AttentionInputs) -> tuple[Tensor, Tensor]:
    """Return q and k' = k + P (E4) as [B, H, N, D] in the accumulation dtype."""
    dtype = accumulation_dtype(inputs.q.dtype)
    q = inputs.q.to(dtype).transpose(1, 2)
    k = add_key_position(inputs).to(dtype).transpose(1, 2)
    return q, k
