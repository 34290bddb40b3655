"""The files that a config names: weights that its model starts from, teachers, any others."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Any

from mmpola.checkpoint import CheckpointError
from mmpola.checkpoint.hub import SCHEMES, NotDownloadedError, resolve_checkpoint
from mmpola.checkpoint.init_cfg import entries_of, is_pretrained, names_file
from mmpola.messages import UsageError
from mmpola.openmmlab.config.contents import nodes

TEACHER = 'teacher'
"""Key of the part of a model whose weights are in no checkpoint of a run."""

TEACHER_FILES = ('file', 'checkpoint_path')
"""Arguments of a teacher that name its weights, as `init_cfg` does."""


def named_files(node: Any) -> list[str]:
    """List the local files that a config, or a value inside it, names anywhere."""
    if isinstance(node, (str, os.PathLike)):
        path = os.path.expanduser(node)
        return [path] if os.path.isfile(path) else []
    children: Iterable[Any] = ()
    if isinstance(node, dict):
        children = node.values()
    elif isinstance(node, (list, tuple)):
        children = node
    return [path for child in children for path in named_files(child)]


def check_pretrained(model: dict[str, Any], *, download: bool = True) -> list[str]:
    """Check that the files of weights of a model exist, and download them if they have a URL.

    Args:
        model: the config's model, which has not been built yet.
        download: whether they are downloaded.

    Returns:
        A line for every file that is still to be downloaded.

    Raises:
        UsageError: a file is missing or cannot be downloaded; the message names its key and says
            how to train without it.
    """
    lines = []
    for key, part, name in _weights(model):
        if not _is_ours(name):
            continue
        try:
            resolve_checkpoint(name, download=download)
        except NotDownloadedError as error:
            lines.append(f'{key}: {error}; the training run downloads it')
        except CheckpointError as error:
            without = f'{part}.init_cfg=None'
            if _is_teachers(part):
                student = part.partition(f'.{TEACHER}')[0]
                without = f'{student}.{TEACHER}=None {student}.distillation=None'
            raise UsageError(
                f'{error} ({key}); train without it with --cfg-options {without}'
            ) from None
    return lines


def teacher_files(model: dict[str, Any]) -> list[str]:
    """List the files of a model's teachers, downloaded if they have a URL."""
    files = []
    for _, part, name in _weights(model):
        if _is_teachers(part) and _is_ours(name):
            files.append(str(resolve_checkpoint(name)))
    return files


def remove_pretrained(model: dict[str, Any]) -> None:
    """Set every `init_cfg` that names a file to None, where a run's checkpoint has the weights."""
    for part, node in nodes(model, 'model'):
        if names_file(node.get('init_cfg')) and not _is_teachers(part):
            node['init_cfg'] = None


def _weights(model: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield (config key, config key of the part, name) of every file of weights."""
    for part, node in nodes(model, 'model'):
        for entry in entries_of(node.get('init_cfg')):
            if is_pretrained(entry):
                yield f'{part}.init_cfg.checkpoint', part, str(entry['checkpoint'])
        for argument in TEACHER_FILES:
            if _is_teachers(part) and node.get(argument):
                yield f'{part}.{argument}', part, str(node[argument])


def _is_teachers(part: str) -> bool:
    """Whether a config key is of a teacher or inside one."""
    return TEACHER in part.split('.')


def _is_ours(name: str) -> bool:
    """Whether `resolve_checkpoint` finds a file; MMEngine has others, such as torchvision://."""
    scheme, separator, _ = name.partition('://')
    return not separator or scheme in SCHEMES
