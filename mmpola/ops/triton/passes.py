"""What the passes of both feature maps share: memory, and the sum of partial states.

A pass allocates its results and launches its kernels: power_passes.py and exp_passes.py have a
forward and a backward function each.

The state of all heads is one float32 tensor [B * H, SIZE]; a row has S [2D, D], then k̄ [2D] (E1,
E2), then for an ExpMap the shift [2D] (E11). Programs that share a head write partial states, which
`combine_states_kernel` adds.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from mmpola.ops.triton.combine_kernels import combine_states_kernel
from mmpola.ops.triton.launch import FUSION_OPTIONS, block_of, ceil_div


class Wanted(NamedTuple):
    """Which tensors get a gradient; `first` and `second` are those of `SmallTensors`."""

    q: bool
    k: bool
    v: bool
    key_position: bool
    first: bool
    second: bool


PassGradients = tuple[Tensor | None, ...]
"""Gradients of the tensors of an operator; None where it is not wanted."""


def like(x: Tensor) -> Tensor:
    """Allocate a contiguous tensor of x's shape."""
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def floats(x: Tensor, *shape: int) -> Tensor:
    """Allocate float32 memory on the device of x."""
    return x.new_empty(shape, dtype=torch.float32)


def combine(
    parts: Tensor,
    dim: int,
    factor: float,
    state: Tensor | None = None,
    products: Tensor | None = None,
) -> Tensor:
    """Add the parts [B * H, chunks, SIZE] of a state and multiply the sum by `factor`.

    `products` [B * H, 2D], if given, receives w of (E18a), for which `parts` are those of the
    gradient of `state`.
    """
    rows, chunks, size = parts.shape
    combined = floats(parts, rows, size)
    if rows == 0:
        return combined
    # 8 rows of the states of 8 chunks at a time
    combine_states_kernel[rows, ceil_div(2 * dim, 8)](
        parts,
        combined,
        state,
        products,
        chunks,
        factor,
        D=dim,
        BP=8,
        BR=8,
        BD=block_of(dim),
        HAS_SHIFT=size == 2 * dim * (dim + 2),
        num_warps=4,
        **FUSION_OPTIONS,
    )
    return combined
