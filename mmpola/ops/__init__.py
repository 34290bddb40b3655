"""The attention core: two operators, their feature maps and their backends."""

from mmpola.ops.api import mix_and_gate, polarity_attention
from mmpola.ops.backends import available_backends, unavailable_backends
from mmpola.ops.features import ExpMap, PowerMap

__all__ = [
    'ExpMap',
    'PowerMap',
    'available_backends',
    'mix_and_gate',
    'polarity_attention',
    'unavailable_backends',
]
