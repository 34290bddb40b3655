"""Checkpoint files: finding and downloading them, reading them safely, fitting their weights to a model."""


class CheckpointError(ValueError):
    """A checkpoint cannot be downloaded or read, or does not fit the model it is loaded into."""
