"""Check the feature maps between the parts of a model: their channels and sizes."""

from __future__ import annotations

from typing import Any

import torch
from mmengine.config import Config
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from mmpola.backbones.base import Backbone
from mmpola.engine.processes import place
from mmpola.messages import UsageError

HEAD_KEYS = ('rpn_head', 'bbox_head', 'panoptic_head', 'decode_head', 'auxiliary_head')
"""Parts of a model that read the maps of the neck, or of the backbone if there is no neck."""

IMAGE_SIZE = 64
"""Side in pixels of the image that shows how many channels the maps of a backbone have."""

ONE_PIXEL = (1, (1, 1))
"""Output sizes of pooling that leave one value per image and channel."""


def check_channels(settings: dict[str, Any], model: Any) -> None:
    """Compare the input channels of neck and heads in the config with the maps that they get.

    Args:
        settings: the config's model.
        model: the same, built on the meta device.

    Raises:
        UsageError: they differ.
    """
    heads = [key for key in HEAD_KEYS if settings.get(key)]
    if not hasattr(model, 'backbone') or not (settings.get('neck') or heads):
        return
    maps = _backbone_maps(model.backbone)
    source = 'model.backbone'
    if maps and settings.get('neck'):
        neck = settings['neck']
        if isinstance(neck, list):
            neck = neck[0]
        if isinstance(neck.get('in_channels'), (list, tuple)):
            channels = [x.shape[1] for x in maps]
            _require_equal('model.neck.in_channels', neck['in_channels'], channels, source)
        maps = _run(model.neck, maps)
        source = 'model.neck'
    if not maps:
        return
    channels = [x.shape[1] for x in maps]
    for key in heads:
        module = getattr(model, key)
        if isinstance(settings[key], list):  # such as several auxiliary heads
            for number, head in enumerate(settings[key]):
                _compare_head(f'model.{key}.{number}', head, module[number], channels, source)
        else:
            _compare_head(f'model.{key}', settings[key], module, channels, source)


def _backbone_maps(backbone: nn.Module) -> list[Tensor] | None:
    """Return the maps [B, C, H, W] of an image; None if they are unknown."""
    if not isinstance(backbone, Backbone):
        return _run(backbone, torch.empty(1, 3, IMAGE_SIZE, IMAGE_SIZE, device='meta'))
    maps = []
    for index in backbone.out_indices:
        side = IMAGE_SIZE // backbone.strides[index]
        maps.append(torch.empty(1, backbone.embed_dims[index], side, side, device='meta'))
    return maps


def _run(module: nn.Module, x: Any) -> list[Tensor] | None:
    """Return the maps [B, C, H, W] of a backbone or neck; None if it does not run on meta."""
    try:
        with torch.no_grad():
            maps = list(module.eval()(x))
    except Exception:  # operators of other packages may have no implementation for that device
        return None
    if all(isinstance(x, Tensor) and x.ndim == 4 for x in maps):
        return maps
    return None


def _compare_head(
    key: str, head: dict[str, Any], module: Any, channels: list[int], source: str
) -> None:
    """Compare a head's `in_channels` with the maps that its `in_index` selects, or with all."""
    given = head.get('in_channels')
    index = getattr(module, 'in_index', None)
    several = isinstance(given, (list, tuple))
    if given is None:
        return
    if index is not None:
        if isinstance(index, (list, tuple)) != several:
            return
        indices = index
        if not several:
            indices = [index]
        if max(indices) >= len(channels):
            raise UsageError(f'{key}.in_index: expected indices below {len(channels)}, got {index}')
        channels = [channels[i] for i in indices]
    expected: Any = channels
    if not several and len(set(channels)) == 1:  # one number for all maps
        expected = channels[0]
    _require_equal(f'{key}.in_channels', given, expected, source)


def _require_equal(key: str, given: Any, expected: Any, source: str) -> None:
    if isinstance(given, tuple):
        given = list(given)
    if given != expected:
        raise UsageError(f'{key}: expected the channels of {source}, {expected}, got {given}')


def check_batch_norm(cfg: Config, model: nn.Module) -> None:
    """Refuse steps with one image if a BatchNorm layer reads maps that are pooled to one pixel.

    Args:
        cfg: the config.
        model: what `validate_config` returned for it.

    Raises:
        UsageError: there is such a layer. It would get one value per channel, which torch refuses.
    """
    loader = cfg.get('train_dataloader') or {}
    if loader.get('batch_size') != 1:
        return
    # With one process, or on a CPU, SyncBN is replaced by BN.
    synchronised = torch.cuda.is_available() and place(cfg.get('launcher', 'none')).processes > 1
    for name, module in model.named_modules():
        if not isinstance(module, nn.Sequential):
            continue
        for norm in _norms_of_one_pixel(module):
            if synchronised and isinstance(norm, nn.SyncBatchNorm):
                continue
            raise UsageError(
                'train_dataloader.batch_size: expected at least 2 images per GPU, because '
                f'BatchNorm in model.{name} gets one value per image and channel, got 1'
            )


def _norms_of_one_pixel(layers: nn.Sequential) -> list[nn.Module]:
    """Return the BatchNorm layers behind a pooling to one pixel."""
    pooled = False
    norms: list[nn.Module] = []
    for layer in layers:
        if pooled:
            norms += [module for module in layer.modules() if isinstance(module, _BatchNorm)]
        if isinstance(layer, nn.AdaptiveAvgPool2d) and layer.output_size in ONE_PIXEL:
            pooled = True
    return norms
