"""Initial weights of linear layers, convolutions and position tables, as the authors draw them."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from timm.layers import trunc_normal_
from torch import Tensor, nn

INITIAL_DEVIATION = 0.02
"""Standard deviation of the truncated normal distribution of weights and tables."""

GATE_INITS: dict[str, Callable[[Tensor], Tensor]] = {
    'authors': lambda weight: weight,
    'open': nn.init.zeros_,
    'kaiming': partial(nn.init.kaiming_uniform_, a=math.sqrt(5)),
    'zeros': nn.init.zeros_,
    'normal': nn.init.normal_,
    'uniform': nn.init.uniform_,
    'ones': nn.init.ones_,
}
"""How the weight of a gate's projection (E14) starts, by the argument `gate_init` of every layer.

'authors' keeps what the layer has drawn, as the authors draw it. 'open' is ours: the bias starts as
1 too, so that the layer starts as the attention plus the convolution of the values. PolaFormer's
appendix A.4 compares the others, which keep the bias that was drawn; 'kaiming' is nn.Linear's own.
"""


def draw_table(table: Tensor) -> None:
    """Draw a table of positions or biases from a truncated normal distribution, in place."""
    trunc_normal_(table, std=INITIAL_DEVIATION)


def draw_layer(layer: nn.Linear | nn.Conv2d) -> None:
    """Draw a layer's weight from a truncated normal distribution and set its bias to 0."""
    trunc_normal_(layer.weight, std=INITIAL_DEVIATION)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)


def check_gate_init(gate_init: Any, has_bias: bool) -> None:
    """Raise ValueError unless a gate whose projection has a bias, or has none, can start so."""
    if gate_init not in GATE_INITS:
        raise ValueError(f'gate_init: expected one of {list(GATE_INITS)}, got {gate_init!r}')
    if gate_init == 'open' and not has_bias:
        raise ValueError(
            "gate_init: expected 'authors' with qkv_bias=False, because the bias opens a gate, "
            "got 'open'"
        )


def draw_gate(projection: nn.Linear, dim: int, gate_init: str) -> None:
    """Start a gate, the last `dim` outputs of a projection, as one of GATE_INITS."""
    if gate_init == 'authors':
        return  # before `weight` is read: quantisation may have replaced the projection
    with torch.no_grad():
        GATE_INITS[gate_init](projection.weight[-dim:])
        if gate_init == 'open':
            projection.bias[-dim:] = 1
