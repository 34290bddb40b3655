"""mmpola: polarity-aware linear attention backbones for OpenMMLab."""

__version__ = '0.1.0'
