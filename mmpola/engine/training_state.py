"""Refuse a checkpoint that a training run cannot resume from, before and while it resumes."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from typing import Any

import torch
from mmengine.runner import Runner as MMEngineRunner

from mmpola.checkpoint.safe_load import LOG_HISTORY, stubs_in
from mmpola.engine.loops import POSITION
from mmpola.engine.training_checkpoint import TrainingCheckpoint
from mmpola.messages import UsageError, first_line, listed

RESUME_ENTRIES = ('meta', 'message_hub', 'optimizer')
"""Entries that a checkpoint needs, in addition to its weights, to resume training from it."""

HUB_ENTRIES = ('log_scalars', 'runtime_info', 'resumed_keys')
"""Entries of MMEngine's message hub."""


class Runner(MMEngineRunner):
    """MMEngine's Runner, with an error of one line for a checkpoint that it cannot resume from."""

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


def check_state(checkpoint: TrainingCheckpoint) -> None:
    """Check that a checkpoint has the state of a training run, so that one can resume from it.

    Raises:
        UsageError: an entry is missing, cannot be read from files, has another type, or lacks a
            part; the message names the first.
    """
    path = checkpoint.path
    content = checkpoint.content
    missing = [name for name in RESUME_ENTRIES if name not in content]
    if checkpoint.container != 'state_dict':  # the optimizer's state belongs to other weights
        missing = list(RESUME_ENTRIES)
    if missing:
        raise UsageError(
            f'--resume: {path}: expected a training checkpoint, got weights without '
            f'{" and ".join(missing)}; {restart_advice(path)}'
        )
    read_by_mmengine = [content.get(name) for name in (*RESUME_ENTRIES, 'param_schedulers')]
    unknown = stubs_in(read_by_mmengine) - {LOG_HISTORY}
    if unknown:
        raise UsageError(
            f'--resume: {path}: holds instances of {listed(sorted(unknown))}, which are not read '
            f'from files; {restart_advice(path)}'
        )

    for key in RESUME_ENTRIES:
        _check(path, key, content[key], 'a dict', isinstance(content[key], Mapping))
    meta = content['meta']
    for name in ('epoch', 'iter'):
        value = meta.get(name)
        _check(path, f'meta.{name}', value, 'a number of epochs or steps', _is_count(value))
    seed = meta.get('seed')
    _check(path, 'meta.seed', seed, 'an integer from 0 on', seed is None or _is_count(seed))
    _check_hub(path, content['message_hub'], meta['iter'])
    _check_optimizer(path, content['optimizer'])
    _check_schedules(path, content.get('param_schedulers', []))


def restart_advice(path: str) -> str:
    """Say how to use the weights of a file that cannot be resumed from."""
    return f'start a new run from its weights with --cfg-options load_from={path}'


def _check(path: str, key: str, value: Any, expected: str, is_valid: bool) -> None:
    """Raise UsageError unless the value of an entry is valid."""
    if not is_valid:
        raise UsageError(_refusal(path, f'{key}: {expected}', reprlib.repr(value)))


def _refusal(path: str, expected: str, value: str) -> str:
    return f'--resume: {path}: expected {expected}, got {value}; {restart_advice(path)}'


def _check_hub(path: str, hub: Mapping[str, Any], steps: int) -> None:
    """Check MMEngine's message hub, written after `steps` steps."""
    for name in HUB_ENTRIES:
        value = hub.get(name)
        _check(path, f'message_hub.{name}', value, 'a dict', isinstance(value, Mapping))
    info = hub['runtime_info']
    kept = info.get('keep_ckpt_ids', [])
    are_counts = isinstance(kept, (list, tuple)) and all(_is_count(number) for number in kept)
    key = 'message_hub.runtime_info.keep_ckpt_ids'
    _check(path, key, kept, 'a list of numbers of epochs or steps', are_counts)

    position = info.get(POSITION)
    if position is None:
        return
    key = f'message_hub.runtime_info.{POSITION}'
    _check(path, key, position, 'a dict', isinstance(position, Mapping))
    for name in ('epoch', 'iter', 'images_per_step'):
        value = position.get(name)
        _check(path, f'{key}.{name}', value, 'an integer from 0 on', _is_count(value))
    expected = f'at most the {steps} steps of meta.iter'
    _check(path, f'{key}.iter', position['iter'], expected, position['iter'] <= steps)


def _check_optimizer(path: str, optimizer: Mapping[str, Any]) -> None:
    optimizers = {'optimizer': optimizer}
    if optimizer and all(_has_groups(value) for value in optimizer.values()):  # several, by name
        optimizers = {f'optimizer.{name}': value for name, value in optimizer.items()}
    for key, value in optimizers.items():
        state = value.get('state')
        _check(path, f'{key}.state', state, 'a dict', isinstance(state, Mapping))
        groups = value.get('param_groups')
        are_dicts = isinstance(groups, (list, tuple)) and all(
            isinstance(group, Mapping) for group in groups
        )
        _check(path, f'{key}.param_groups', groups, 'a list of dicts', are_dicts)


def _has_groups(value: Any) -> bool:
    return isinstance(value, Mapping) and 'param_groups' in value


def _check_schedules(path: str, schedules: Any) -> None:
    lists = {'param_schedulers': schedules}
    if isinstance(schedules, Mapping):  # a list for each of several optimizers
        lists = {f'param_schedulers.{name}': entries for name, entries in schedules.items()}
    for key, entries in lists.items():
        _check(path, key, entries, 'a list of dicts', isinstance(entries, (list, tuple)))
        for number, entry in enumerate(entries):
            _check(path, f'{key}.{number}', entry, 'a dict', isinstance(entry, Mapping))
            step = entry.get('last_step')
            is_integer = isinstance(step, int) and not isinstance(step, bool)
            # A schedule that has not begun has -1.
            _check(path, f'{key}.{number}.last_step', step, 'an integer', is_integer)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
