"""Checkpoint files: reading them safely, fitting their weights to a model, holding trainings against configs."""
