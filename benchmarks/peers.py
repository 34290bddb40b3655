"""What our operator is measured against: the same function, written otherwise."""

from __future__ import annotations

import torch
from torch import Tensor

from mmpola.ops import PowerMap


def literal_attention(q: Tensor, k: Tensor, v: Tensor, feature_map: PowerMap, *, key_position: Tensor) -> Tensor:
    """E1-E8 as printed: four powers, two query feature tensors, two products. Shapes are the operator's."""
    assert feature_map.scale is not None
    scale, exponent = feature_map.scale, feature_map.exponent.unsqueeze(-2)
    query = (q / scale).transpose(1, 2).contiguous()
    key = ((k + key_position) / scale).transpose(1, 2).contiguous()
    same, opposite = v.transpose(1, 2).contiguous().chunk(2, dim=-1)
    positive_query, negative_query = query.relu() ** exponent, (-query).relu() ** exponent
    psi = torch.cat([key.relu() ** exponent, (-key).relu() ** exponent], dim=-1)
    mean = psi.mean(dim=-2, keepdim=True).mT
    streams = []
    for phi, value in (
        (torch.cat([positive_query, negative_query], dim=-1), same),
        (torch.cat([negative_query, positive_query], dim=-1), opposite),
    ):
        state = psi.mT @ value / key.shape[-2]
        streams.append(phi @ state / (phi @ mean + 1e-6))
    return torch.cat(streams, dim=-1).transpose(1, 2)
