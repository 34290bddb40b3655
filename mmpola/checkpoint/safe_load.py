"""Read files of other people without executing what they contain.

Checkpoints are read by `torch.load(weights_only=True)`. It refuses a file with any class besides
tensors and plain containers, so for this one load every other name in the file stands for an inert
class: the authors' files hold their yacs config, older training checkpoints MMEngine's log history.
Pickled data sets are read by `SafeUnpickler`, which knows plain values and NumPy arrays and refuses
everything else.
"""

from __future__ import annotations

import _codecs
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
from mmpola.checkpoint.hub import remove_and_repeat, resolve_checkpoint
from mmpola.messages import first_line, listed, printable

LOG_HISTORY = 'mmengine.logging.history_buffer.HistoryBuffer'
"""The class in which MMEngine's Runner saves the scalars that it logged."""


class _Dtype:
    """Stands in for numpy.dtype: a file may name a dtype, but not its flags, by which NumPy would trust pointers."""

    def __init__(self, name: str | bytes, *_: Any) -> None:
        self.dtype = np.dtype(name.decode() if isinstance(name, bytes) else str(name))
        if self.dtype.kind not in 'biufcSUO':
            raise CheckpointError(
                f'dtype: expected booleans, numbers, text or objects, got {self.dtype}'
            )

    def __setstate__(self, state: Any) -> None:
        order: Any = state[1].decode() if isinstance(state[1], bytes) else state[1]
        if order in ('<', '>'):
            self.dtype = self.dtype.newbyteorder(order)


class _Array(np.ndarray[Any, Any]):
    """Stands in for numpy.ndarray and for its constructor: a file may fill an array once, with what fits its shape."""

    def __new__(cls, *_: Any) -> _Array:
        return super().__new__(cls, 0)

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, fortran, data = state
        kind, size = (list, 1) if dtype.dtype.hasobject else (bytes, dtype.dtype.itemsize)
        fits = type(data) is kind and all(type(n) is int and n >= 0 for n in shape)
        if self.size or not fits or math.prod(shape) * size != len(data):
            raise CheckpointError(
                f'array: expected {kind.__name__} that fill the shape {shape} once'
            )
        state = (1, shape, dtype.dtype, bool(fortran), data)
        super().__setstate__(state)


class _Scalar:
    """Stands in for NumPy's constructor of scalars: returns the number or text as a plain Python value."""

    def __new__(cls, dtype: _Dtype, data: bytes) -> Any:
        return np.frombuffer(data, dtype.dtype, 1)[0].item()

    def __setstate__(self, state: Any) -> None:
        raise CheckpointError('a scalar has no state')


NUMPY = {
    'numpy.dtype': _Dtype,
    'numpy.ndarray': _Array,
    **{f'numpy.{core}.multiarray._reconstruct': _Array for core in ('core', '_core')},
    **{f'numpy.{core}.multiarray.scalar': _Scalar for core in ('core', '_core')},
}
"""What the names stand for by which files build arrays and scalars. Each class defines `__setstate__`: without it, a
pickle could assign attributes of the class itself."""


class _Inert:
    """Stands in for any other class or function of a checkpoint: a call returns an empty dict and runs nothing.

    The dict gets the items and, as attributes, the state of the pickled instance; `pickled_class`
    is its class.
    """

    def __new__(cls, *_: Any, **__: Any) -> Any:
        stub = OrderedDict[Any, Any]()  # of the dicts that torch fills, the one that has attributes
        vars(stub)['pickled_class'] = cls.__name__
        return stub


def inert(name: str) -> type[_Inert]:
    """Return what stands for a class or function of that name in a checkpoint."""
    return type(name, (_Inert,), {})


def _attribute(*_: Any) -> type[_Inert]:
    """Stands in for `getattr`, by which a file refers to methods and to classes inside of classes."""
    return _Inert


class SafeUnpickler(pickle.Unpickler):
    """An unpickler of plain values and of NumPy arrays of booleans, numbers, text and plain values."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == (
            '_codecs',
            'encode',
        ):  # how protocol 2 writes bytes; a built-in function has no state
            return _codecs.encode
        if found := NUMPY.get(f'{module}.{name}'):
            return found
        raise CheckpointError(f'the file calls {module}.{name} when read; refused, nothing was run')


def read_checkpoint(name: str | Path, map_location: Any = 'cpu') -> Any:
    """Return the object that a checkpoint file holds, without executing anything in it.

    Args:
        name: path or name, see `resolve_checkpoint`, of a file written by torch.save, or a
            .safetensors file.
        map_location: as in torch.load; for a .safetensors file a device.

    Returns:
        The content. An instance of any class that torch.load does not know is a dict, see
        `stubs_in`.

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
        names = _foreign_names(path)
        stand_ins = {'builtins.getattr': _attribute, **NUMPY}
        replaced: list[Any] = [
            (_Inert, 'an attribute'),
            *((stand_ins.get(name) or inert(name), name) for name in names),
        ]
        with torch.serialization.safe_globals(replaced):
            try:
                return torch.load(path, map_location=map_location, weights_only=True)
            except (pickle.UnpicklingError, TypeError, ValueError) as error:
                reason = str(error.__context__ or error).partition('\n')[
                    0
                ]  # torch wraps the reason in twenty lines
                besides = f'; besides tensors it holds {listed(sorted(names))}' if names else ''
                raise CheckpointError(
                    f'refused, nothing in it was run ({reason}{besides})'
                ) from error


def _foreign_names(path: Path) -> set[str]:
    """Return the names of classes and functions in a checkpoint, at least of all that torch does not know."""
    with path.open('rb') as file:
        if file.read(2) == b'PK':
            _check_sums(path)
            return set(torch.serialization.get_unsafe_globals_in_checkpoint(path))
        file.seek(
            0
        )  # the format before torch 1.6: pickles of a magic number, a version, the system and the content
        found = [
            str(arg)
            for _ in range(4)
            for op, arg, _ in pickletools.genops(file)
            if op.name == 'GLOBAL'
        ]
    return {name.replace(' ', '.').replace('__builtin__', 'builtins') for name in found}


def _check_sums(path: Path) -> None:
    """Raise CheckpointError if bytes of a zip file have changed; torch.load does not compare its check sums."""
    with zipfile.ZipFile(path) as archive:
        sums = any(entry.CRC for entry in archive.infolist())  # torch can be told to write none
        if sums and (entry := archive.testzip()):
            remedy = remove_and_repeat(path) or '; restore the file from its source'
            raise CheckpointError(f'damaged, the check sum of {entry} is wrong{remedy}')


def read_pickle(path: str | Path, encoding: str = 'ASCII') -> Any:
    """Return the object in a pickle file, without executing anything in it.

    Args:
        path: a file of any protocol, also one that Python 2 wrote.
        encoding: of Python 2's strings; 'bytes' returns them as bytes.

    Raises:
        OSError: the file cannot be opened.
        CheckpointError: the file is truncated, is not a pickle, or calls a function.
    """
    with open(path, 'rb') as file, _errors_in_one_line(path, 'a pickle'):
        return SafeUnpickler(file, encoding=encoding).load()


@contextmanager
def _errors_in_one_line(path: str | Path, kind: str) -> Iterator[None]:
    """Turn the errors of reading a file into `CheckpointError`s of one line that name it."""
    try:
        yield
    except CheckpointError as error:
        raise CheckpointError(printable(f'{path}: {error}')) from None
    except Exception as error:  # torch, zipfile and pickle raise a dozen kinds for a broken file
        remedy = remove_and_repeat(path)
        message = f'{path}: not {kind}, or truncated ({first_line(error)}){remedy}'
        raise CheckpointError(printable(message)) from error


def stubs_in(content: Any) -> set[str]:
    """Return the names of the classes whose instances inside `content` were replaced by dicts without the class."""
    if isinstance(content, OrderedDict) and (name := vars(content).get('pickled_class')):
        return {str(name)}
    if isinstance(content, Mapping):
        content = content.values()
    elif not isinstance(content, (list, tuple)):
        return set()
    return {name for inner in content for name in stubs_in(inner)}


def register_mmengine_reader(already_read: dict[str, Any] | None = None) -> None:
    """Make MMEngine read checkpoints with `read_checkpoint`, in resuming as in `init_cfg` and `load_from`.

    Args:
        already_read: contents by path. MMEngine gets these instead of reading the file again; each
            is then removed from this dict, so that its memory is freed.
    """
    from mmengine.runner.checkpoint import CheckpointLoader

    contents = {} if already_read is None else already_read

    def load_from_name(
        filename: str, map_location: Any = None
    ) -> Any:  # MMEngine logs the name after `load_from_`
        if filename in contents:
            return contents.pop(filename)
        return read_checkpoint(filename, map_location)

    CheckpointLoader.register_scheme(
        prefixes=('', 'http://', 'https://'), loader=load_from_name, force=True
    )
