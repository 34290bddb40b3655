"""Find mistakes in the model of a config before data and weights are read: `validate_config`."""

from __future__ import annotations

import copy
from typing import Any

import torch
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
from torch import nn

from mmpola.backbones.base import Backbone
from mmpola.engine.config_errors import keys_in_errors
from mmpola.messages import UsageError

HEAD_KEYS: tuple[str, ...] = (
    'rpn_head',
    'bbox_head',
    'panoptic_head',
    'decode_head',
    'auxiliary_head',
)
"""Parts of a model that read the maps of the backbone if there is no neck."""


def validate_config(cfg: Config) -> nn.Module:
    """Build the config's model on the meta device, and compare the channels of its parts.

    Tensors on the meta device need no memory, so this takes a second. The config stays as it is.

    Returns:
        The model, on the meta device.

    Raises:
        UsageError: it cannot be built, or the input channels of its neck or heads are not those of
            the backbone; the message is one line that names the config key.
    """
    model = build_on_meta(cfg)
    check_channels(cfg.model.get('module', cfg.model), model)
    return model


def build_on_meta(cfg: Config) -> nn.Module:
    """Build the config's model on the meta device; the config stays as it is.

    Raises:
        UsageError: it cannot be built; the message is one line that names the config key.
    """
    if not isinstance(cfg.get('model'), dict):
        raise UsageError(f'model: expected a dict, got {cfg.get("model")}')
    init_default_scope(cfg.get('default_scope', 'mmengine'))
    model_cfg = copy.deepcopy(cfg.model)  # DETR-like detectors change their config
    with keys_in_errors(cfg), torch.device('meta'):
        model = MODELS.build(model_cfg)
    # MMEngine loads weights into the model that a wrapper for test-time augmentation wraps.
    return getattr(model, 'module', model)


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
