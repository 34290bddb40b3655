"""Hooks for long runs: preemption, atomic checkpoints, throughput, batch size, running statistics, compilation."""

from mmpola.engine.hooks.batch_size import BatchSizeHook
from mmpola.engine.hooks.checkpoint import AtomicCheckpointHook
from mmpola.engine.hooks.compile_backbone import CompileBackboneHook
from mmpola.engine.hooks.final_test import FinalTestHook
from mmpola.engine.hooks.finite import FiniteLossHook
from mmpola.engine.hooks.mean_buffers import MeanBuffersHook
from mmpola.engine.hooks.preemption import PreemptionHook
from mmpola.engine.hooks.throughput import ThroughputHook

__all__ = [
    'AtomicCheckpointHook',
    'BatchSizeHook',
    'CompileBackboneHook',
    'FinalTestHook',
    'FiniteLossHook',
    'MeanBuffersHook',
    'PreemptionHook',
    'ThroughputHook',
]
