"""Layers with parameters: attention, patch embedding, transformer block, position tables."""

from mmpola.layers.ablations import AblatedPolaAttention
from mmpola.layers.attention import (
    LinearAttention,
    PolaAttention,
    PolaFormerPPAttention,
    PolaSpatialReductionAttention,
)
from mmpola.layers.block import TransformerBlock
from mmpola.layers.deformable_conv import DepthwiseDeformableConv
from mmpola.layers.features import LearnedExpMap, LearnedPowerMap
from mmpola.layers.initial_weights import draw_layer, draw_table
from mmpola.layers.multihead import PolaMultiheadAttention
from mmpola.layers.patches import PatchEmbed, covering_grid, pad_to_cells
from mmpola.layers.positions import (
    Grid,
    WithPositionTable,
    position_tables,
    resize_bias_table,
    resize_table,
    rotary_tables,
)
from mmpola.layers.sequence import (
    SEQUENCE_ATTENTION,
    EluSequenceAttention,
    PolaSequenceAttention,
    SequenceAttention,
    SoftmaxSequenceAttention,
)
from mmpola.layers.softmax import (
    RotarySoftmaxAttention,
    SpatialReductionAttention,
    WindowAttention,
    find_windows,
)
from mmpola.layers.windows import Windows

__all__ = [
    'SEQUENCE_ATTENTION',
    'AblatedPolaAttention',
    'DepthwiseDeformableConv',
    'EluSequenceAttention',
    'Grid',
    'LearnedExpMap',
    'LearnedPowerMap',
    'LinearAttention',
    'PatchEmbed',
    'PolaAttention',
    'PolaFormerPPAttention',
    'PolaMultiheadAttention',
    'PolaSequenceAttention',
    'PolaSpatialReductionAttention',
    'RotarySoftmaxAttention',
    'SequenceAttention',
    'SoftmaxSequenceAttention',
    'SpatialReductionAttention',
    'TransformerBlock',
    'WindowAttention',
    'Windows',
    'WithPositionTable',
    'covering_grid',
    'draw_layer',
    'draw_table',
    'find_windows',
    'pad_to_cells',
    'position_tables',
    'resize_bias_table',
    'resize_table',
    'rotary_tables',
]
