"""The attention core: two operators, their feature maps and their backends."""

from mmpola.ops.backends import available_backends, unavailable_backends
from mmpola.ops.feature_map import ExpMap, PowerMap
from mmpola.ops.mix_and_gate import mix_and_gate
from mmpola.ops.polarity_attention import polarity_attention

__all__ = [
    'ExpMap',
    'PowerMap',
    'available_backends',
    'mix_and_gate',
    'polarity_attention',
    'unavailable_backends',
]
