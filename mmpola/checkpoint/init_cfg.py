"""Initial weights from the `init_cfg` of a config: files, and the initializers of MMEngine.

A value is None, a dict or a list of dicts, as MMEngine's modules take it. A dict(type='Pretrained',
checkpoint=PATH) names a file of any format that `load_weights` reads, and perhaps, with
weights='model' or weights='ema', which weights of a file that has plain and averaged ones. All
other dicts are initializers, for which MMEngine must be installed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Any

from mmpola.checkpoint import CheckpointError
from mmpola.checkpoint.contents import WEIGHTS
from mmpola.checkpoint.hub import SCHEMES, NotDownloadedError, resolve_checkpoint
from mmpola.checkpoint.load import RenamesWeights, load_weights
from mmpola.layers import LinearAttention
from mmpola.messages import UsageError
from mmpola.openmmlab.config.contents import nodes, type_name

InitCfg = dict[str, Any] | list[dict[str, Any]] | None

PRETRAINED_FORM = "dict(type='Pretrained', checkpoint=PATH)"


def check_init_cfg(init_cfg: InitCfg) -> None:
    """Raise ValueError unless every entry names a file or an initializer."""
    if init_cfg is not None and not isinstance(init_cfg, (dict, list)):
        rule = f'None, {PRETRAINED_FORM}, an initializer of MMEngine, or a list of them'
        raise ValueError(f'init_cfg: expected {rule}, got {init_cfg!r}')
    for entry in _entries(init_cfg):
        if not isinstance(entry, dict) or 'type' not in entry:
            rule = f'{PRETRAINED_FORM} or an initializer of MMEngine'
            raise ValueError(f'init_cfg: expected {rule}, got {entry!r}')
        if is_pretrained(entry):
            unknown = entry.keys() - {'type', 'checkpoint', 'weights'}
            is_choice = entry.get('weights') in (None, *WEIGHTS)
            if unknown or 'checkpoint' not in entry or not is_choice:
                rule = f"{PRETRAINED_FORM}, perhaps with weights='model' or weights='ema'"
                raise ValueError(f'init_cfg: expected {rule}, got {entry}')


def initialize(model: RenamesWeights, init_cfg: InitCfg) -> bool:
    """Run the initializers on a model, then load the files over their weights, as MMEngine does.

    In between, the gates of layers with gate_init='open' are opened again: these initializers, or
    those of a detector around the model, may have drawn the projections anew.

    Returns:
        Whether there was a file.

    Raises:
        CheckpointError: see `load_weights`.
    """
    initializers = []
    files = []
    for entry in _entries(init_cfg):
        if is_pretrained(entry):
            files.append(entry)
        else:
            initializers.append(entry)
    if initializers:
        from mmengine.model import initialize as run_initializers

        run_initializers(model, initializers)
    for module in model.modules():
        if isinstance(module, LinearAttention):
            module.start_gate()
    for file in files:
        load_weights(model, file['checkpoint'], file.get('weights'))
    return len(files) > 0


def is_pretrained(entry: dict[str, Any]) -> bool:
    """Whether an entry of an `init_cfg` names a file: by MMEngine's name or its class."""
    return type_name(entry.get('type')) in ('Pretrained', 'PretrainedInit')


def names_file(init_cfg: InitCfg) -> bool:
    """Whether an `init_cfg` names a file, perhaps beside initializers."""
    return any(is_pretrained(entry) for entry in _entries(init_cfg))


def _entries(init_cfg: InitCfg) -> list[dict[str, Any]]:
    if init_cfg is None:
        return []
    if isinstance(init_cfg, dict):
        return [init_cfg]
    return init_cfg


# ---- All files that a config names

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
        for entry in _entries(node.get('init_cfg')):
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
