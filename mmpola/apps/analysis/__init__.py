"""What trained linear attention does with an image: weights, entropy, exponents, gates, rank."""

from mmpola.apps.analysis.analyze import analyze, check_points, figure_paths, parse_points
from mmpola.apps.analysis.attention_weights import (
    WEIGHT_KINDS,
    Factors,
    attention_rows,
    polarity_factors,
)
from mmpola.apps.analysis.capture import LayerInputs, choose_layers, linear_layers, observe
from mmpola.apps.analysis.layer_analysis import LayerAnalysis, analyze_layer
from mmpola.apps.analysis.statistics import (
    EffectiveRanks,
    GateStatistics,
    effective_rank,
    effective_ranks,
    gate_statistics,
    positive_sequence_entropy,
    row_entropies,
)

__all__ = [
    'WEIGHT_KINDS',
    'EffectiveRanks',
    'Factors',
    'GateStatistics',
    'LayerAnalysis',
    'LayerInputs',
    'analyze',
    'analyze_layer',
    'attention_rows',
    'check_points',
    'choose_layers',
    'effective_rank',
    'effective_ranks',
    'figure_paths',
    'gate_statistics',
    'linear_layers',
    'observe',
    'parse_points',
    'polarity_factors',
    'positive_sequence_entropy',
    'row_entropies',
]
