"""Checkpoint files: finding and downloading them, reading them safely, fitting their weights to a model."""

from mmpola.messages import UsageError


class CheckpointError(UsageError, ValueError):
    """A checkpoint cannot be downloaded or read, or does not fit the model it is loaded into."""
