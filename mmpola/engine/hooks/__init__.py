"""Hooks: preemption, checkpoints, a stop at NaN, running statistics, compilation, a final test."""
