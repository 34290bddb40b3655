"""Hooks of a long training run: stopping and going on, safe checkpoints, what is slow, what is wrong with the data."""

from mmpola.classification.hooks.batch_size import BatchSizeHook
from mmpola.classification.hooks.checkpoint import AtomicCheckpointHook
from mmpola.classification.hooks.class_count import ClassCountHook
from mmpola.classification.hooks.mean_buffers import MeanBuffersHook
from mmpola.classification.hooks.preemption import PreemptionHook
from mmpola.classification.hooks.throughput import ThroughputHook
from mmpola.classification.hooks.unreadable_images import UnreadableImagesHook

__all__ = [
    'AtomicCheckpointHook',
    'BatchSizeHook',
    'ClassCountHook',
    'MeanBuffersHook',
    'PreemptionHook',
    'ThroughputHook',
    'UnreadableImagesHook',
]
