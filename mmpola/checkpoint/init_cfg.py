"""Initial weights from the `init_cfg` of a config: files, and the initializers of MMEngine.

A value is None, a dict or a list of dicts, as MMEngine's modules take it. A dict(type='Pretrained',
checkpoint=PATH) names a file of any format that `load_weights` reads, and perhaps, with
weights='model' or weights='ema', which weights of a file that has plain and averaged ones. All
other dicts are initializers, for which MMEngine must be installed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mmpola.checkpoint import CheckpointError
from mmpola.checkpoint.contents import WEIGHTS
from mmpola.checkpoint.hub import SCHEMES, NotDownloadedError, resolve_checkpoint
from mmpola.checkpoint.load import RenamesWeights, load_weights
from mmpola.config_contents import nodes, type_name
from mmpola.layers import LinearAttention
from mmpola.messages import UsageError

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


def _entries(init_cfg: InitCfg) -> list[dict[str, Any]]:
    if init_cfg is None:
        return []
    if isinstance(init_cfg, dict):
        return [init_cfg]
    return init_cfg


# ---- All files that the config of a model names


def check_pretrained(model: dict[str, Any], *, download: bool = True) -> list[str]:
    """Check that the pretrained weights of a model exist, and download them if they have a URL.

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
    for key, _, name in _pretrained(model):
        scheme, separator, _ = name.partition('://')
        if separator and scheme not in SCHEMES:  # MMEngine's, such as torchvision://
            continue
        try:
            resolve_checkpoint(name, download=download)
        except NotDownloadedError as error:
            lines.append(f'{key}.init_cfg.checkpoint: {error}; the training run downloads it')
        except CheckpointError as error:
            raise UsageError(
                f'{error} ({key}.init_cfg.checkpoint); train without it with --cfg-options '
                f'{key}.init_cfg=None'
            ) from None
    return lines


def pretrained_files(model: dict[str, Any]) -> list[str]:
    """List the files that the `init_cfg` of a model's config name."""
    return [name for _, _, name in _pretrained(model)]


def remove_pretrained(model: dict[str, Any]) -> None:
    """Set every `init_cfg` in a model's config that names a file to None."""
    parts = list(_pretrained(model))
    for _, node, _ in parts:
        node['init_cfg'] = None


def _pretrained(model: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Yield (config key, dict, file) of every part of a model whose init_cfg names a file."""
    for key, node in nodes(model, 'model'):
        for entry in _entries(node.get('init_cfg')):
            if is_pretrained(entry):
                yield key, node, str(entry['checkpoint'])
