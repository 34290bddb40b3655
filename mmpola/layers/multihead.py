"""Polarity-aware linear attention as a replacement of torch.nn.MultiheadAttention."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmpola.layers.attention import LearnedPowerMap, mask_padding
from mmpola.messages import listed
from mmpola.ops import polarity_attention
from mmpola.ops.api import check_backend_name
from mmpola.ops.numerics import default_eps

SUMMED_KEYS = 'linear attention sums the keys before queries read them'


class PolaMultiheadAttention(nn.MultiheadAttention):
    """PolaFormer's linear attention (E4-E8) with the interface of torch.nn.MultiheadAttention.

    It attends from any number N of queries to any number M of keys, without convolution.
    `load_state_dict` takes the weights of an nn.MultiheadAttention, which have no feature map: that
    keeps its values. The two compute different functions: a converted network has to be fine-tuned.

    It can replace `self_attn` of an nn.TransformerEncoderLayer, and switches the fused inference of
    that layer off. Build nn.TransformerEncoder from such a layer; if it is already built, set its
    `use_nested_tensor = False`.

    Args:
        embed_dim: channels C of queries and outputs.
        num_heads: heads H; D = C / H is even.
        dropout: dropout rate of the attended values, before the output projection: there are no
            weights to drop.
        bias: bias of all projections.
        kdim, vdim: channels of keys and values; None for C.
        batch_first: inputs and outputs are [B, N, C] instead of [N, B, C].
        gate: whether to multiply the attended values by a projection of the queries, as PolaFormer
            does (E14).
        alpha: exponents lie in (1, 1 + alpha) (E5).
        backend: backend of `mmpola.ops.polarity_attention`: 'auto', 'triton' or 'torch'.
        device, dtype: of the parameters.

    Raises:
        ValueError: `num_heads` or `backend` is invalid.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        *,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        gate: bool = False,
        alpha: float = 4,
        backend: str = 'auto',
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        check_backend_name(backend)
        feature_map = LearnedPowerMap(embed_dim, num_heads, alpha)
        factory: dict[str, Any] = {'device': device, 'dtype': dtype}
        super().__init__(
            embed_dim,
            num_heads,
            dropout,
            bias,
            kdim=kdim,
            vdim=vdim,
            batch_first=batch_first,
            **factory,
        )
        # Else nn.TransformerEncoderLayer computes softmax attention by itself in eval mode
        self._qkv_same_embed_dim = False
        self.feature_map = feature_map.to(**factory)
        self.backend = backend
        self.gate = None
        if gate:
            self.gate = nn.Linear(embed_dim, embed_dim, bias=bias, **factory)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = False,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, None]:
        """Attend from every query to every key that is not padding.

        Args:
            query: [N, B, C], or [B, N, C] with `batch_first`, or [N, C].
            key, value: the same with M >= 1 tokens of `kdim` and `vdim` channels.
            key_padding_mask: [B, M] or [M]; bool, True for padding, or float, added to the
                logarithm of a key's weights. Padding (True or -inf) has weights of exactly 0 and
                gradients of 0, whatever its values, NaN too, and its amount changes nothing. A
                query that has no keys gets 0, before the output projection.
            need_weights, attn_mask, is_causal: must be False or None: there is no [N, M] matrix of
                weights.
            average_attn_weights: without effect.

        Returns:
            (output in the shape of `query`, None).

        Raises:
            TypeError: the mask is neither bool nor floating.
            ValueError: a shape does not fit, or an argument needs the matrix of weights.
        """
        if need_weights:
            raise ValueError(
                'need_weights: expected False, because linear attention has no [N, M] weights, '
                'got True'
            )
        if attn_mask is not None:
            raise ValueError(f'attn_mask: expected None, because {SUMMED_KEYS}, got a mask')
        if is_causal:
            raise ValueError(f'is_causal: expected False, because {SUMMED_KEYS}, got True')
        self._check_inputs(query, key, value, key_padding_mask)
        if query.ndim == 2:
            mask = None
            if key_padding_mask is not None:
                mask = key_padding_mask.unsqueeze(0)
            output = self._attend(query.unsqueeze(0), key.unsqueeze(0), value.unsqueeze(0), mask)
            return output.squeeze(0), None
        if self.batch_first:
            return self._attend(query, key, value, key_padding_mask), None
        output = self._attend(
            query.transpose(0, 1), key.transpose(0, 1), value.transpose(0, 1), key_padding_mask
        )
        return output.transpose(0, 1), None

    def _attend(
        self, query: Tensor, key: Tensor, value: Tensor, key_padding_mask: Tensor | None
    ) -> Tensor:
        """Compute `forward` for [B, N, C], [B, M, kdim] and [B, M, vdim]."""
        padding = key_padding_mask
        if padding is not None:
            if padding.dtype != torch.bool:
                padding = padding.isneginf()
            # The gradients of the projections' weights sum 0 * x over the padding: NaN for x = NaN
            key = key.masked_fill(padding[..., None], 0)
            value = value.masked_fill(padding[..., None], 0)
        q_weight, k_weight, v_weight = self._projection_weights()
        q_bias = None
        k_bias = None
        v_bias = None
        if self.in_proj_bias is not None:
            q_bias, k_bias, v_bias = self.in_proj_bias.chunk(3)
        q = F.linear(query, q_weight, q_bias).unflatten(-1, (self.num_heads, -1))
        k = F.linear(key, k_weight, k_bias).unflatten(-1, (self.num_heads, -1))
        v = F.linear(value, v_weight, v_bias).unflatten(-1, (self.num_heads, -1))
        feature_map = self.feature_map.map_for(q)
        if key_padding_mask is not None and key_padding_mask.is_floating_point():
            # Adding the same number to the mask of all keys of a sample changes nothing. Subtract
            # the largest, so that exp does not overflow.
            largest = key_padding_mask.amax(-1, keepdim=True)
            largest = largest.masked_fill(largest.isneginf(), 0)
            added = key_padding_mask - largest
            added = added.masked_fill(added.isneginf(), 0)[..., None, None]
            factor = (added / feature_map.exponent).exp()  # |k exp(m / p) / s|^p = exp(m) |k / s|^p
            k = (k * factor).to(k.dtype)
        if padding is not None:  # again: a bias of the projections has made them other than 0
            k = mask_padding(k, padding)
            v = mask_padding(v, padding)
        # (E1) divides by M, which counts the padding. With this epsilon the result does not depend
        # on the amount of padding.
        eps = default_eps() / max(1, k.shape[1])
        attended = polarity_attention(q, k, v, feature_map, eps=eps, backend=self.backend)
        attended = attended.flatten(2)
        if self.gate is not None:
            attended = attended * self.gate(query)
        return self.out_proj(F.dropout(attended, self.dropout, self.training))

    def _projection_weights(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the weights of the projections to q, k and v, which may be one tensor or three."""
        if self.in_proj_weight is None:
            return self.q_proj_weight, self.k_proj_weight, self.v_proj_weight
        q_weight, k_weight, v_weight = self.in_proj_weight.chunk(3)
        return q_weight, k_weight, v_weight

    def _check_inputs(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> None:
        """Raise an error unless the tensors given to `forward` fit each other."""
        if query.is_nested:
            raise ValueError(
                'query: expected an ordinary tensor, got a nested one; in an nn.TransformerEncoder '
                'that is built already, set encoder.use_nested_tensor = False'
            )
        shapes = [list(query.shape), list(key.shape), list(value.shape)]
        dims = [self.embed_dim, self.kdim, self.vdim]
        fits = query.ndim in (2, 3) and query.ndim == key.ndim == value.ndim
        if fits:
            channels = [query.shape[-1], key.shape[-1], value.shape[-1]]
            fits = channels == dims and key.shape[:-1] == value.shape[:-1]
        if fits and query.ndim == 3:
            batch_axis = 0 if self.batch_first else 1
            fits = query.shape[batch_axis] == key.shape[batch_axis]
        if not fits:
            layout = '[B, N, C]' if self.batch_first else '[N, B, C]'
            raise ValueError(
                f'query, key, value: expected {layout} (batch_first={self.batch_first}) or [N, C] '
                f'with C = {listed(dims)}, equal B and as many values as keys, got {listed(shapes)}'
            )
        if mask is None:
            return
        if mask.dtype != torch.bool and not mask.is_floating_point():
            rule = 'bool (True: padding) or floating (added)'
            raise TypeError(f'key_padding_mask: expected {rule}, got {mask.dtype}')
        expected = list(key.shape[:-1])
        if key.ndim == 3 and not self.batch_first:
            expected.reverse()
        if list(mask.shape) != expected:
            raise ValueError(
                f'key_padding_mask: expected {expected} like the keys, got {list(mask.shape)}'
            )

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *arguments: Any
    ) -> None:
        """Keep this layer's feature map if the weights, like nn.MultiheadAttention's, have none."""
        own = {}
        for name, parameter in self.feature_map.named_parameters():
            own[f'{prefix}feature_map.{name}'] = parameter.detach()
        if own.keys().isdisjoint(state_dict):
            state_dict.update(own)
        super()._load_from_state_dict(state_dict, prefix, *arguments)
