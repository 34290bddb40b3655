"""Layers with parameters: attention, patch embedding, transformer block, position tables."""

from mmpola.layers.attention import (
    LearnedExpMap,
    LearnedPowerMap,
    LinearAttention,
    MixAndGate,
    PolaAttention,
    PolaFormerPPAttention,
    PolaSpatialReductionAttention,
)
from mmpola.layers.block import TransformerBlock
from mmpola.layers.initial_weights import draw_layer, draw_table
from mmpola.layers.multihead import PolaMultiheadAttention
from mmpola.layers.rotary import rotary_tables
from mmpola.layers.softmax import RotarySoftmaxAttention, SpatialReductionAttention
from mmpola.layers.token_maps import (
    SAVED_GRIDS,
    Grid,
    HasPositionTable,
    PatchEmbed,
    convolve_on_grid,
    covering_grid,
    fitting_grid,
    pad_to_cells,
    position_tables,
    resize_table,
)
from mmpola.layers.windows import WindowAttention, Windows, find_windows, resize_bias_table

__all__ = [
    'SAVED_GRIDS',
    'Grid',
    'HasPositionTable',
    'LearnedExpMap',
    'LearnedPowerMap',
    'LinearAttention',
    'MixAndGate',
    'PatchEmbed',
    'PolaAttention',
    'PolaFormerPPAttention',
    'PolaMultiheadAttention',
    'PolaSpatialReductionAttention',
    'RotarySoftmaxAttention',
    'SpatialReductionAttention',
    'TransformerBlock',
    'WindowAttention',
    'Windows',
    'convolve_on_grid',
    'covering_grid',
    'draw_layer',
    'draw_table',
    'find_windows',
    'fitting_grid',
    'pad_to_cells',
    'position_tables',
    'resize_bias_table',
    'resize_table',
    'rotary_tables',
]
