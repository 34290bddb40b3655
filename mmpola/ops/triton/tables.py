"""Launch tables: files with the launches that `python -m benchmarks.gpu` measured to be the fastest on a GPU.

The first of these files that exists and is valid for the GPU is used; launch.py has the launches that it lacks.

    1. the file that the environment variable MMPOLA_LAUNCHES names
    2. `mmpola/launches-GPU.json` in `$XDG_CACHE_HOME`, by default `~/.cache`: measured on the user's machine
    3. `tables/sm_XY.json` next to this module: shipped for the compute capability X.Y

If MMPOLA_LAUNCHES is set but empty, only the last is read. A file is read once per process and device.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

import torch

from mmpola.cache import cache_folder, file_name

ENVIRONMENT = 'MMPOLA_LAUNCHES'

FORMAT = 1
"""Increase it when launch tables change their meaning: older files are then ignored."""

FOLDER = Path(__file__).resolve().parent

ATTENTION_FIELDS = ('tokens', 'warps', 'stages', 'waves')
TILE_FIELDS = ('rows', 'columns', 'warps')
FIELDS = {
    **dict.fromkeys(('state', 'output', 'query_gradient', 'key_gradient'), ATTENTION_FIELDS),
    **dict.fromkeys(('mix_and_gate', 'mix_and_gate_gradient', 'mix_and_gate_taps'), TILE_FIELDS),
}
"""Kernel -> the fields of its launch, which are those of `Launch` or `Tile` in launch.py."""

POWERS_OF_TWO = {'tokens': 16, 'warps': 1, 'rows': 1, 'columns': 1}
"""Fields that Triton needs to be a power of two, with their smallest value."""


class Key(NamedTuple):
    """What a launch is looked up by; in a file the four words are separated by spaces.

    Args:
        kernel: of `FIELDS`.
        feature_map: 'power', 'exp', 'rotary' (an ExpMap with rotary tables) or, for `mix_and_gate`, 'any'.
        dtype: of the tokens, for example 'float16'.
        block: BD, the channels of a program.
    """

    kernel: str
    feature_map: str
    dtype: str
    block: int

    @classmethod
    def of(cls, kernel: str, feature_map: str, dtype: torch.dtype, block: int) -> Key:
        """Return the key with the name of a dtype."""
        return cls(kernel, feature_map, str(dtype).removeprefix('torch.'), block)

    def __str__(self) -> str:
        return ' '.join(map(str, self))


LaunchTable = dict[Key, dict[str, int]]
"""The launches of a GPU: fields of a `Launch` or a `Tile` by key."""


_replaced: list[LaunchTable] = []
_kept: list[Any] = []

F = TypeVar('F', bound=Callable[..., Any])


def kept_per_table(function: F) -> F:
    """Keep a function's results until another table is used."""
    _kept.append(lru_cache(maxsize=4096)(function))
    return cast(F, _kept[-1])


def launch_table(device: torch.device) -> LaunchTable:
    """Return the launch table of a device; it is empty where no file is valid."""
    return _replaced[-1] if _replaced else _read_table(device)


@contextmanager
def use_table(table: LaunchTable) -> Iterator[None]:
    """Use `table` on every device instead of any file, as the tuning does."""
    _replaced.append(table)
    _forget()
    try:
        yield
    finally:
        _replaced.pop()
        _forget()


def _forget() -> None:
    for function in _kept:
        function.cache_clear()


def user_table_path(gpu: str) -> Path:
    """Return the file of the user's own measurements on a GPU of that name."""
    return cache_folder() / f'launches-{file_name(gpu)}.json'


def gpu_of(device: torch.device) -> tuple[str, tuple[int, int]]:
    """Return name and compute capability of a device; the interpreter on a CPU has capability 0.0."""
    if device.type != 'cuda':
        return 'interpreter', (0, 0)
    return torch.cuda.get_device_name(device), torch.cuda.get_device_capability(device)


def versions() -> dict[str, str]:
    """Return the version of Triton and a digest of this folder's sources."""
    import triton

    digest = hashlib.sha256()
    for path in sorted(FOLDER.glob('*.py')):
        digest.update(path.read_bytes())
    return {'triton': triton.__version__, 'kernels': digest.hexdigest()[:16]}


def parse_table(content: Any, capability: tuple[int, int], *, is_shipped: bool = False) -> LaunchTable:
    """Return the table of a file's content.

    Args:
        capability: compute capability of the GPU.
        is_shipped: whether the file is part of the package; any other must have been measured with these kernels.

    Raises:
        ValueError: it is not a launch table, or one of another compute capability or of other kernels.
    """
    if not isinstance(content, dict) or not isinstance(content.get('launches'), dict):
        raise ValueError("expected an object with 'launches', as `python -m benchmarks.gpu` writes it")
    for name, expected in (('format', FORMAT), ('capability', list(capability))):
        if content.get(name) != expected:
            raise ValueError(f'{name}: expected {expected}, got {content.get(name)}')
    launches = dict(_parse_launch(name, launch) for name, launch in content['launches'].items())
    if content.get('kernels') != versions()['kernels'] and not is_shipped:
        raise ValueError('it was measured with other kernels, run `python -m benchmarks.gpu` again')
    return launches


def _parse_launch(name: str, launch: Any) -> tuple[Key, dict[str, int]]:
    words = name.split(' ')
    if len(words) != len(Key._fields) or words[0] not in FIELDS or not words[-1].isdecimal():
        raise ValueError(f"{name}: expected a name like 'state power float16 32', its first word one of {list(FIELDS)}")
    fields = {}
    for field_name in FIELDS[words[0]]:
        value, least = launch.get(field_name) if isinstance(launch, dict) else None, POWERS_OF_TWO.get(field_name)
        if not isinstance(value, int) or value < (least or 1) or (least and value & (value - 1)):
            rule = f'a power of two from {least}' if least else 'a positive integer'
            raise ValueError(f'{name}: {field_name}: expected {rule}, got {value}')
        fields[field_name] = value
    return Key(words[0], words[1], words[2], int(words[3])), fields


@cache
def _read_table(device: torch.device) -> LaunchTable:
    """Return the first valid table; log a warning for each file that is ignored."""
    gpu, capability = gpu_of(device)
    named = os.environ.get(ENVIRONMENT)
    shipped = FOLDER / 'tables' / 'sm_{}{}.json'.format(*capability)
    paths = [shipped]
    if named is None:
        paths.insert(0, user_table_path(gpu))
    elif named:
        paths.insert(0, Path(named))
    for path in paths:
        if not path.is_file() and str(path) != named:
            continue
        try:
            return parse_table(json.loads(path.read_bytes()), capability, is_shipped=path == shipped)
        except (OSError, ValueError) as error:  # JSON errors are ValueErrors
            logging.getLogger('mmpola').warning(f'launch table {path} is ignored: {error}')
    return LaunchTable()
