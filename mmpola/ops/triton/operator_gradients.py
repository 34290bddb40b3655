"""Gradients of the operators of torch.library: tensors only, neither None nor shared memory.

A gradient that is not wanted is an empty tensor inside an operator and None outside.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mmpola.ops.tracing import is_batched
from mmpola.ops.triton.passes import PassGradients


def wanted_only(found: Sequence[Tensor | None], wanted: Sequence[bool]) -> PassGradients:
    """Replace gradients that are not wanted by None."""
    gradients = []
    for gradient, want in zip(found, wanted, strict=True):
        gradients.append(gradient if want else None)
    return tuple(gradients)


def without_none(found: PassGradients, like: Tensor) -> list[Tensor]:
    """Replace each None by its own empty tensor: results of an operator must not share memory."""
    tensors = []
    for gradient in found:
        tensors.append(like.new_empty(0) if gradient is None else gradient)
    return tensors


def empty_gradients(tensors: Sequence[Tensor | None], wanted: Sequence[bool]) -> list[Tensor]:
    """Allocate a contiguous gradient for each wanted tensor, and an empty tensor for the others."""
    like = tensors[0]
    assert like is not None
    gradients = []
    for x, want in zip(tensors, wanted, strict=True):
        if want and x is not None:
            gradients.append(torch.empty(x.shape, device=x.device, dtype=x.dtype))
        else:
            gradients.append(like.new_empty(0))
    return gradients


def check_gradient(do: Tensor) -> None:
    """Refuse an incoming gradient that is batched: the kernels take one at a time."""
    if is_batched(do):
        raise RuntimeError("backend 'triton' has no batched gradients: choose backend='torch'")


def no_second_gradient(ctx: Any, *grads: Any) -> None:
    """Refuse the derivative of a gradient operator."""
    raise RuntimeError("backend 'triton' has no second derivative: choose backend='torch'")
