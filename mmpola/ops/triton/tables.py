"""Launch tables: the launches that `python -m benchmarks.gpu` found to be fastest on a GPU.

A table is the file that the environment variable MMPOLA_LAUNCHES names, else `tables/sm_XY.json`
next to this module, which is shipped for the compute capability X.Y; if MMPOLA_LAUNCHES is set but
empty, there is none. A file that was measured with another release of Triton is not used. launch.py
has the launches that a table lacks. A file is read once per process and device.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
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
    **dict.fromkeys(('state', 'output', 'query_gradient', 'key_gradient'), ATTENTION_FIELDS),
    **dict.fromkeys(('mix_and_gate', 'mix_and_gate_taps'), TILE_FIELDS),
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

NAME = re.compile(r'(\w+) (power|exp|rotary|any) (float16|bfloat16|float32) (16|32|64)')
"""Of a launch in a file: the words of a `Key`."""


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
    """Return the launch table of a device, which is empty without a file.

    Raises:
        ValueError: the file is missing or invalid; the message says what is wrong in it.
    """
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


def gpu_of(device: torch.device) -> tuple[str, tuple[int, int]]:
    """Return name and compute capability of a device, 0.0 for the interpreter on a CPU."""
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
    return dict(_parse_launch(name, launch) for name, launch in content['launches'].items())


def _parse_launch(name: str, launch: Any) -> tuple[Key, dict[str, int]]:
    words = NAME.fullmatch(name)
    if not words or words[1] not in LAUNCH_FIELDS:
        raise ValueError(
            f"{name}: expected a name like 'state power float16 32', its first word one of "
            f'{list(LAUNCH_FIELDS)}'
        )
    given = launch if isinstance(launch, dict) else {}
    fields: dict[str, Any] = {field: given.get(field) for field in LAUNCH_FIELDS[words[1]]}
    for field, value in fields.items():
        (least, most), is_power = LIMITS[field], field in POWERS_OF_TWO
        if (
            type(value) is not int
            or not least <= value <= most
            or (is_power and value & (value - 1))
        ):
            rule = f'{"a power of two" if is_power else "an integer"} from {least} to {most}'
            raise ValueError(f'{name}: {field}: expected {rule}, got {value}')
    return Key(words[1], words[2], words[3], int(words[4])), fields


@cache
def _read_table(device: torch.device) -> LaunchTable:
    _, capability = gpu_of(device)
    shipped, named = (
        FOLDER / 'tables' / 'sm_{}{}.json'.format(*capability),
        os.environ.get(ENVIRONMENT),
    )
    if (named is None and not shipped.is_file()) or named == '':
        return LaunchTable()
    path = Path(named or shipped)
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
    """Return major and minor version: another release compiles kernels differently, a patch not."""
    return str(version).split('.')[:2]
