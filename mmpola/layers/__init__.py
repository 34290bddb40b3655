"""Parameterised layers on the operator."""

from mmpola.layers.pola_attention import PolaAttention, mix_and_gate
from mmpola.layers.position import Grid, resize_bias_table, resize_table
from mmpola.layers.window_attention import WindowAttention, window_mask

__all__ = [
    'Grid',
    'PolaAttention',
    'WindowAttention',
    'mix_and_gate',
    'resize_bias_table',
    'resize_table',
    'window_mask',
]
