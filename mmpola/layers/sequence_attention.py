"""Attention over a padded batch of sequences, in four variants on the same projections: two polarity-aware, two others.

Padding is masked by zeroed keys and values. Both feature maps map a zero key to zero features, so neither operator of
`mmpola.ops` needs a mask.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmpola.layers.rotary import rotary_tables
from mmpola.ops import ExpMap, PowerMap, mix_and_gate, polarity_attention
from mmpola.ops.backends import check_backend_name
from mmpola.ops.numerics import EPS, accumulation_dtype, without_autocast

GATE_INITS: dict[str, Callable[[Tensor], Tensor]] = {
    'kaiming': partial(nn.init.kaiming_uniform_, a=math.sqrt(5)),
    'zeros': nn.init.zeros_,
    'normal': nn.init.normal_,
    'uniform': nn.init.uniform_,
    'ones': nn.init.ones_,
}
"""Initial weight of the gate's projection (PolaFormer, appendix A.4); 'kaiming' is nn.Linear's own."""


class SequenceAttention(nn.Module):
    """What the variants share: the projections to q, k and v, the output projection, dropout.

    Args:
        dim: channels C.
        num_heads: heads H; D = C / H.
        length: tokens of the longest sequence.
        drop: dropout rate after the output projection.
    """

    def __init__(self, dim: int, num_heads: int, length: int, *, drop: float = 0.0) -> None:
        super().__init__()
        self.num_heads, self.length = num_heads, length
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.drop = nn.Dropout(drop)

    def forward(self, x: Tensor, valid: Tensor | None = None) -> Tensor:
        """x [B, N, C], N at most `length`; valid [B, N], False for padding, None if there is none -> [B, N, C]."""
        q, k, v = (t.unflatten(-1, (self.num_heads, -1)) for t in self.qkv(x).chunk(3, dim=-1))
        return self.drop(self.proj(self.attend(x, q, k, v, valid)))

    def attend(self, x: Tensor, q: Tensor, k: Tensor, v: Tensor, valid: Tensor | None) -> Tensor:
        """Attend from q to k and v, each [B, N, H, D], where `valid` -> [B, N, C]."""
        raise NotImplementedError


class PolaritySequenceAttention(SequenceAttention):
    """Polarity-aware linear attention, a depth-wise convolution of the values along the sequence, and a gate.

    The gate is a projection of x. A subclass defines the feature map.

    Args:
        dim, num_heads, length, drop: see `SequenceAttention`; D is even.
        kernels: channels of the convolution: D, shared by all heads, or C.
        kernel_size: taps of the convolution, odd.
        gate_init: initial weight of the gate's projection, one of GATE_INITS; its bias starts as nn.Linear's.
        backend: backend of `mmpola.ops`: 'auto', 'triton' or 'reference'.

    Raises:
        ValueError: `gate_init` or `backend` is unknown.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        length: int,
        *,
        kernels: int,
        kernel_size: int = 5,
        gate_init: str = 'kaiming',
        drop: float = 0.0,
        backend: str = 'auto',
    ) -> None:
        check_backend_name(backend)
        if gate_init not in GATE_INITS:
            raise ValueError(f'gate_init: expected one of {list(GATE_INITS)}, got {gate_init!r}')
        super().__init__(dim, num_heads, length, drop=drop)
        self.backend = backend
        self.gate = nn.Linear(dim, dim)
        self.dwc = nn.Conv1d(kernels, kernels, kernel_size, padding=kernel_size // 2, groups=kernels)
        GATE_INITS[gate_init](self.gate.weight)

    def feature_map(self) -> PowerMap | ExpMap:
        """Return the feature map of queries and keys that the current parameters define."""
        raise NotImplementedError

    def rotary_tables(self, tokens: int) -> tuple[Tensor, Tensor] | None:
        """Return the rotary tables of the first `tokens` positions, None without rotary positions."""
        return None

    def attend(self, x: Tensor, q: Tensor, k: Tensor, v: Tensor, valid: Tensor | None) -> Tensor:
        """Attend, add the convolved values and multiply by the gate (E1-E14)."""
        if valid is not None:
            k, v = (t.masked_fill(~valid[..., None, None], 0) for t in (k, v))
        tokens = x.shape[1]
        # (E1) divides by the number of keys, padding included. With this epsilon the result does not depend on how much
        # of the padding was cropped.
        eps = EPS * self.length / tokens
        rotary = self.rotary_tables(tokens)
        attended = polarity_attention(q, k, v, self.feature_map(), rotary=rotary, eps=eps, backend=self.backend)
        weight, bias = self.dwc.weight, self.dwc.bias
        return mix_and_gate(attended, v, self.gate(x), weight, bias, (tokens,), backend=self.backend)


class PowerSequenceAttention(PolaritySequenceAttention):
    """PolaFormer's attention on sequences: learned powers, one convolution for all heads (E4-E8).

    There is no table of key positions: on 4,096 tokens it would double the parameters.

    Args:
        dim, num_heads, length: see `SequenceAttention`.
        alpha: exponents lie in (1, 1 + alpha) (E5).
        shared: `kernel_size`, `gate_init`, `drop` and `backend` of `PolaritySequenceAttention`.
    """

    def __init__(self, dim: int, num_heads: int, length: int, *, alpha: float = 3, **shared: Any) -> None:
        head_dim = dim // num_heads
        super().__init__(dim, num_heads, length, kernels=head_dim, **shared)
        self.alpha = alpha
        self.power = nn.Parameter(torch.zeros(num_heads, head_dim))
        self.scale = nn.Parameter(torch.zeros(num_heads, head_dim))

    def feature_map(self) -> PowerMap:
        """Return p = 1 + alpha sigmoid(power) (E5) and s = softplus(scale) (E4) in the accumulation dtype."""
        dtype = accumulation_dtype(self.power.dtype)
        power, scale = self.power.to(dtype), self.scale.to(dtype)
        return PowerMap(1 + self.alpha * power.sigmoid(), F.softplus(scale))


class ExpSequenceAttention(PolaritySequenceAttention):
    """PolaFormer++'s attention on sequences: exponential features, rotary positions, LePE (E9, E10).

    Args:
        dim, num_heads, length: see `SequenceAttention`.
        shared: `kernel_size`, `gate_init`, `drop` and `backend` of `PolaritySequenceAttention`.
    """

    cos: Tensor
    sin: Tensor

    def __init__(self, dim: int, num_heads: int, length: int, **shared: Any) -> None:
        super().__init__(dim, num_heads, length, kernels=dim, **shared)
        features = 2 * dim // num_heads  # two signs per channel
        self.s1 = nn.Parameter(torch.zeros(num_heads, features))
        self.s2 = nn.Parameter(torch.zeros(num_heads, features))
        cos, sin = rotary_tables((length,), features, None, torch.get_default_dtype())
        self.register_buffer('cos', cos, persistent=False)
        self.register_buffer('sin', sin, persistent=False)

    def feature_map(self) -> ExpMap:
        """Return sigmoid(s1) and sigmoid(s2) (E9) in the accumulation dtype."""
        dtype = accumulation_dtype(self.s1.dtype)
        return ExpMap(self.s1.to(dtype).sigmoid(), self.s2.to(dtype).sigmoid())

    def rotary_tables(self, tokens: int) -> tuple[Tensor, Tensor]:
        """Return (cos, sin) of the first `tokens` positions, each [N, 2D]."""
        return self.cos[:tokens], self.sin[:tokens]


class SoftmaxSequenceAttention(SequenceAttention):
    """Multi-head softmax attention with a mask of the padded keys."""

    def attend(self, x: Tensor, q: Tensor, k: Tensor, v: Tensor, valid: Tensor | None) -> Tensor:
        """Attend; a sample without any valid key attends to all."""
        mask = None
        if valid is not None:
            mask = (valid | ~valid.any(dim=1, keepdim=True))[:, None, None]
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(2)


class EluSequenceAttention(SequenceAttention):
    """Linear attention with the features elu(x) + 1 (Katharopoulos et al., ICML 2020)."""

    def attend(self, x: Tensor, q: Tensor, k: Tensor, v: Tensor, valid: Tensor | None) -> Tensor:
        """Attend, in the accumulation dtype."""
        dtype = v.dtype
        with without_autocast(x.device):
            q, k, v = (t.to(accumulation_dtype(dtype)).transpose(1, 2) for t in (q, k, v))  # [B, H, N, D]
            phi, psi = F.elu(q) + 1, F.elu(k) + 1
            if valid is not None:
                psi = psi * valid[:, None, :, None]
            normaliser = phi @ psi.sum(dim=2).unsqueeze(-1) + EPS
            output = (phi @ (psi.mT @ v)) / normaliser
        return output.to(dtype).transpose(1, 2).flatten(2)


SEQUENCE_ATTENTION: dict[str, type[SequenceAttention]] = {
    'pola': PowerSequenceAttention,
    'pola_pp': ExpSequenceAttention,
    'softmax': SoftmaxSequenceAttention,
    'linear': EluSequenceAttention,
}
"""The variants by the word that a config uses."""
