"""Read checkpoints without executing anything in them.

`torch.load(weights_only=True)` refuses a file that holds any class besides tensors and plain
containers. But the authors' files hold their yacs config, and older training checkpoints MMEngine's
log history. So an inert class stands for every other name while a file is read. NumPy's arrays and
scalars are read by stand-ins that check them.
"""

from __future__ import annotations

import math
import pickle
import pickletools
import zipfile
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mmpola.checkpoint import CheckpointError
from mmpola.checkpoint.hub import download_again_advice, resolve_checkpoint
from mmpola.messages import first_line, listed, printable

LOG_HISTORY = 'mmengine.logging.history_buffer.HistoryBuffer'
"""The class in which MMEngine's Runner saves the scalars that it logged."""


def read_checkpoint(name: str | Path, map_location: Any = 'cpu') -> Any:
    """Find a checkpoint file and return the object that it holds, without executing anything in it.

    Args:
        name: path or name, see `resolve_checkpoint`, of a file written by torch.save, or a
            .safetensors file.
        map_location: as in torch.load; for a .safetensors file a device.

    Returns:
        The content. Instances of classes that torch.load does not know are dicts, see `stubs_in`.

    Raises:
        FileNotFoundError: there is no such file.
        CheckpointError: the file cannot be downloaded, is truncated or damaged, or is not a
            checkpoint.
    """
    path = resolve_checkpoint(name)
    with _errors_in_one_line(path, 'a checkpoint'):
        if path.suffix == '.safetensors':
            from safetensors.torch import load_file

            return load_file(path, device=str(map_location or 'cpu'))
        foreign = _foreign_names(path)
        stand_ins: list[Any] = [(_Inert, 'an attribute')]  # what `_attribute` returns
        for foreign_name in foreign:
            stand_ins.append((_stand_in(foreign_name), foreign_name))
        with torch.serialization.safe_globals(stand_ins):
            try:
                return torch.load(path, map_location=map_location, weights_only=True)
            except (pickle.UnpicklingError, TypeError, ValueError) as error:
                # torch wraps the reason in twenty lines.
                reason = str(error.__context__ or error).partition('\n')[0]
                if foreign:
                    reason += f'; besides tensors it holds {listed(sorted(foreign))}'
                raise CheckpointError(f'refused, nothing in it was run ({reason})') from error


def _foreign_names(path: Path) -> set[str]:
    """Return the names of classes and functions in a file that torch may not know."""
    with path.open('rb') as file:
        is_zip = file.read(2) == b'PK'
    if is_zip:
        _check_sums(path)
        found = set(torch.serialization.get_unsafe_globals_in_checkpoint(path))
    else:
        # Before torch 1.6: four pickles, a magic number, a version, the system and the content.
        found = set()
        with path.open('rb') as file:
            for _ in range(4):
                for opcode, argument, _ in pickletools.genops(file):
                    if opcode.name == 'GLOBAL':
                        found.add(str(argument))
    return {name.replace(' ', '.').replace('__builtin__', 'builtins') for name in found}


def _check_sums(path: Path) -> None:
    """Raise CheckpointError if bytes of a zip file have changed; torch.load does not check that."""
    with zipfile.ZipFile(path) as archive:
        has_sums = any(entry.CRC for entry in archive.infolist())  # torch can be told to write none
        damaged = None
        if has_sums:
            damaged = archive.testzip()
    if damaged is not None:
        remedy = download_again_advice(path) or '; restore the file from its source'
        raise CheckpointError(f'damaged, the check sum of {damaged} is wrong{remedy}')


@contextmanager
def _errors_in_one_line(path: str | Path, kind: str) -> Iterator[None]:
    """Turn the errors of reading a file into `CheckpointError`s of one line that name it."""
    try:
        yield
    except CheckpointError as error:
        raise CheckpointError(printable(f'{path}: {error}')) from None
    except Exception as error:  # torch, zipfile and pickle raise a dozen kinds for a broken file
        remedy = download_again_advice(path)
        message = f'{path}: not {kind}, or truncated ({first_line(error)}){remedy}'
        raise CheckpointError(printable(message)) from error


class _Inert:
    """Stands for any other class or function in a file: a call runs nothing, returns an empty dict.

    The dict gets the items and, as attributes, the state of the pickled instance; `pickled_class`
    is its class.
    """

    def __new__(cls, *_: Any, **__: Any) -> Any:
        stub = OrderedDict[Any, Any]()  # the only dict torch fills that has attributes
        vars(stub)['pickled_class'] = cls.__name__
        return stub


def inert(name: str) -> type[_Inert]:
    """Return the class that stands for a class or function of that name in a checkpoint."""
    return type(name, (_Inert,), {})


def stubs_in(content: Any) -> set[str]:
    """Return the names of the classes whose instances inside `content` were replaced by dicts."""
    if isinstance(content, OrderedDict) and 'pickled_class' in vars(content):
        return {str(vars(content)['pickled_class'])}
    if isinstance(content, Mapping):
        items = list(content.values())
    elif isinstance(content, (list, tuple)):
        items = list(content)
    else:
        return set()
    names = set()
    for item in items:
        names |= stubs_in(item)
    return names


def _attribute(*_: Any) -> type[_Inert]:
    """Stands for `getattr`, by which a file names methods and classes inside of classes."""
    return _Inert


class _Dtype:
    """Stands for numpy.dtype: a file may name a dtype, but not set its flags.

    With flags of its choice, a file could make NumPy take its bytes for pointers.
    """

    def __init__(self, name: str | bytes, *_: Any) -> None:
        if isinstance(name, bytes):
            name = name.decode()
        self.dtype = np.dtype(str(name))
        if self.dtype.kind not in 'biufcSUO':
            rule = 'expected booleans, numbers, text or objects'
            raise CheckpointError(f'dtype: {rule}, got {self.dtype}')

    def __setstate__(self, state: Any) -> None:
        byte_order = state[1]
        if isinstance(byte_order, bytes):
            byte_order = byte_order.decode()
        if byte_order in ('<', '>'):
            self.dtype = self.dtype.newbyteorder(byte_order)


class _Array(np.ndarray[Any, Any]):
    """Stands for numpy.ndarray and its constructor: a file may fill an array once, to its shape."""

    def __new__(cls, *_: Any) -> _Array:
        return super().__new__(cls, 0)

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, fortran, data = state
        expected: Any = bytes
        size = dtype.dtype.itemsize
        if dtype.dtype.hasobject:
            expected = list
            size = 1
        is_shape = all(type(length) is int and length >= 0 for length in shape)
        fits = is_shape and type(data) is expected and len(data) == math.prod(shape) * size
        if self.size or not fits:
            rule = f'expected {expected.__name__} that fill the shape {shape} once'
            raise CheckpointError(f'array: {rule}')
        checked: Any = (1, shape, dtype.dtype, bool(fortran), data)
        super().__setstate__(checked)


class _Scalar:
    """Stands for NumPy's constructor of scalars: returns a plain Python number or text."""

    def __new__(cls, dtype: _Dtype, data: bytes) -> Any:
        return np.frombuffer(data, dtype.dtype, 1)[0].item()

    def __setstate__(self, state: Any) -> None:
        raise CheckpointError('a scalar has no state')


NUMPY_STAND_INS = {
    'numpy.dtype': _Dtype,
    'numpy.ndarray': _Array,
    'numpy.core.multiarray._reconstruct': _Array,
    'numpy._core.multiarray._reconstruct': _Array,
    'numpy.core.multiarray.scalar': _Scalar,
    'numpy._core.multiarray.scalar': _Scalar,
}
"""Stand-ins for the classes and functions by which files build arrays and scalars.

Each defines `__setstate__`: without it, a pickle could assign attributes of the class itself.
"""


def _stand_in(name: str) -> Any:
    """Return the stand-in for a name that torch.load does not know."""
    if name == 'builtins.getattr':
        return _attribute
    if name in NUMPY_STAND_INS:
        return NUMPY_STAND_INS[name]
    return inert(name)
