"""Launch tables: the launches that `python -m benchmarks.gpu` found to be fastest on a GPU.

The environment variable MMPOLA_LAUNCHES names the file of a table; if it is set but empty, there is
no table. If it is not set, the file is `tables/sm_XY.json` next to this module, as far as one is
shipped for the compute capability X.Y. A file that was measured with another release of Triton is
not used. launch.py has the launches that a table lacks. A file is read once per process and device.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

import torch

from mmpola.ops.triton import VERSION

ENVIRONMENT = 'MMPOLA_LAUNCHES'

FORMAT = 2
"""Increase it when launch tables change their meaning: older files are then invalid."""

FOLDER = Path(__file__).resolve().parent

ATTENTION_FIELDS = ('tokens', 'warps', 'stages', 'waves', 'share')
TILE_FIELDS = ('rows', 'columns', 'warps')
LAUNCH_FIELDS = {
    'state': ATTENTION_FIELDS,
    'output': ATTENTION_FIELDS,
    'query_gradient': ATTENTION_FIELDS,
    'key_gradient': ATTENTION_FIELDS,
    'mix_and_gate': TILE_FIELDS,
    'mix_and_gate_taps': TILE_FIELDS,
}
"""Kernel -> the fields of its launch, which are those of `Launch` or `Tile` in launch.py."""

LIMITS = {
    'tokens': (16, 256),
    'warps': (1, 16),
    'stages': (1, 8),
    'waves': (1, 64),
    'share': (1, 1000),
    'rows': (1, 256),
    'columns': (1, 256),
}
"""Smallest and largest value of a field."""

POWERS_OF_TWO = ('tokens', 'warps', 'rows', 'columns')

KEY_PATTERN = re.compile(r'(\w+) (power|exp|rotary|any) (float16|bfloat16|float32) (16|32|64)')
"""The four words of a `Key` in a file."""


class Key(NamedTuple):
    """What a launch is looked up by; in a file the four words are separated by spaces.

    Args:
        kernel: of `LAUNCH_FIELDS`.
        feature_map: 'power', 'exp', 'rotary' (an ExpMap with rotary tables) or, for `mix_and_gate`,
            'any'.
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
        return f'{self.kernel} {self.feature_map} {self.dtype} {self.block}'


LaunchTable = dict[Key, dict[str, int]]
"""The launches of a GPU: fields of a `Launch` or a `Tile` by key."""


_tables_in_use: list[LaunchTable] = []
"""Tables of `use_table`, the innermost one last."""

_cached_functions: list[Any] = []

F = TypeVar('F', bound=Callable[..., Any])


def cached_per_table(function: F) -> F:
    """Cache a function's results until another table is used."""
    cached = lru_cache(maxsize=4096)(function)
    _cached_functions.append(cached)
    return cast(F, cached)


def launch_table(device: torch.device) -> LaunchTable:
    """Return the launch table of a device, which is empty without a file.

    Raises:
        ValueError: the file is missing or invalid; the message says what is wrong in it.
    """
    if _tables_in_use:
        return _tables_in_use[-1]
    return _read_table(device)


@contextmanager
def use_table(table: LaunchTable) -> Iterator[None]:
    """Use `table` on every device instead of any file, as the tuning does."""
    _tables_in_use.append(table)
    _clear_caches()
    try:
        yield
    finally:
        _tables_in_use.pop()
        _clear_caches()


def _clear_caches() -> None:
    for function in _cached_functions:
        function.cache_clear()


def gpu_of(device: torch.device) -> tuple[str, tuple[int, int]]:
    """Return the name and the compute capability of a device, (0, 0) for the interpreter."""
    if device.type != 'cuda':
        return 'interpreter', (0, 0)
    return torch.cuda.get_device_name(device), torch.cuda.get_device_capability(device)


def parse_table(content: Any, capability: tuple[int, int]) -> LaunchTable:
    """Return the table of a file's content.

    Args:
        capability: compute capability of the GPU.

    Raises:
        ValueError: it is not a launch table, or one of another compute capability.
    """
    if not isinstance(content, dict) or not isinstance(content.get('launches'), dict):
        raise ValueError(
            "expected an object with 'launches', as `python -m benchmarks.gpu` writes it"
        )
    for name, expected in (('format', FORMAT), ('capability', list(capability))):
        if content.get(name) != expected:
            raise ValueError(f'{name}: expected {expected}, got {content.get(name)}')
    table = {}
    for name, launch in content['launches'].items():
        key = _parse_key(name)
        table[key] = _parse_launch(name, LAUNCH_FIELDS[key.kernel], launch)
    return table


def _parse_key(name: str) -> Key:
    words = KEY_PATTERN.fullmatch(name)
    if words is None or words[1] not in LAUNCH_FIELDS:
        raise ValueError(
            f"{name}: expected a name like 'state power float16 32', its first word one of "
            f'{list(LAUNCH_FIELDS)}'
        )
    return Key(words[1], words[2], words[3], int(words[4]))


def _parse_launch(name: str, required: Sequence[str], launch: Any) -> dict[str, int]:
    """Return the required fields of the launch called `name`; ValueError if one is invalid."""
    if not isinstance(launch, dict):
        launch = {}
    fields = {}
    for field in required:
        value = launch.get(field)
        least, most = LIMITS[field]
        rule = f'an integer from {least} to {most}'
        fits = type(value) is int and least <= value <= most
        if field in POWERS_OF_TWO:
            rule = f'a power of two from {least} to {most}'
            fits = fits and value.bit_count() == 1
        if not fits:
            raise ValueError(f'{name}: {field}: expected {rule}, got {value}')
        fields[field] = value
    return fields


@cache
def _read_table(device: torch.device) -> LaunchTable:
    _, capability = gpu_of(device)
    named = os.environ.get(ENVIRONMENT)
    if named is None:
        path = FOLDER / 'tables' / f'sm_{capability[0]}{capability[1]}.json'
        if not path.is_file():
            return LaunchTable()
    elif named == '':
        return LaunchTable()
    else:
        path = Path(named)
    try:
        content = json.loads(path.read_bytes())
        table = parse_table(content, capability)
    except (OSError, ValueError) as error:  # JSON errors are ValueErrors
        message = f'{ENVIRONMENT}: expected a launch table of this GPU, got {path}: {error}'
        raise ValueError(message) from error
    measured_with = content.get('triton')
    if _release(measured_with) == _release(VERSION):
        return table
    from mmpola.ops.self_check import log_once  # imports torch._dynamo, which is slow

    log_once(
        f'{path}: expected a launch table of Triton {VERSION}, got one of {measured_with}: '
        'it is not used'
    )
    return LaunchTable()


def _release(version: Any) -> list[str]:
    """Return major and minor version: a patch release compiles kernels as the release does."""
    return str(version).split('.')[:2]
