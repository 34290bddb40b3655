"""Find mistakes in the model of a config before data and weights are read: `validate_config`."""

from __future__ import annotations

import copy
import traceback
from typing import Any

import torch
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
from torch import nn

from mmpola.backbones.base import Backbone
from mmpola.messages import UsageError, first_line, listed
from mmpola.openmmlab.config.contents import nodes, type_name
from mmpola.openmmlab.config.types import scope
from mmpola.registry import REGISTERED_NAMES

HEAD_KEYS: tuple[str, ...] = (
    'rpn_head',
    'bbox_head',
    'panoptic_head',
    'decode_head',
    'auxiliary_head',
)
"""Parts of a model that read the maps of the backbone if there is no neck."""


def validate_config(cfg: Config) -> nn.Module:
    """Build the config's model, and compare the channels of its parts.

    Returns:
        What `build_model` returns.

    Raises:
        UsageError: it cannot be built, or the input channels of its neck or heads are not those of
            the backbone; the message is one line.
    """
    model = build_model(cfg)
    check_channels(cfg.model.get('module', cfg.model), unwrapped(model))
    return model


def build_model(cfg: Config) -> nn.Module:
    """Build the config's model on the CPU, as MMEngine's Runner does.

    The config and the state of torch's generator stay as they are. The constructors draw the
    weights: no file is read.

    Raises:
        UsageError: it cannot be built; the message is one line with the error of the constructor.
    """
    if not isinstance(cfg.get('model'), dict):
        raise UsageError(f'model: expected a dict, got {cfg.get("model")}')
    init_default_scope(scope(cfg))
    settings = copy.deepcopy(cfg.model)  # DETR-like detectors change their config
    if cfg.get('data_preprocessor') is not None:
        settings.setdefault('data_preprocessor', copy.deepcopy(cfg.data_preprocessor))
    replace_sync_bn(settings, ('MMSyncBN',))  # its constructor needs a process group
    _refuse_parts_without_type(settings)
    with torch.random.fork_rng(devices=[]):
        try:
            model: nn.Module = MODELS.build(settings)
        except Exception as error:  # constructors of other packages raise exceptions of any type
            raise UsageError(f'model: {reason(error)}') from error
    return model


def _refuse_parts_without_type(settings: dict[str, Any]) -> None:
    """Raise UsageError if a config changes a part of the model that its bases do not have."""
    for key, part in settings.items():
        is_part = key.endswith(('head', 'neck', 'backbone')) and isinstance(part, dict)
        if is_part and part and 'type' not in part:
            raise UsageError(
                f'model.{key}: expected a type, as the bases of the config have no {key} to '
                f'change, got only {listed(part)}; remove it, or write the whole part'
            )


def reason(error: Exception) -> str:
    """Describe the error of a constructor in one line, with what a user would need besides."""
    if isinstance(error, KeyError) and ' is not in the ' in str(error):
        message = str(error.args[0]).partition('. ')[0]  # str() of a KeyError has quotes
        name = message.partition(' ')[0]
        if any(name in names for names in REGISTERED_NAMES.values()):
            message += f'; write mmpola.{name}'
        return message
    if isinstance(error, KeyError) and error.args:
        return f'KeyError: {str(error.args[0]).splitlines()[0]}'
    if str(error):
        return first_line(error)
    place = traceback.extract_tb(error.__traceback__)[-1]  # of an assertion without a message
    return f'{type(error).__name__} in {place.filename}, line {place.lineno}: {place.line}'


def replace_sync_bn(settings: dict[str, Any], names: tuple[str, ...]) -> bool:
    """Replace normalisation over processes by BN in the config of a model; return whether any is.

    Args:
        settings: the config's model.
        names: the types that are replaced, as the configs of mmdet and mmseg name them.
    """
    norms = [node for _, node in nodes(settings, 'model') if _norm_name(node.get('type')) in names]
    for norm in norms:
        norm['type'] = 'BN'
    return len(norms) > 0


def _norm_name(kind: Any) -> str:
    """Return the name of a norm in configs; torch and mmcv have a class SyncBatchNorm each."""
    name = type_name(kind)
    if name != 'SyncBatchNorm':
        return name
    module = kind if isinstance(kind, str) else kind.__module__
    return 'MMSyncBN' if module.startswith('mmcv.') else 'SyncBN'


def unwrapped(model: Any) -> Any:
    """Return the model inside wrappers for several processes or test-time augmentation."""
    while hasattr(model, 'module'):
        model = model.module
    return model


def check_channels(settings: dict[str, Any], model: nn.Module) -> None:
    """Compare `in_channels` of the neck, or of the heads without one, with a backbone of mmpola.

    Args:
        settings: the config's model.
        model: the same, built.

    Raises:
        UsageError: they differ.
    """
    backbone = getattr(model, 'backbone', None)
    if not isinstance(backbone, Backbone):
        return
    channels = [backbone.embed_dims[index] for index in backbone.out_indices]
    keys = HEAD_KEYS
    if settings.get('neck'):
        keys = ('neck',)
    for key in keys:
        parts = settings.get(key) or []
        if isinstance(parts, dict):
            _compare(f'model.{key}', parts, channels)
        elif key == 'neck':  # necks in a row; the first one reads the backbone
            _compare('model.neck.0', parts[0], channels)
        else:  # several auxiliary heads
            for number, part in enumerate(parts):
                _compare(f'model.{key}.{number}', part, channels)


def _compare(key: str, part: dict[str, Any], channels: list[int]) -> None:
    """Compare the `in_channels` of a neck or head with the maps that its `in_index` selects."""
    given = part.get('in_channels')
    index = part.get('in_index')
    if isinstance(given, (list, tuple)):
        given = list(given)
        index = index or range(len(channels))
    elif isinstance(given, int) and isinstance(index, int):
        given = [given]
        index = [index]
    else:
        return
    if max(index) >= len(channels):
        raise UsageError(
            f'{key}.in_index: the backbone returns {len(channels)} maps, got {list(index)}'
        )
    expected = [channels[i] for i in index]
    if given != expected:
        raise UsageError(
            f'{key}.in_channels: expected the channels of model.backbone, {expected}, got {given}'
        )
