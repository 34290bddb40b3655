"""What trained linear attention does with an image: weights, entropy, gates, rank, parameters."""

from mmpola.papers.analysis.attention_weights import WEIGHT_KINDS, attention_rows
from mmpola.papers.analysis.capture import LayerInputs, choose_layers, linear_layers, observe
from mmpola.papers.analysis.figures import CHARTS, draw_maps, draw_sorted
from mmpola.papers.analysis.images import analyze, parse_points
from mmpola.papers.analysis.layer_analysis import LayerAnalysis, analyze_layer, query_maps
from mmpola.papers.analysis.scene import Scene, open_scene
from mmpola.papers.analysis.statistics import (
    EffectiveRanks,
    GateStatistics,
    effective_rank,
    effective_ranks,
    gate_statistics,
    positive_sequence_entropy,
    row_entropies,
)

__all__ = [
    'CHARTS',
    'WEIGHT_KINDS',
    'EffectiveRanks',
    'GateStatistics',
    'LayerAnalysis',
    'LayerInputs',
    'Scene',
    'analyze',
    'analyze_layer',
    'attention_rows',
    'choose_layers',
    'draw_maps',
    'draw_sorted',
    'effective_rank',
    'effective_ranks',
    'gate_statistics',
    'linear_layers',
    'observe',
    'open_scene',
    'parse_points',
    'positive_sequence_entropy',
    'query_maps',
    'row_entropies',
]
