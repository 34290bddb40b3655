"""What our operators are compared with: the same functions by others, and softmax attention."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec

import torch
import torch.nn.functional as F
from torch import Tensor

from mmpola.ops import ExpMap, PowerMap
from mmpola.ops.inputs import FeatureMap

Grid = tuple[int, int]
Rotary = tuple[Tensor, Tensor] | None


def literal_features(
    q: Tensor, k: Tensor, feature_map: FeatureMap, key_position: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute (E4-E9) one by one: psi, phi_same and phi_opposite, each [B, H, N, 2D]."""
    if key_position is not None:
        k = k + key_position
    if isinstance(feature_map, ExpMap):
        query = q.transpose(1, 2).contiguous()
        key = k.transpose(1, 2).contiguous()
        same = torch.cat([query.relu(), (-query).relu()], dim=-1)
        same = same * feature_map.same.unsqueeze(-2)
        opposite = torch.cat([(-query).relu(), query.relu()], dim=-1)
        opposite = opposite * feature_map.opposite.unsqueeze(-2)
        psi = torch.cat([key.relu(), (-key).relu()], dim=-1).exp() - 1
        return psi, same.exp() - 1, opposite.exp() - 1
    assert isinstance(feature_map, PowerMap) and feature_map.scale is not None
    exponent = feature_map.exponent.unsqueeze(-2)
    query = (q / feature_map.scale).transpose(1, 2).contiguous()
    key = (k / feature_map.scale).transpose(1, 2).contiguous()
    positive = query.relu() ** exponent
    negative = (-query).relu() ** exponent
    psi = torch.cat([key.relu() ** exponent, (-key).relu() ** exponent], dim=-1)
    phi_same = torch.cat([positive, negative], dim=-1)
    phi_opposite = torch.cat([negative, positive], dim=-1)
    return psi, phi_same, phi_opposite


def literal_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    feature_map: FeatureMap,
    *,
    key_position: Tensor | None = None,
    rotary: Rotary = None,
) -> Tensor:
    """Compute the equations as printed.

    They take four powers or exponentials, two feature tensors of the queries, and two products.
    """
    psi, phi_same, phi_opposite = literal_features(q, k, feature_map, key_position)
    v_same, v_opposite = v.transpose(1, 2).contiguous().chunk(2, dim=-1)
    key_mean = psi.mean(dim=-2, keepdim=True).mT
    keys = _rotate(psi, rotary).mT
    count = psi.shape[-2]
    streams = []
    for phi, value in ((phi_same, v_same), (phi_opposite, v_opposite)):
        state = keys @ (value / count)
        streams.append(_rotate(phi, rotary) @ state / (phi @ key_mean + 1e-6))
    return torch.cat(streams, dim=-1).transpose(1, 2)


def _rotate(features: Tensor, rotary: Rotary) -> Tensor:
    if rotary is None:
        return features
    cos, sin = rotary
    even = features[..., ::2]
    odd = features[..., 1::2]
    return features * cos + torch.stack([-odd, even], dim=-1).flatten(-2) * sin


def softmax_attention(q: Tensor, k: Tensor, v: Tensor, *_: object, **__: object) -> Tensor:
    """Compute PyTorch's fused softmax attention: another function with the same purpose."""
    q = q.transpose(1, 2)
    k = k.transpose(1, 2)
    v = v.transpose(1, 2)
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2)


def published_port() -> Callable[..., Tensor] | None:
    """Return the published Triton port on `PowerMap`; None if it is not installed.

    It is github.com/fla-org/flash-bidirectional-linear-attention, package flash_bla (once fbi_la).
    Its PolaFormer layer (flash_bla/layers/polaformer.py) computes features in PyTorch, and calls
    `linear_attention(q, k, v)`, [B, H, N, K] and [B, H, N, V], for each half of the value channels.
    """
    linear_attention = port_of_linear_attention()
    if linear_attention is None:
        return None

    def attend(
        q: Tensor, k: Tensor, v: Tensor, feature_map: PowerMap, *, key_position: Tensor
    ) -> Tensor:
        features = literal_features(q, k, feature_map, key_position)
        # The kernels multiply tensors of one dtype, as in the port's own benchmark.
        psi, phi_same, phi_opposite = [x.to(v.dtype) for x in features]
        v_same, v_opposite = v.transpose(1, 2).contiguous().chunk(2, dim=-1)
        same = linear_attention(phi_same, psi, v_same)
        opposite = linear_attention(phi_opposite, psi, v_opposite)
        return torch.cat([same, opposite], dim=-1).transpose(1, 2)

    return attend


def port_of_linear_attention() -> Callable[..., Tensor] | None:
    """Return the port's linear attention of given features; None if it is not installed.

    The port's README publishes times of this function on an A800, with D features per head.
    """
    if find_spec('flash_bla') is None:
        return None
    from flash_bla.ops.linear_attn.fused import linear_attention

    function: Callable[..., Tensor] = linear_attention
    return function


def literal_mix_and_gate(
    attended: Tensor, values: Tensor, gate: Tensor, weight: Tensor, bias: Tensor | None, grid: Grid
) -> Tensor:
    """Compute (o + DWC(v)) * g (E14) as printed.

    The values of each head become maps, are convolved, and become tokens again.
    """
    batch, tokens, heads, dim = values.shape
    maps = values.transpose(1, 2).reshape(batch * heads, *grid, dim).permute(0, 3, 1, 2)
    mixed = F.conv2d(maps, weight, bias, padding=weight.shape[-1] // 2, groups=dim)
    mixed = mixed.reshape(batch, heads * dim, tokens).permute(0, 2, 1)
    return (attended.reshape(batch, tokens, heads * dim) + mixed) * gate
