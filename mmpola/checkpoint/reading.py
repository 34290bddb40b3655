"""Reading checkpoint files without executing what they contain.

torch.load(weights_only=True) refuses a class pickled beside the weights (the released files carry a yacs config), and
weights_only=False runs whatever the file says. This reader takes a third way: tensors and plain containers are built,
any other class becomes an inert stub, and any other call is refused.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

PUBLISHED = 'the released weights are in the Hugging Face repository ZachMeng/PolaFormer'

CALLABLE = {
    *(('torch._utils', name) for name in ('_rebuild_tensor', '_rebuild_tensor_v2', '_rebuild_parameter')),
    *(('collections', name) for name in ('OrderedDict', 'defaultdict', 'Counter', 'deque')),
    *(('pathlib', name) for name in ('PosixPath', 'PurePosixPath')),
    ('_codecs', 'encode'),
    *(('builtins', name) for name in ('set', 'frozenset', 'bytearray', 'complex', 'list', 'dict', 'int', 'float')),
    *(
        (module, name)
        for module in ('numpy.core.multiarray', 'numpy._core.multiarray')
        for name in ('scalar', '_reconstruct')
    ),
    ('numpy', 'ndarray'),
    ('numpy', 'dtype'),
    ('torch', 'Size'),
    ('torch', 'device'),
    ('torch.storage', 'UntypedStorage'),
    ('torch.storage', 'TypedStorage'),
}
"""What a file may call: constructors of tensors, arrays, plain containers and paths; none runs foreign code."""


MODULE_NAMES = {'__builtin__': 'builtins', 'copy_reg': 'copyreg', 'pathlib._local': 'pathlib'}
"""Modules as the pickle protocol of torch.save still calls them, and as Python 3.13 does."""


class CheckpointError(ValueError):
    """A file is not a readable checkpoint, or does not fit the model it is loaded into."""


class _RefuseCalls(type):
    """Metaclass of stubs: unpickling may make them (as `cls.__new__`), but no file may call one as a function."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        raise CheckpointError(f'the file calls {cls.__module__}.{cls.__qualname__} when read; refused, nothing was run')


class InertStub(dict[Any, Any], metaclass=_RefuseCalls):
    """What a pickled instance of any other class becomes: its items and state are kept, no method of it runs."""

    def __new__(cls, *args: Any, **kwargs: Any) -> InertStub:
        return dict.__new__(cls)

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def append(self, item: Any) -> None:
        self[len(self)] = item

    def extend(self, items: Any) -> None:
        for item in items:
            self.append(item)


class SafeUnpickler(pickle.Unpickler):
    """Builds tensors and containers; turns other classes into stubs; refuses other calls."""

    def find_class(self, module: str, name: str) -> Any:
        module = MODULE_NAMES.get(module, module)
        if (module, name) in CALLABLE:
            return super().find_class(module, name)
        if (module, name) == ('builtins', 'getattr'):
            return _attribute_of_stub
        value = getattr(torch, name, None) if module == 'torch' else None
        if isinstance(value, torch.dtype) or (value is not None and name.endswith('Storage')):
            return value
        return _RefuseCalls(name, (InertStub,), {'__module__': module})


def read_checkpoint(path: str | Path) -> Any:
    """Whatever object a checkpoint file holds, on the CPU, with nothing in it executed.

    Raises:
        FileNotFoundError: there is no such file; says where released weights are found.
        CheckpointError: the file is truncated, no checkpoint, or wants something called.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f'{path}: no such checkpoint file; {PUBLISHED}')
    safe_pickle = SimpleNamespace(
        Unpickler=SafeUnpickler, load=_load, UnpicklingError=pickle.UnpicklingError, __name__='mmpola safe pickle'
    )
    try:
        return torch.load(path, map_location='cpu', pickle_module=safe_pickle, weights_only=False)
    except CheckpointError as error:
        raise CheckpointError(f'{path}: {error}') from None
    except Exception as error:  # torch, zipfile and pickle raise a dozen kinds for a broken file
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CheckpointError(f'{path}: not a checkpoint, or truncated ({reason})') from error


def _attribute_of_stub(owner: Any, name: str) -> Any:
    """Stands for `getattr`: MMEngine's log history refers to its own methods by it. Of a stub it gives another stub."""
    if not isinstance(owner, _RefuseCalls):
        raise CheckpointError(f'the file looks up {name!r} of {owner!r} when read; refused, nothing was run')
    return _RefuseCalls(f'{owner.__qualname__}.{name}', (InertStub,), {'__module__': owner.__module__})


def _load(file: Any, **kwargs: Any) -> Any:
    return SafeUnpickler(file, **kwargs).load()


def allow_training_checkpoints() -> None:
    """Let torch.load, which since 2.6 reads weights only, take the log history that MMEngine's Runner saves."""
    from mmengine.logging import HistoryBuffer

    if torch.__version__ < '2.6':  # a TorchVersion, compared by number
        return
    scalars = [type(np.dtype(name)) for name in ('float64', 'float32', 'int64', 'int32', 'bool')]
    multiarray: Any = (np._core if hasattr(np, '_core') else np.core).multiarray
    torch.serialization.add_safe_globals(
        [
            HistoryBuffer,
            multiarray._reconstruct,
            multiarray.scalar,
            np.ndarray,
            np.dtype,
            *scalars,
            (_history_method, 'builtins.getattr'),
        ]
    )


def _history_method(owner: object, name: str) -> object:
    """Stands for `getattr` in checkpoints: the log history refers to its own methods by it, nothing else may."""
    from mmengine.logging import HistoryBuffer

    if owner is not HistoryBuffer:
        raise TypeError(f'a checkpoint may look up methods of HistoryBuffer only, not {name} of {owner!r}')
    return getattr(owner, name)
