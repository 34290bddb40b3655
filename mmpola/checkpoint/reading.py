"""The one policy for unpickling: read checkpoint files without executing what they contain.

torch.load(weights_only=True) refuses any class that is pickled next to the weights (the released files contain a yacs
config), and weights_only=False executes any code in the file. Here `resolve` decides about every name in a file:
tensors, plain containers and MMEngine's log history are built, any other class becomes an inert stub, and any other
call is refused.

`read_checkpoint` applies the policy directly; `read_pickle` and `read_array` apply it to data sets.
`register_mmengine_reader` and `extend_torch_allow_list` apply it to files that MMEngine, OpenMMLab's scripts and timm
open themselves.
"""

from __future__ import annotations

import pickle
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from mmpola.checkpoint import CheckpointError
from mmpola.checkpoint.hub import local_checkpoint

LOG_HISTORY = ('mmengine.logging.history_buffer', 'HistoryBuffer')
"""(module, class) in which MMEngine's Runner saves the scalars that it logged; `--resume` needs it rebuilt."""

BUILT = {
    *(('torch._utils', name) for name in ('_rebuild_tensor', '_rebuild_tensor_v2', '_rebuild_parameter')),
    *(('torch', name) for name in ('Size', 'device')),
    *(('torch.storage', name) for name in ('UntypedStorage', 'TypedStorage')),
    *(('collections', name) for name in ('OrderedDict', 'defaultdict', 'Counter', 'deque')),
    *(('pathlib', name) for name in ('PosixPath', 'PurePosixPath')),
    ('_codecs', 'encode'),
    *(('builtins', name) for name in ('set', 'frozenset', 'bytearray', 'complex', 'list', 'dict', 'int', 'float')),
    *(
        (module, name)
        for module in ('numpy.core.multiarray', 'numpy._core.multiarray')
        for name in ('scalar', '_reconstruct')
    ),
    *(('numpy', name) for name in ('ndarray', 'dtype')),
    LOG_HISTORY,
}
"""(module, name) of what a file may construct: tensors, arrays, containers, paths, logs. None executes foreign code."""

RENAMED_MODULES = {'__builtin__': 'builtins', 'copy_reg': 'copyreg', 'pathlib._local': 'pathlib'}
"""Module names as protocol 2, which torch.save uses, and Python 3.13 write them."""

DICTS_FOR_TORCH = ('yacs.config.CfgNode',)
"""Subclasses of dict in released files. torch.load accepts only listed names and can fill instances of a few types, not
of inert stubs, so it builds each of these as an OrderedDict, without the class."""

NUMPY_SCALARS = ('float64', 'float32', 'int64', 'int32', 'bool')
"""NumPy dtypes that occur in a log history; torch.load needs their types in its allow list."""


class _RefuseCalls(type):
    """Metaclass of stubs: the unpickler may create instances (by `cls.__new__`), but a file may not call the class."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        raise CheckpointError(f'the file calls {cls.__module__}.{cls.__qualname__} when read; refused, nothing was run')


class InertStub(dict[Any, Any], metaclass=_RefuseCalls):
    """Stands in for a pickled instance of any other class: keeps its items and state, runs none of its methods."""

    def __new__(cls, *args: Any, **kwargs: Any) -> InertStub:
        return dict.__new__(cls)

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def append(self, item: Any) -> None:
        self[len(self)] = item

    def extend(self, items: Any) -> None:
        for item in items:
            self.append(item)


def resolve(module: str, name: str) -> Any:
    """Return what a name in a pickle refers to: the object itself if it is in `BUILT`, else an inert stub class."""
    module = RENAMED_MODULES.get(module, module)
    if (module, name) in BUILT:
        try:
            return getattr(import_module(module), name)
        except (ImportError, AttributeError):  # MMEngine is optional; NumPy 1 has no numpy._core
            return _stub(module, name)
    if (module, name) == ('builtins', 'getattr'):
        return _get_attribute
    value = getattr(torch, name, None) if module == 'torch' else None
    if isinstance(value, torch.dtype) or (value is not None and name.endswith('Storage')):
        return value
    return _stub(module, name)


def _stub(module: str, name: str) -> _RefuseCalls:
    return _RefuseCalls(name, (InertStub,), {'__module__': module})


def _get_attribute(owner: Any, name: str) -> Any:
    """Replacement for `getattr`, by which a pickled log history refers to its public methods; refuses anything else."""
    if isinstance(owner, _RefuseCalls):
        return _stub(owner.__module__, f'{owner.__qualname__}.{name}')
    if owner is resolve(*LOG_HISTORY) and not name.startswith('_'):
        return getattr(owner, name)
    raise CheckpointError(f'the file looks up {name!r} of {owner!r} when read; refused, nothing was run')


class SafeUnpickler(pickle.Unpickler):
    """An unpickler that follows `resolve`."""

    def find_class(self, module: str, name: str) -> Any:
        return resolve(module, name)


def read_checkpoint(name: str | Path, map_location: Any = 'cpu') -> Any:
    """Return the object that a checkpoint file holds, without executing anything in it.

    Args:
        name: path or name, see `local_checkpoint`, of a file written by torch.save, or a .safetensors file.
        map_location: as in torch.load; for a .safetensors file a device.

    Raises:
        FileNotFoundError: there is no such file.
        CheckpointError: the file cannot be downloaded, is truncated, is not a checkpoint, or calls a function.
    """
    path = local_checkpoint(name)
    safe_pickle = SimpleNamespace(
        Unpickler=SafeUnpickler,
        load=lambda file, **options: SafeUnpickler(file, **options).load(),
        UnpicklingError=pickle.UnpicklingError,
        __name__='mmpola safe pickle',
    )
    with _errors_in_one_line(path, 'a checkpoint'):
        if path.suffix == '.safetensors':
            from safetensors.torch import load_file

            return load_file(path, device=str(map_location or 'cpu'))
        return torch.load(path, map_location=map_location, pickle_module=safe_pickle, weights_only=False)


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


def read_array(path: str | Path) -> np.ndarray[Any, Any]:
    """Return the array in an .npy file, without executing anything in it; NumPy pickles the items of object arrays.

    Raises:
        OSError, CheckpointError: as in `read_pickle`.
    """
    with open(path, 'rb') as file, _errors_in_one_line(path, 'an array'):
        try:
            return np.lib.format.read_array(file, allow_pickle=False)
        except ValueError:  # perhaps an object array, whose header NumPy has read
            file.seek(0)
            version = np.lib.format.read_magic(file)
            read_header = (
                np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            )
            if not read_header(file)[2].hasobject:
                raise
            return np.asarray(SafeUnpickler(file, encoding='latin1').load(), dtype=object)


@contextmanager
def _errors_in_one_line(path: str | Path, kind: str) -> Iterator[None]:
    """Turn the errors of reading a file into `CheckpointError`s of one line that name it."""
    try:
        yield
    except CheckpointError as error:
        raise CheckpointError(f'{path}: {error}') from None
    except Exception as error:  # torch, zipfile and pickle raise a dozen kinds for a broken file
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CheckpointError(f'{path}: not {kind}, or truncated ({reason})') from error


def stubs_in(content: Any) -> set[str]:
    """Return the names of the classes whose instances inside `content` were replaced by stubs."""
    if isinstance(content, InertStub):
        return {f'{type(content).__module__}.{type(content).__qualname__}'}
    if isinstance(content, Mapping):
        content = content.values()
    elif not isinstance(content, (list, tuple)):
        return set()
    return {name for inner in content for name in stubs_in(inner)}


def register_mmengine_reader(already_read: dict[str, Any] | None = None) -> None:
    """Make MMEngine read checkpoints with `read_checkpoint`, in resuming as in `init_cfg` and `load_from`.

    Names of other schemes, such as `torchvision://`, are still opened by torch.load, whose allow list is extended by
    the same policy.

    Args:
        already_read: contents by path. MMEngine gets these instead of reading the file again; each is then removed from
            this dict, so that its memory is freed.
    """
    from mmengine.runner.checkpoint import CheckpointLoader

    contents = {} if already_read is None else already_read

    def load_from_name(filename: str, map_location: Any = None) -> Any:  # MMEngine logs the name after `load_from_`
        if filename in contents:
            return contents.pop(filename)
        return read_checkpoint(filename, map_location)

    CheckpointLoader.register_scheme(prefixes=('', 'http://', 'https://'), loader=load_from_name, force=True)
    extend_torch_allow_list()


def extend_torch_allow_list() -> None:
    """Let torch.load(weights_only=True), as in timm and mmdet, read the files that `read_checkpoint` reads.

    torch resolves only names that are listed beforehand, so a file with a class that is neither in `BUILT` nor in
    `DICTS_FOR_TORCH` is refused.
    """
    if torch.__version__ < '2.6':  # a TorchVersion, compared by number; older versions accept no names
        return
    names = [key for key in BUILT if not key[0].startswith('torch')]  # torch lists its own
    allowed = [(resolve(*key), '.'.join(key)) for key in (*names, ('builtins', 'getattr'))]
    allowed += [(OrderedDict, name) for name in DICTS_FOR_TORCH]
    torch.serialization.add_safe_globals([*allowed, *(type(np.dtype(name)) for name in NUMPY_SCALARS)])
