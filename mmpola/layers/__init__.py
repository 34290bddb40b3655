"""Parameterised layers on the operator."""

from mmpola.layers.block import TransformerBlock
from mmpola.layers.patch_embed import PatchEmbed
from mmpola.layers.pola_attention import PolaAttention, ReducedPolaAttention
from mmpola.layers.position import Grid, resize_bias_table, resize_table
from mmpola.layers.rotary import rotary_tables
from mmpola.layers.softmax_attention import RotarySoftmaxAttention, SpatialReductionAttention
from mmpola.layers.spiky_attention import SpikyAttention
from mmpola.layers.window_attention import WindowAttention, window_mask

__all__ = [
    'Grid',
    'PatchEmbed',
    'PolaAttention',
    'ReducedPolaAttention',
    'RotarySoftmaxAttention',
    'SpatialReductionAttention',
    'SpikyAttention',
    'TransformerBlock',
    'WindowAttention',
    'resize_bias_table',
    'resize_table',
    'rotary_tables',
    'window_mask',
]
