"""Initial weights of linear layers, convolutions and position tables, as the authors draw them."""

from __future__ import annotations

from typing import Any

from timm.layers import trunc_normal_
from torch import Tensor, nn

INITIAL_DEVIATION = 0.02
"""Standard deviation of the truncated normal distribution of weights and tables."""

GATE_INITS = ('authors', 'open')
"""How the gate of a layer starts: as the authors draw it, or open, which is 1 for every token."""


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
