"""Hooks: preemption, checkpoints, a stop at NaN, buffers, compilation, pictures, a final test."""
