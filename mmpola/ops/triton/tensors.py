"""What the kernels take: tokens with unit stride in D, and the small tensors beside q, k and v."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, eq=False)
class Parameters:
    """Contiguous; `exponent` (a PowerMap) or `same` and `opposite` (an ExpMap) are there, the rest may be None."""

    key_position: Tensor | None  # [M, H, D], any floating dtype
    exponent: Tensor | None  # [H, D], float32 like all below
    scale: Tensor | None  # [H, D]
    same: Tensor | None  # [H, 2D]
    opposite: Tensor | None  # [H, 2D]
    cos: Tensor | None  # [N, 2D]
    sin: Tensor | None  # [N, 2D]

    @classmethod
    def of(cls, *tensors: Tensor | None) -> Parameters:
        """The fields in order, made contiguous."""
        return cls(*(None if x is None else x.contiguous() for x in tensors))


LONGEST_ROW = 2**23
"""Elements from a token to the next: offsets inside a block of up to 128 tokens are 32-bit."""


def as_tokens(x: Tensor) -> Tensor:
    """x [B, N, H, D] itself, or a contiguous copy where D has no unit stride or tokens lie too far apart."""
    return x if x.stride(3) == 1 and x.stride(1) < LONGEST_ROW else x.contiguous()
