"""Where a checkpoint may be written, and the plain values that anyone can read from one."""

from __future__ import annotations

import os
import pickletools
import zipfile
from collections import Counter, OrderedDict, deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mmpola.messages import UsageError

TRAINING_ENTRY = 'message_hub'
"""What MMEngine's files of a training run have, and files of weights have not."""


def check_destination(path: Path, overwrite: bool, source: Path | None = None) -> None:
    """Raise UsageError unless a file may be written to `path`; called before any work is done.

    Args:
        path: the file to write.
        overwrite: whether it may exist already.
        source: a file that is read for this one, and must be another.
    """
    if path.is_dir():
        raise UsageError(f'{path}: expected the name of a file to write, got a folder')
    if not path.parent.is_dir():
        raise UsageError(f'{path.parent}: no such folder to write into')
    if source is not None and path.exists() and path.samefile(source):
        rule = 'expected another file than the one that is read'
        raise UsageError(f'{path}: {rule}, got the same')
    if path.suffix == '.pth' and path.is_file() and is_of_training(path):
        rule = 'expected a file to write, got the checkpoint of a training run'
        raise UsageError(f'{path}: {rule}; name one checkpoint to read, and another file')
    if os.path.lexists(path) and not overwrite:
        raise UsageError(f'{path}: exists already; --overwrite replaces it')


def is_of_training(path: Path) -> bool:
    """Whether a file is a checkpoint with the state of a training run, also the best one's.

    The names in its pickle tell that; the tensors beside it, up to gigabytes, are not read.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            (pickled,) = [file for file in archive.namelist() if file.endswith('/data.pkl')]
            operations = pickletools.genops(archive.read(pickled))
            return any(argument == TRAINING_ENTRY for _, argument, _ in operations)
    except (zipfile.BadZipFile, ValueError):  # no file of torch.save, or a damaged one
        return False


def plain_values(value: Any) -> Any:
    """Turn NumPy values, configs and paths inside a nested value into plain Python values.

    `torch.load(weights_only=True)` reads the result anywhere. Values of other classes stay as they
    are.
    """
    if isinstance(value, (np.generic, np.ndarray)):
        return value.tolist()
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        items = {plain_values(key): plain_values(item) for key, item in value.items()}
        if type(value) is Counter:
            return Counter(items)
        if type(value) is OrderedDict:
            return OrderedDict(items)
        return items
    if isinstance(value, tuple):
        return tuple(plain_values(item) for item in value)
    if isinstance(value, (list, deque)):
        return [plain_values(item) for item in value]
    return value
