"""What our operators are compared with: other implementations of the same function, and softmax
attention.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec

import torch
import torch.nn.functional as F
from torch import Tensor

from mmpola.ops import ExpMap, PowerMap
from mmpola.ops.features import FeatureMap

Grid = tuple[int, int]
Rotary = tuple[Tensor, Tensor] | None


def literal_features(
    q: Tensor, k: Tensor, feature_map: FeatureMap, key_position: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute psi, phi_same and phi_opposite, each [B, H, N, 2D], one operation after the other
    (E4-E9).
    """
    if key_position is not None:
        k = k + key_position
    if isinstance(feature_map, ExpMap):
        query, key = q.transpose(1, 2).contiguous(), k.transpose(1, 2).contiguous()
        same = torch.cat([query.relu(), (-query).relu()], dim=-1) * feature_map.same.unsqueeze(-2)
        opposite = torch.cat(
            [(-query).relu(), query.relu()], dim=-1
        ) * feature_map.opposite.unsqueeze(-2)
        return (
            torch.cat([key.relu(), (-key).relu()], dim=-1).exp() - 1,
            same.exp() - 1,
            opposite.exp() - 1,
        )
    assert feature_map.scale is not None
    scale, exponent = feature_map.scale, feature_map.exponent.unsqueeze(-2)
    query = (q / scale).transpose(1, 2).contiguous()
    key = (k / scale).transpose(1, 2).contiguous()
    positive, negative = query.relu() ** exponent, (-query).relu() ** exponent
    psi = torch.cat([key.relu() ** exponent, (-key).relu() ** exponent], dim=-1)
    return psi, torch.cat([positive, negative], dim=-1), torch.cat([negative, positive], dim=-1)


def literal_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    feature_map: FeatureMap,
    *,
    key_position: Tensor | None = None,
    rotary: Rotary = None,
) -> Tensor:
    """Compute the equations as printed: four powers or exponentials, two query feature tensors, two
    products.
    """
    psi, *phis = literal_features(q, k, feature_map, key_position)
    mean = psi.mean(dim=-2, keepdim=True).mT
    turned, streams = _turn(psi, rotary), []
    for phi, value in zip(phis, v.transpose(1, 2).contiguous().chunk(2, dim=-1), strict=True):
        state = turned.mT @ (value / psi.shape[-2])
        streams.append(_turn(phi, rotary) @ state / (phi @ mean + 1e-6))
    return torch.cat(streams, dim=-1).transpose(1, 2)


def _turn(features: Tensor, rotary: Rotary) -> Tensor:
    if rotary is None:
        return features
    cos, sin = rotary
    even, odd = features[..., ::2], features[..., 1::2]
    return features * cos + torch.stack([-odd, even], dim=-1).flatten(-2) * sin


def softmax_attention(q: Tensor, k: Tensor, v: Tensor, *_: object, **__: object) -> Tensor:
    """Compute PyTorch's fused softmax attention at the same shape: another function with the same
    purpose.
    """
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2)


def published_port() -> Callable[..., Tensor] | None:
    """Return the published Triton port (package flash_bla), which takes features as input; None if
    not installed.
    """
    if find_spec('flash_bla') is None:
        return None
    from flash_bla.ops.linear_attn.fused import linear_attention

    def attend(
        q: Tensor, k: Tensor, v: Tensor, feature_map: PowerMap, *, key_position: Tensor
    ) -> Tensor:
        psi, *phis = literal_features(q, k, feature_map, key_position)
        values = v.transpose(1, 2).contiguous().chunk(2, dim=-1)
        reads = [linear_attention(phi, psi, value) for phi, value in zip(phis, values, strict=True)]
        return torch.cat(reads, dim=-1).transpose(1, 2)

    return attend


def literal_mix_and_gate(
    attended: Tensor, values: Tensor, gate: Tensor, weight: Tensor, bias: Tensor | None, grid: Grid
) -> Tensor:
    """Compute (o + DWC(v)) * g (E14) as printed: values to maps of one head each, a convolution,
    back to tokens.
    """
    batch, tokens, heads, dim = values.shape
    maps = values.transpose(1, 2).reshape(batch * heads, *grid, dim).permute(0, 3, 1, 2)
    mixed = F.conv2d(maps, weight, bias, padding=weight.shape[-1] // 2, groups=dim)
    mixed = mixed.reshape(batch, heads * dim, tokens).permute(0, 2, 1)
    return (attended.reshape(batch, tokens, heads * dim) + mixed) * gate
