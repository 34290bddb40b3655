"""What trained linear attention does with an image: weights of queries, entropy, exponents, gates, effective rank."""

from mmpola.analysis.capture import LayerInputs, choose_layers, linear_layers, observe
from mmpola.analysis.entropy import positive_sequence_entropy, row_entropies
from mmpola.analysis.gates import GateStatistics, gate_statistics
from mmpola.analysis.layer import LayerAnalysis, analyse_layer
from mmpola.analysis.points import check_points, parse_points, token_at, token_stride
from mmpola.analysis.rank import EffectiveRanks, effective_rank, effective_ranks
from mmpola.analysis.run import Outcome, analyse, output_suffixes
from mmpola.analysis.weights import KINDS, Factors, attention_rows, polarity_factors

__all__ = [
    'KINDS',
    'EffectiveRanks',
    'Factors',
    'GateStatistics',
    'LayerAnalysis',
    'LayerInputs',
    'Outcome',
    'analyse',
    'analyse_layer',
    'attention_rows',
    'check_points',
    'choose_layers',
    'effective_rank',
    'effective_ranks',
    'gate_statistics',
    'linear_layers',
    'observe',
    'output_suffixes',
    'parse_points',
    'polarity_factors',
    'positive_sequence_entropy',
    'row_entropies',
    'token_at',
    'token_stride',
]
