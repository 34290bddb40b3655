"""The entropy of attention weights: how many keys a query spreads over (PolaFormer, eq. 7)."""

from __future__ import annotations

import torch
from torch import Tensor

from mmpola.analysis.weights import KINDS, attention_rows, row_chunks, without_rotary
from mmpola.ops.inputs import AttentionInputs


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
        [H, R] in nats for each kind, on the CPU; NaN for the queries to which 'relu' gives no key any weight.
    """
    inputs = without_rotary(inputs)
    weights_of = attention_rows(inputs)
    found: dict[str, list[Tensor]] = {kind: [] for kind in KINDS}
    for part in row_chunks(index.to(inputs.q.device), inputs):
        for kind, weights in weights_of(part).items():
            found[kind].append(positive_sequence_entropy(weights).cpu())
    return {kind: torch.cat(parts, dim=-1) for kind, parts in found.items()}
