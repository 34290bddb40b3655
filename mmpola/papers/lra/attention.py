"""Attention over a padded batch of sequences (LRA): four variants on the same projections."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch.nn.functional as F
from torch import Tensor, nn

from mmpola.layers.attention import LearnedExpMap, LearnedPowerMap, mask_padding
from mmpola.layers.initial_weights import check_gate_init, draw_gate
from mmpola.layers.rotary import cached_rotary_tables
from mmpola.ops import mix_and_gate, polarity_attention
from mmpola.ops.api import check_backend_name
from mmpola.ops.numerics import accumulation_dtype, default_eps, without_autocast


class SequenceAttention(nn.Module):
    """Base class: the projections to q, k and v, the output projection, dropout.

    Args:
        dim: channels C.
        num_heads: heads H; D = C / H.
        length: tokens of the longest sequence.
        proj_drop: dropout rate after the output projection.
    """

    def __init__(self, dim: int, num_heads: int, length: int, *, proj_drop: float = 0.0) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.length = length
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.proj_drop = nn.Dropout(proj_drop)

    def forward(self, x: Tensor, valid: Tensor | None = None) -> Tensor:
        """Attend from every token to every valid token.

        Args:
            x: tokens [B, N, C], N at most `length`.
            valid: [B, N], False for padding; None if there is none.

        Returns:
            [B, N, C].
        """
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        q = q.unflatten(-1, (self.num_heads, -1))
        k = k.unflatten(-1, (self.num_heads, -1))
        v = v.unflatten(-1, (self.num_heads, -1))
        attended = self.attend(x, q, k, v, valid)
        return self.proj_drop(self.proj(attended))

    def attend(self, x: Tensor, q: Tensor, k: Tensor, v: Tensor, valid: Tensor | None) -> Tensor:
        """Attend from q to k and v, each [B, N, H, D], where `valid` -> [B, N, C]."""
        raise NotImplementedError


class PolaSequenceAttention(SequenceAttention):
    """Polarity-aware linear attention, a depth-wise convolution of the values, and a gate.

    The gate is a projection of x. PolaFormer's variant has learned powers and one convolution for
    all heads (E4-E8); there is no table of key positions, which would double the parameters on
    4,096 tokens. PolaFormer++'s has exponential features, rotary positions and a convolution kernel
    per channel (E9, E10).

    Args:
        dim, num_heads, length, proj_drop: see `SequenceAttention`; D is even.
        plus: whether it is PolaFormer++'s variant.
        alpha: exponents of PolaFormer's variant lie in (1, 1 + alpha) (E5).
        dwc_kernel_size: taps of the convolution, odd.
        gate_init: how the gate starts, one of `GATE_INITS` in initial_weights.py.
        backend: backend of `mmpola.ops`: 'auto', 'triton' or 'torch'.

    Raises:
        ValueError: `gate_init` or `backend` is unknown.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        length: int,
        *,
        plus: bool = False,
        alpha: float = 3,
        dwc_kernel_size: int = 5,
        gate_init: str = 'kaiming',
        proj_drop: float = 0.0,
        backend: str = 'auto',
    ) -> None:
        check_backend_name(backend)
        check_gate_init(gate_init, has_bias=True)
        super().__init__(dim, num_heads, length, proj_drop=proj_drop)
        self.plus = plus
        self.backend = backend
        self.gate = nn.Linear(dim, dim)
        channels = dim // num_heads
        if plus:
            channels = dim
        self.dwc = SequenceMixAndGate(channels, dwc_kernel_size)
        draw_gate(self.gate, dim, gate_init)
        self.feature_map: LearnedExpMap | LearnedPowerMap
        if plus:
            self.feature_map = LearnedExpMap(dim, num_heads)
        else:
            self.feature_map = LearnedPowerMap(dim, num_heads, alpha)

    def attend(self, x: Tensor, q: Tensor, k: Tensor, v: Tensor, valid: Tensor | None) -> Tensor:
        """Attend, add the convolved values and multiply by the gate (E1-E14)."""
        if valid is not None:
            k = mask_padding(k, ~valid)
            v = mask_padding(v, ~valid)
        tokens = x.shape[1]
        # (E1) divides by the number of keys, which counts the padding. With this epsilon the result
        # does not depend on how much padding was cropped.
        eps = default_eps() * self.length / tokens
        rotary = None
        if self.plus:
            rotary = cached_rotary_tables(q, (tokens,), 2 * q.shape[-1])
        feature_map = self.feature_map.map_for(q)
        attended = polarity_attention(
            q, k, v, feature_map, rotary=rotary, eps=eps, backend=self.backend
        )
        # y = (o + DWC(v)) * g (E14)
        return self.dwc(attended, v, self.gate(x), self.backend)


class SequenceMixAndGate(nn.Conv1d):
    """`mmpola.layers.MixAndGate` for the tokens of a sequence.

    Args:
        channels: channels of the kernels: C, or D = C / H for kernels that H heads share.
        kernel_size: taps of a kernel, odd.
    """

    def __init__(self, channels: int, kernel_size: int) -> None:
        padding = kernel_size // 2
        super().__init__(channels, channels, kernel_size, padding=padding, groups=channels)

    def forward(  # type: ignore[override]  # the fused operator has more inputs
        self, attended: Tensor, values: Tensor, gate: Tensor, backend: str = 'auto'
    ) -> Tensor:
        """Compute `mmpola.ops.mix_and_gate` -> [B, N, C].

        Args:
            attended: o [B, N, H, D].
            values: v [B, N, H, D].
            gate: g [B, N, C].
            backend: backend of the operator.
        """
        grid = (attended.shape[1],)
        return mix_and_gate(attended, values, gate, self.weight, self.bias, grid, backend=backend)


class SoftmaxSequenceAttention(SequenceAttention):
    """Multi-head softmax attention with a mask of the padded keys.

    Args:
        dim, num_heads, length, proj_drop: see `SequenceAttention`.
        attn_drop: dropout rate of the attention weights while training.

    Raises:
        ValueError: `attn_drop` is not in [0, 1).
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        length: int,
        *,
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
    ) -> None:
        if not 0 <= attn_drop < 1:
            raise ValueError(f'attn_drop: expected a number in [0, 1), got {attn_drop!r}')
        super().__init__(dim, num_heads, length, proj_drop=proj_drop)
        self.attn_drop = attn_drop

    def attend(self, x: Tensor, q: Tensor, k: Tensor, v: Tensor, valid: Tensor | None) -> Tensor:
        """Attend; a sample without any valid key attends to all."""
        mask = None
        if valid is not None:
            has_no_key = ~valid.any(dim=1, keepdim=True)
            mask = (valid | has_no_key)[:, None, None]  # [B, 1, 1, N]
        attn_drop = self.attn_drop if self.training else 0.0
        attended = F.scaled_dot_product_attention(
            q.transpose(1, 2),
            k.transpose(1, 2),
            v.transpose(1, 2),
            attn_mask=mask,
            dropout_p=attn_drop,
        )
        return attended.transpose(1, 2).flatten(2)


class EluSequenceAttention(SequenceAttention):
    """Linear attention with the features elu(x) + 1 (Katharopoulos et al., ICML 2020)."""

    def attend(self, x: Tensor, q: Tensor, k: Tensor, v: Tensor, valid: Tensor | None) -> Tensor:
        """Attend, in the accumulation dtype."""
        dtype = accumulation_dtype(v.dtype)
        with without_autocast(x.device):
            wide_v = v.to(dtype).transpose(1, 2)  # [B, H, N, D]
            phi = self.features(q.to(dtype).transpose(1, 2))
            psi = self.features(k.to(dtype).transpose(1, 2))
            if valid is not None:
                psi = psi * valid[:, None, :, None]
            normaliser = phi @ psi.sum(dim=2).unsqueeze(-1) + default_eps()
            output = (phi @ (psi.mT @ wide_v)) / normaliser
        return output.to(v.dtype).transpose(1, 2).flatten(2)

    def features(self, x: Tensor) -> Tensor:
        """Return the features of queries or keys, not negative, in the shape of x."""
        return F.elu(x) + 1


SEQUENCE_ATTENTION: dict[str, Callable[..., SequenceAttention]] = {
    'pola': PolaSequenceAttention,
    'polaformer_pp': partial(PolaSequenceAttention, plus=True),
    'softmax': SoftmaxSequenceAttention,
    'linear': EluSequenceAttention,
}
"""The variants by their names in configs."""
