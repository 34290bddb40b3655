"""Check the entries of a checkpoint that a training run resumes from, before and while it does."""

from __future__ import annotations

import reprlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from mmengine.runner import Runner as MMEngineRunner

from mmpola.engine.loops import POSITION
from mmpola.messages import UsageError, first_line

HUB = ('log_scalars', 'runtime_info', 'resumed_keys')
"""Entries of MMEngine's message hub."""

Wrong = tuple[str, str, Any]
"""(key of an entry, what was expected, its value)."""


class Runner(MMEngineRunner):
    """MMEngine's Runner, which refuses a checkpoint that it cannot resume from with one line."""

    def resume(self, filename: str, *args: Any, **kwargs: Any) -> None:
        """Load weights and the state of the training run.

        Raises:
            UsageError: an entry of the checkpoint does not fit this run.
        """
        try:
            super().resume(filename, *args, **kwargs)
        except torch.OutOfMemoryError:
            raise
        except (
            ArithmeticError,
            AssertionError,
            AttributeError,
            LookupError,
            TypeError,
            ValueError,
        ) as error:
            raise UsageError(
                _refusal(filename, 'the state of this training run', first_line(error))
            ) from error


def check_entries(content: Mapping[str, Any], path: str) -> None:
    """Check the types of the entries of a checkpoint that a training run is resumed from.

    Args:
        content: of the file, which has the entries `meta`, `message_hub` and `optimizer`.
        path: of the file.

    Raises:
        UsageError: an entry has another type, or lacks a part; the message names the first.
    """
    first = next(_wrong_entries(content), None)
    if first is not None:
        key, expected, value = first
        raise UsageError(_refusal(path, f'{key}: {expected}', reprlib.repr(value)))


def restart_advice(path: str) -> str:
    """Say how to use the weights of a file that cannot be resumed from."""
    return f'start a new run from its weights with --cfg-options load_from={path}'


def _refusal(path: str, expected: str, value: str) -> str:
    return f'--resume: {path}: expected {expected}, got {value}; {restart_advice(path)}'


def _wrong_entries(content: Mapping[str, Any]) -> Iterator[Wrong]:
    """Yield the wrong entries; only the first is asked for, as the code after it may fail."""
    for key in ('meta', 'message_hub', 'optimizer'):
        if not isinstance(content[key], Mapping):
            yield key, 'a dict', content[key]
    meta = content['meta']
    for key in ('epoch', 'iter'):
        if not _is_count(meta.get(key)):
            yield f'meta.{key}', 'a number of epochs or steps', meta.get(key)
    if meta.get('seed') is not None and not _is_count(meta['seed']):
        yield 'meta.seed', 'an integer from 0 on', meta['seed']
    yield from _wrong_in_hub(content['message_hub'], meta['iter'])
    yield from _wrong_in_optimizer(content['optimizer'])
    yield from _wrong_in_schedules(content.get('param_schedulers', []))


def _wrong_in_hub(hub: Mapping[str, Any], steps: int) -> Iterator[Wrong]:
    for key in HUB:
        if not isinstance(hub.get(key), Mapping):
            yield f'message_hub.{key}', 'a dict', hub.get(key)
    known = hub['runtime_info']
    kept = known.get('keep_ckpt_ids', [])
    is_list = isinstance(kept, (list, tuple))
    if not is_list or not all(_is_count(number) for number in kept):
        yield 'message_hub.runtime_info.keep_ckpt_ids', 'a list of numbers of epochs or steps', kept
    position = known.get(POSITION)
    if position is None:
        return
    key = f'message_hub.runtime_info.{POSITION}'
    if not isinstance(position, Mapping):
        yield key, 'a dict', position
    for name in ('epoch', 'iter', 'images_per_step'):
        if not _is_count(position.get(name)):
            yield f'{key}.{name}', 'an integer from 0 on', position.get(name)
    if position['iter'] > steps:
        yield f'{key}.iter', f'at most the {steps} steps of meta.iter', position['iter']


def _wrong_in_optimizer(optimizer: Mapping[str, Any]) -> Iterator[Wrong]:
    optimizers = {'optimizer': optimizer}
    if optimizer and all(_has_groups(value) for value in optimizer.values()):  # several, by name
        optimizers = {f'optimizer.{name}': value for name, value in optimizer.items()}
    for key, value in optimizers.items():
        if not isinstance(value.get('state'), Mapping):
            yield f'{key}.state', 'a dict', value.get('state')
        groups = value.get('param_groups')
        if not _is_list_of_dicts(groups):
            yield f'{key}.param_groups', 'a list of dicts', groups


def _is_list_of_dicts(value: Any) -> bool:
    is_list = isinstance(value, (list, tuple))
    return is_list and all(isinstance(entry, Mapping) for entry in value)


def _has_groups(value: Any) -> bool:
    return isinstance(value, Mapping) and 'param_groups' in value


def _wrong_in_schedules(schedules: Any) -> Iterator[Wrong]:
    lists = {'param_schedulers': schedules}
    if isinstance(schedules, Mapping):  # a list for each of several optimizers
        lists = {f'param_schedulers.{name}': entries for name, entries in schedules.items()}
    for key, entries in lists.items():
        if not isinstance(entries, (list, tuple)):
            yield key, 'a list of dicts', entries
        for number, entry in enumerate(entries):
            if not isinstance(entry, Mapping):
                yield f'{key}.{number}', 'a dict', entry
            step = entry.get('last_step')
            if not isinstance(step, int) or isinstance(step, bool):  # -1 before a schedule begins
                yield f'{key}.{number}.last_step', 'an integer', step


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
