"""Polarity-aware linear attention in the place of torch.nn.MultiheadAttention."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmpola.layers.features import LearnedPowerMap, mask_padding
from mmpola.messages import listed
from mmpola.ops import polarity_attention
from mmpola.ops.backends import check_backend_name
from mmpola.ops.numerics import EPS


class PolaMultiheadAttention(nn.MultiheadAttention):
    """PolaFormer's linear attention (E4-E8) with the call and the parameters of torch.nn.MultiheadAttention.

    It attends from any number N of queries to any number M of keys, without convolution.
    `load_state_dict` takes the weights of an nn.MultiheadAttention; if nothing but the feature map
    is missing, that keeps its values. The two compute different functions: a converted network has
    to be fine-tuned.

    In nn.TransformerEncoderLayer it can replace `self_attn`, whose fused inference it switches off;
    build nn.TransformerEncoder from such a layer, or set `use_nested_tensor = False` in one that is
    built already.

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
        self._qkv_same_embed_dim = (
            False  # else nn.TransformerEncoderLayer computes softmax attention by itself in eval
        )
        self.feature_map, self.backend = feature_map.to(**factory), backend
        self.gate = nn.Linear(embed_dim, embed_dim, bias=bias, **factory) if gate else None

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
                'need_weights: expected False, because linear attention has no [N, M] weights, got True'
            )
        if attn_mask is not None or is_causal:
            name, rule, got = (
                ('is_causal', 'False', 'True') if is_causal else ('attn_mask', 'None', 'a mask')
            )
            raise ValueError(
                f'{name}: expected {rule}, because linear attention sums the keys before queries read them, got {got}'
            )
        self._check_inputs(query, key, value, key_padding_mask)
        batched = query.ndim == 3
        if not batched:
            query, key, value = (x.unsqueeze(0) for x in (query, key, value))
            key_padding_mask = None if key_padding_mask is None else key_padding_mask.unsqueeze(0)
        elif not self.batch_first:
            query, key, value = (x.transpose(0, 1) for x in (query, key, value))
        output = self._attend(query, key, value, key_padding_mask)
        if not batched:
            return output.squeeze(0), None
        return output if self.batch_first else output.transpose(0, 1), None

    def _attend(
        self, query: Tensor, key: Tensor, value: Tensor, key_padding_mask: Tensor | None
    ) -> Tensor:
        """Compute `forward` for [B, N, C], [B, M, kdim] and [B, M, vdim]."""
        padding = key_padding_mask
        if padding is not None:
            if padding.dtype != torch.bool:
                padding = padding.isneginf()
            # The gradients of the projections' weights are sums over all tokens: 0 * NaN would be
            # NaN.
            key = key.masked_fill(padding[..., None], 0)
            value = value.masked_fill(padding[..., None], 0)
        weights: Any = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        if self.in_proj_weight is not None:
            weights = self.in_proj_weight.chunk(3)
        biases = [None] * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        inputs = zip((query, key, value), weights, biases, strict=True)
        q, k, v = (F.linear(*each).unflatten(-1, (self.num_heads, -1)) for each in inputs)
        feature_map = self.feature_map()
        if key_padding_mask is not None and key_padding_mask.is_floating_point():
            # Adding one number to all keys of a sample changes nothing; 0 for the largest, no exp
            # overflows.
            largest = key_padding_mask.amax(-1, keepdim=True)
            largest = largest.masked_fill(largest.isneginf(), 0)
            added = key_padding_mask - largest
            added = added.masked_fill(added.isneginf(), 0)[..., None, None]
            k = (k * (added / feature_map.exponent).exp()).to(
                k.dtype
            )  # |k exp(m / p) / s|^p = exp(m) |k / s|^p
        if padding is not None:
            k, v = mask_padding(padding, k, v)  # a bias makes them other than 0
        # (E1) divides by M, padding included. With this epsilon the result does not depend on how
        # much of it there is.
        eps = EPS / max(1, k.shape[1])
        attended = polarity_attention(q, k, v, feature_map, eps=eps, backend=self.backend).flatten(
            2
        )
        if self.gate is not None:
            attended = attended * self.gate(query)
        return self.out_proj(F.dropout(attended, self.dropout, self.training))

    def _check_inputs(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> None:
        """Raise an error unless the tensors given to `forward` fit each other."""
        if query.is_nested:
            raise ValueError(
                'query: expected an ordinary tensor, got a nested one; in an nn.TransformerEncoder that is built '
                'already, set encoder.use_nested_tensor = False'
            )
        shapes, dims = (
            [list(x.shape) for x in (query, key, value)],
            [self.embed_dim, self.kdim, self.vdim],
        )
        queries, keys, values = (shape[:-1] for shape in shapes)
        batch = slice(0, 0) if query.ndim == 2 else slice(0, 1) if self.batch_first else slice(1, 2)
        same_ndim = query.ndim in (2, 3) and query.ndim == key.ndim
        same_tokens = keys == values and queries[batch] == keys[batch]
        if not (same_ndim and same_tokens and [shape[-1] for shape in shapes] == dims):
            layout = '[B, N, C]' if self.batch_first else '[N, B, C]'
            raise ValueError(
                f'query, key, value: expected {layout} (batch_first={self.batch_first}) or [N, C] with '
                f'C = {listed(dims)}, equal B and as many values as keys, got {listed(shapes)}'
            )
        expected = keys if self.batch_first else keys[::-1]
        if mask is not None and mask.dtype != torch.bool and not mask.is_floating_point():
            raise TypeError(
                f'key_padding_mask: expected bool (True: padding) or floating (added), got {mask.dtype}'
            )
        if mask is not None and list(mask.shape) != expected:
            raise ValueError(
                f'key_padding_mask: expected {expected} like the keys, got {list(mask.shape)}'
            )

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *arguments: Any
    ) -> None:
        """Add the own feature map to weights that have none, which are those of an nn.MultiheadAttention."""
        own = {
            f'{prefix}feature_map.{name}': x.detach()
            for name, x in self.feature_map.named_parameters()
        }
        if not own.keys() & state_dict.keys():
            state_dict |= own
        super()._load_from_state_dict(state_dict, prefix, *arguments)
