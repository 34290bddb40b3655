"""The attention core: two operators, their feature maps and their backends."""

from mmpola.ops.api import (
    available_backends,
    mix_and_gate,
    polarity_attention,
    unavailable_backends,
)
from mmpola.ops.exp_map import ExpMap
from mmpola.ops.power_map import PowerMap

__all__ = [
    'ExpMap',
    'PowerMap',
    'available_backends',
    'mix_and_gate',
    'polarity_attention',
    'unavailable_backends',
]
