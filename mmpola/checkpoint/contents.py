"""Find the weights in what a checkpoint file holds: plain or averaged ones, under any key."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from mmpola.checkpoint import CheckpointError
from mmpola.checkpoint.grids import authors_image_size, metadata_of, with_image_size

WEIGHTS = ('model', 'ema')
"""What a user may ask for in a file that has both: the plain or the averaged weights."""

WEIGHTS_HELP = (
    'which weights of a file that has both: plain (model) or averaged (ema); default: the averaged '
    'ones, but the plain ones of a file of the authors of PolaFormer++'
)
"""Help of the option `--weights` of scripts."""

AVERAGED_KEYS = ('model_ema', 'state_dict_ema')
"""Keys of averaged weights in the files of DeiT and ConvNeXt, of timm and of PolaFormer++."""

PLAIN_BESIDE_AVERAGED = 'ema_state_dict'
"""Key of the plain weights in MMEngine's files with averaged ones, which are in `state_dict`."""

BARE = 'bare state dict'
"""Stands for the key if the file holds its tensors without one."""

COMPILED = '_orig_mod'
"""What torch.compile adds to the names of a compiled module, which may be a part of the model."""

DISTRIBUTED = 'module'
"""What DistributedDataParallel adds to the names of a model."""


def find_weights(
    content: Any, source: str | Path, which: str | None = None
) -> tuple[str, dict[str, Tensor]]:
    """Find the weights in what `read_checkpoint` returned.

    Args:
        content: of the file.
        source: the file, for messages.
        which: 'model' for the plain weights, 'ema' for averaged ones. None: the averaged ones if
            there are any, as timm and MMEngine do; but the plain ones of files that PolaFormer++'s
            code writes, because the authors evaluate those and start their detectors from them.

    Returns:
        (key that holds them, tensors by name).

    Raises:
        CheckpointError: there are no such weights.
    """
    entries: Mapping[Any, Any] = {}
    if isinstance(content, Mapping):
        entries = {**content, BARE: content}
    keys = _keys_of_weights(entries, which)
    for container in keys:
        candidate = entries.get(container)
        if not isinstance(candidate, Mapping):
            continue
        tensors: OrderedDict[str, Tensor] = OrderedDict()
        for key, x in candidate.items():
            is_step_count = container == PLAIN_BESIDE_AVERAGED and key == 'steps'
            if isinstance(key, str) and isinstance(x, Tensor) and not is_step_count:
                tensors[key] = x
        if not tensors:
            continue
        vars(tensors)['_metadata'] = metadata_of(candidate)
        found = without_wrappers(tensors)
        img_size = authors_image_size(entries)
        if img_size is not None:
            return container, with_image_size(found, img_size)
        return container, found
    kinds = {None: 'weights', 'model': 'plain weights', 'ema': 'averaged (EMA) weights'}
    raise CheckpointError(f'{source}: no {kinds[which]} found, neither as {" nor as ".join(keys)}')


def _keys_of_weights(entries: Mapping[Any, Any], which: str | None) -> tuple[str, ...]:
    """Return the keys under which a file may hold the weights asked for, the preferred one first.

    Raises:
        CheckpointError: `which` is unknown.
    """
    if which not in (None, *WEIGHTS):
        raise CheckpointError(f'weights: expected {" or ".join(WEIGHTS)}, got {which!r}')
    if which == 'ema':
        if PLAIN_BESIDE_AVERAGED in entries:
            return ('state_dict',)
        return AVERAGED_KEYS
    if which == 'model':
        return (PLAIN_BESIDE_AVERAGED, 'state_dict', 'model', BARE)
    if 'model' in entries and 'state_dict_ema' in entries:  # as PolaFormer++'s training writes
        return ('model',)
    return (*AVERAGED_KEYS, 'state_dict', 'model', BARE)


def is_averaged(content: Mapping[str, Any], container: str) -> bool:
    """Whether the weights under a key of a file are averaged."""
    if container == 'state_dict':
        return PLAIN_BESIDE_AVERAGED in content
    return container in AVERAGED_KEYS


def weights_note(content: Mapping[str, Any], container: str) -> str:
    """Say which weights of a file with averaged ones are under a key; '' for any other file."""
    if is_averaged(content, container):
        return 'averaged (EMA) weights'
    if any(key in content for key in (*AVERAGED_KEYS, PLAIN_BESIDE_AVERAGED)):
        return 'plain weights; the file also has averaged (EMA) ones'
    return ''


def without_wrappers(weights: Mapping[str, Any]) -> OrderedDict[str, Any]:
    """Return a state dict, and its metadata, by the names that a model without wrappers has."""
    found = OrderedDict((_without_wrappers(key), x) for key, x in weights.items())
    metadata = {}
    for module, value in metadata_of(weights).items():
        metadata[_without_wrappers(f'{module}.').removesuffix('.')] = value
    if metadata:
        vars(found)['_metadata'] = metadata
    return found


def _without_wrappers(key: str) -> str:
    parts = [part for part in key.split('.') if part != COMPILED]
    while parts[0] == DISTRIBUTED:
        parts = parts[1:]
    return '.'.join(parts)
