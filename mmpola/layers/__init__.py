"""Layers with parameters: attention, patch embedding, transformer block, position tables."""

from mmpola.layers.block import TransformerBlock
from mmpola.layers.deformable_conv import DepthwiseDeformableConv
from mmpola.layers.patch_embed import PatchEmbed
from mmpola.layers.pola_attention import PolaAttention, PowerAttention, ReducedPolaAttention
from mmpola.layers.polarity_attention import PolarityAttention
from mmpola.layers.position import Grid, WithPositionTable, position_tables, resize_bias_table, resize_table
from mmpola.layers.rotary import rotary_tables
from mmpola.layers.sequence_attention import (
    SEQUENCE_ATTENTION,
    EluSequenceAttention,
    ExpSequenceAttention,
    PolaritySequenceAttention,
    PowerSequenceAttention,
    SequenceAttention,
    SoftmaxSequenceAttention,
)
from mmpola.layers.softmax_attention import RotarySoftmaxAttention, SpatialReductionAttention
from mmpola.layers.spiky_attention import SpikyAttention
from mmpola.layers.window_attention import WindowAttention
from mmpola.layers.windows import window_mask

__all__ = [
    'SEQUENCE_ATTENTION',
    'DepthwiseDeformableConv',
    'EluSequenceAttention',
    'ExpSequenceAttention',
    'Grid',
    'PatchEmbed',
    'PolaAttention',
    'PolarityAttention',
    'PolaritySequenceAttention',
    'PowerAttention',
    'PowerSequenceAttention',
    'ReducedPolaAttention',
    'RotarySoftmaxAttention',
    'SequenceAttention',
    'SoftmaxSequenceAttention',
    'SpatialReductionAttention',
    'SpikyAttention',
    'TransformerBlock',
    'WindowAttention',
    'WithPositionTable',
    'position_tables',
    'resize_bias_table',
    'resize_table',
    'rotary_tables',
    'window_mask',
]
