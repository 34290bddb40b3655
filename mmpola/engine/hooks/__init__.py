"""Hooks for long runs: preemption, atomic checkpoints, a stop at NaN, running statistics, compilation, a final test."""
