"""Hooks for long runs: preemption, atomic checkpoints, a stop at NaN, running statistics, compilation, a final test."""

from mmpola.engine.hooks.checkpoint import AtomicCheckpointHook
from mmpola.engine.hooks.compile_backbone import CompileBackboneHook
from mmpola.engine.hooks.final_test import FinalTestHook
from mmpola.engine.hooks.finite import FiniteLossHook
from mmpola.engine.hooks.mean_buffers import MeanBuffersHook
from mmpola.engine.hooks.preemption import PreemptionHook

__all__ = [
    'AtomicCheckpointHook',
    'CompileBackboneHook',
    'FinalTestHook',
    'FiniteLossHook',
    'MeanBuffersHook',
    'PreemptionHook',
]
