"""Statistics of the gate: its two halves, which multiply the same-signed and the opposite-signed stream."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmpola.analysis.weights import sample_tokens

PCA_TOKENS = 1024
"""Largest number of tokens whose gates the principal components are computed from."""


@dataclass(frozen=True, eq=False)
class GateStatistics:
    """Statistics of the gate's halves G_same and G_opposite, [N, D/2] per head, over the tokens of one image.

    Attributes:
        mean, std: of each stream and head, [2, H].
        correlation: of the entries of the two halves, paired by their channel's position in its half, per head [H].
        token_correlation: of the two halves' means over channels, which says whether tokens that open one stream close
            the other, per head [H].
        components: the halves of evenly spaced tokens, of all heads together, on the first two principal components of
            both halves: [2, tokens, 2].
        explained: shares of the variance of these components [2].
    """

    mean: NDArray[np.float32]
    std: NDArray[np.float32]
    correlation: NDArray[np.float32]
    token_correlation: NDArray[np.float32]
    components: NDArray[np.float32]
    explained: NDArray[np.float32]


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
