"""Checkpoint files: reading them safely, fitting their weights to a model, writing them atomically."""
