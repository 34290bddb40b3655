"""The attention core: one operator, its feature maps and its backends."""

from mmpola.ops.backends import available_backends, unavailable_backends
from mmpola.ops.feature_map import ExpMap, PowerMap
from mmpola.ops.polarity_attention import polarity_attention

__all__ = ['ExpMap', 'PowerMap', 'available_backends', 'polarity_attention', 'unavailable_backends']
