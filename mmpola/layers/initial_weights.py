"""Initial weights of linear layers, convolutions and position tables, as the authors draw them."""

from __future__ import annotations

from timm.layers import trunc_normal_
from torch import Tensor, nn

INITIAL_DEVIATION = 0.02
"""Standard deviation of the truncated normal distribution of weights and tables."""


def draw_table(table: Tensor) -> None:
    """Draw a table of positions or biases from a truncated normal distribution, in place."""
    trunc_normal_(table, std=INITIAL_DEVIATION)


def draw_layer(layer: nn.Linear | nn.Conv2d) -> None:
    """Draw a layer's weight from a truncated normal distribution and set its bias to 0."""
    trunc_normal_(layer.weight, std=INITIAL_DEVIATION)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
