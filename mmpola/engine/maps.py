"""Check the maps that go through the parts of a model, which is built on the meta device: channels and sizes."""

from __future__ import annotations

from typing import Any

import torch
from mmengine.config import Config
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from mmpola.backbones.base import Backbone
from mmpola.engine.processes import place
from mmpola.messages import UsageError

HEADS = ('rpn_head', 'bbox_head', 'panoptic_head', 'decode_head', 'auxiliary_head')
"""Parts of a model that read the maps of the neck, or of the backbone if there is no neck."""

IMAGE_SIZE = 64
"""Side in pixels of the image that shows how many channels the maps of a backbone have."""

ONE_PIXEL = (1, (1, 1))
"""Output sizes of pooling that leave one value per image and channel."""


def check_channels(settings: dict[str, Any], model: Any) -> None:
    """Compare the input channels that the config gives its neck and heads with the maps that they get.

    Args:
        settings: the config's model.
        model: the same, built on the meta device.

    Raises:
        UsageError: they differ.
    """
    heads = [key for key in HEADS if settings.get(key)]
    if not hasattr(model, 'backbone') or not (settings.get('neck') or heads):
        return
    backbone, source = model.backbone, 'model.backbone'
    if isinstance(backbone, Backbone):
        sizes = [
            (backbone.embed_dims[i], IMAGE_SIZE // backbone.strides[i])
            for i in backbone.out_indices
        ]
        maps: list[Tensor] | None = [
            torch.empty(1, dim, side, side, device='meta') for dim, side in sizes
        ]
    else:
        maps = _maps(backbone, torch.empty(1, 3, IMAGE_SIZE, IMAGE_SIZE, device='meta'))
    if maps and settings.get('neck'):
        neck = settings['neck'][0] if isinstance(settings['neck'], list) else settings['neck']
        if isinstance(neck.get('in_channels'), (list, tuple)):
            _compare(
                'model.neck.in_channels', neck['in_channels'], [x.shape[1] for x in maps], source
            )
        maps, source = _maps(model.neck, maps), 'model.neck'
    channels = [x.shape[1] for x in maps or ()]
    for key in heads if maps else ():
        parts = settings[key] if isinstance(settings[key], list) else [settings[key]]
        modules = getattr(model, key) if isinstance(settings[key], list) else [getattr(model, key)]
        for number, (head, module) in enumerate(zip(parts, modules, strict=True)):
            name = f'model.{key}.{number}' if isinstance(settings[key], list) else f'model.{key}'
            _compare_head(name, head, module, channels, source)


def _maps(module: nn.Module, x: Any) -> list[Tensor] | None:
    """Return the maps [B, C, H, W] of a backbone or neck; None if it does not run on the meta device."""
    try:
        with torch.no_grad():
            maps = module.eval()(x)
    except (
        Exception
    ):  # such as operators of other packages that have no implementation for that device
        return None
    return list(maps) if all(isinstance(x, Tensor) and x.ndim == 4 for x in maps) else None


def _compare_head(
    key: str, head: dict[str, Any], module: Any, channels: list[int], source: str
) -> None:
    """Compare a head's `in_channels` with the maps that its `in_index`, if it has one, selects, else with all."""
    given, index = head.get('in_channels'), getattr(module, 'in_index', None)
    several = isinstance(given, (list, tuple))
    if given is None or (index is not None and isinstance(index, (list, tuple)) != several):
        return
    if index is not None:
        indices = index if several else [index]
        if max(indices) >= len(channels):
            raise UsageError(f'{key}.in_index: expected indices below {len(channels)}, got {index}')
        channels = [channels[i] for i in indices]
    _compare(
        f'{key}.in_channels',
        given,
        channels if several or len(set(channels)) > 1 else channels[0],
        source,
    )


def _compare(key: str, given: Any, expected: Any, source: str) -> None:
    if (list(given) if isinstance(given, tuple) else given) != expected:
        raise UsageError(f'{key}: expected the channels of {source}, {expected}, got {given}')


def check_batch_norm(cfg: Config, model: nn.Module) -> None:
    """Refuse steps with one image if a BatchNorm layer reads maps that are pooled to one pixel.

    Args:
        cfg: the config.
        model: what `validate_config` returned for it.

    Raises:
        UsageError: there is such a layer, which would get one value per channel; torch refuses
            that.
    """
    loader = cfg.get('train_dataloader') or {}
    if loader.get('batch_size') != 1:
        return
    # With one process, or on a CPU, SyncBN is replaced by BN.
    synchronised = torch.cuda.is_available() and place(cfg.get('launcher', 'none')).processes > 1
    for name, module in model.named_modules():
        norms = _norms_of_one_pixel(module) if isinstance(module, nn.Sequential) else []
        alone = [
            norm for norm in norms if not (synchronised and isinstance(norm, nn.SyncBatchNorm))
        ]
        if alone:
            raise UsageError(
                f'train_dataloader.batch_size: expected at least 2 images per GPU, because BatchNorm in '
                f'model.{name} gets one value per image and channel, got 1'
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
