"""Read checkpoints without executing anything in them.

`torch.load(weights_only=True)` refuses a file that holds any class besides tensors and plain
containers. But the authors' files hold their yacs config, and training checkpoints of MMEngine's
own hook NumPy values. So an inert class stands for every other name while a file is read.
"""

from __future__ import annotations

import json
import pickle
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import torch

from mmpola.checkpoint import CheckpointError
from mmpola.checkpoint.grids import read_safetensors_metadata
from mmpola.checkpoint.hub import is_checkpoint
from mmpola.messages import first_line, listed

CLASSES_KEY = 'mmpola.classes'
"""Entry of a .safetensors file's metadata: the names of the classes by label, as JSON."""


def read_checkpoint(path: Path) -> Any:
    """Return the object that a checkpoint file holds, without executing anything in it.

    Args:
        path: of a file written by torch.save, or of a .safetensors file.

    Returns:
        The content; of a .safetensors file that names its classes, a `state_dict` beside a `meta`,
        as in MMEngine's files. Instances of classes that torch.load does not know are inert:
        NumPy's have no values, others are dicts.

    Raises:
        CheckpointError: the file is truncated or damaged, or is not a checkpoint.
    """
    if not is_checkpoint(path):
        raise CheckpointError(f'{path}: not a checkpoint, or truncated')
    try:
        if path.suffix == '.safetensors':
            from safetensors import safe_open
            from safetensors.torch import load_file

            with safe_open(path, framework='pt') as file:
                metadata = file.metadata()
            weights = read_safetensors_metadata(load_file(path), metadata)
            if metadata and CLASSES_KEY in metadata:
                meta = {'dataset_meta': {'classes': json.loads(metadata[CLASSES_KEY])}}
                return {'state_dict': weights, 'meta': meta}
            return weights
        return _read_file_of_torch(path)
    except CheckpointError:
        raise
    except Exception as error:  # torch, zipfile and pickle raise a dozen kinds for a broken file
        reason = first_line(error)
        raise CheckpointError(f'{path}: not a checkpoint, or truncated ({reason})') from error


def _read_file_of_torch(path: Path) -> Any:
    foreign: set[str] = set()
    if zipfile.is_zipfile(path):  # not the format before torch 1.6
        _check_sums(path)
        foreign.update(torch.serialization.get_unsafe_globals_in_checkpoint(path))
    stand_ins: list[Any] = [(inert(name), name) for name in foreign]
    with torch.serialization.safe_globals(stand_ins):
        try:
            return torch.load(path, map_location='cpu', weights_only=True)
        except (pickle.UnpicklingError, TypeError, ValueError) as error:
            # torch wraps the reason in twenty lines.
            reason = str(error.__context__ or error).partition('\n')[0]
            if foreign:
                reason += f'; besides tensors it holds {listed(sorted(foreign))}'
            raise CheckpointError(f'{path}: refused, nothing in it was run ({reason})') from error


def _check_sums(path: Path) -> None:
    """Raise CheckpointError if bytes of a zip file have changed; torch.load does not check that."""
    with zipfile.ZipFile(path) as archive:
        has_sums = any(entry.CRC for entry in archive.infolist())  # torch can be told to write none
        damaged = None
        if has_sums:
            damaged = archive.testzip()
    if damaged is not None:
        raise CheckpointError(
            f'{path}: damaged, the check sum of {damaged} is wrong; get the file from its source '
            'again'
        )


class _Inert:
    """Stands for any other class or function in a file: a call runs nothing, returns an empty dict.

    The dict gets the items and, as attributes, the state of the pickled instance.
    """

    def __new__(cls, *_: Any, **__: Any) -> Any:
        return OrderedDict[Any, Any]()  # the only dict torch fills that has attributes


class _InertValue:
    """Stands for NumPy's arrays, scalars and dtypes: their values are not read."""

    def __init__(self, *_: Any) -> None:
        pass

    def __setstate__(self, _: Any) -> None:
        pass


def inert(name: str) -> type[_Inert] | type[_InertValue]:
    """Return the class that stands for a class or function of that name in a checkpoint."""
    if name.startswith('numpy.'):
        return type(name, (_InertValue,), {})
    return type(name, (_Inert,), {})
