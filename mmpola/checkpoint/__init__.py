"""Checkpoint files: find and download them, read them safely, load their weights into a model.

The steps, each in its module: `hub` finds a file by its name and downloads it, `safe_load` reads it
without executing anything in it, `contents` finds the weights in it, and `load` renames its
tensors, has `adapt` adapt them, compares them with the model and loads all of them or none.
`init_cfg` starts this for the `init_cfg` of a config. `write` checks destinations and makes
contents plain before `mmpola.files` writes them whole or not at all.
"""

from mmpola.messages import UsageError


class CheckpointError(UsageError, ValueError):
    """A checkpoint cannot be downloaded or read, or does not fit the model."""
