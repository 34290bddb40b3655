"""Find mistakes in the model of a config before data and weights are read: `validate_config`."""

from __future__ import annotations

import copy
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
from torch import nn

from mmpola.messages import UsageError, first_line, listed
from mmpola.openmmlab.config.contents import input_channels, nodes, type_name
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

SIDE = 128
"""Height and width of the image, in pixels, for which the backbone computes maps to be read."""


def validate_config(cfg: Config) -> nn.Module:
    """Build the config's model, and let its neck or heads read the maps of its backbone.

    Returns:
        What `build_model` returns.

    Raises:
        UsageError: it cannot be built, or its neck or a head cannot read the maps of the backbone;
            the message is one line.
    """
    model = build_model(cfg)
    with torch.no_grad():
        read_maps(copy_to_run(model), input_channels(cfg.model))
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


def copy_to_run(model: Any) -> Any:
    """Return a copy of a model, without wrappers, in evaluation mode; None if it has no copy."""
    try:
        return copy.deepcopy(unwrapped(model)).eval()
    except Exception:  # tensors that layers of other packages compute cannot be copied
        return None


def read_maps(model: Any, channels: int) -> list[torch.Tensor] | None:
    """Return what the neck makes of the maps of the backbone, or what each head does without one.

    Args:
        model: a model in evaluation mode, on any device.
        channels: number of channels of the image.

    Returns:
        None if nobody can tell, as a part needs another image or more arguments.

    Raises:
        UsageError: the neck or a head cannot read the maps.
    """
    readers = list(readers_of(model))
    if not readers:
        return None
    device = next(model.backbone.parameters()).device
    try:
        maps = model.backbone(torch.zeros(1, channels, SIDE, SIDE, device=device))
    except Exception:  # whatever a backbone of somebody's own needs
        return None
    found: list[torch.Tensor] = []
    is_complete = True
    for key, part in readers:
        try:
            found += tensors_in(part(maps))
        except Exception as error:  # whatever a part of somebody's own needs
            if not is_misfit(error):
                is_complete = False
                continue
            widths = [one.shape[1] for one in maps]
            raise UsageError(
                f'{key}: cannot read the maps of model.backbone, which have {widths} channels '
                f'(see in_channels and in_index): {reason(error)}'
            ) from error
    return found if is_complete else None


def is_misfit(error: Exception) -> bool:
    """Whether a layer of torch, an index or an assertion refuses maps.

    Operators of other packages may need another device.
    """
    place = Path(traceback.extract_tb(error.__traceback__)[-1].filename)
    is_of_torch = Path(nn.__file__).parent in place.parents
    is_shape = type(error) is RuntimeError and is_of_torch
    return is_shape or isinstance(error, (AssertionError, IndexError))


def parameters_without_gradient(model: nn.Module, channels: int) -> list[str]:
    """Name the trained parameters of the backbone with which nothing is computed that is read.

    They are found without values, by the graph for the gradient.

    Args:
        model: a model on any device, which stays as it is.
        channels: number of channels of its images.

    Raises:
        UsageError: the neck or a head cannot read the maps of the backbone.
    """
    copied = copy_to_run(model)
    if copied is None:
        return []
    outputs = read_maps(copied.to('meta'), channels) or []
    learning = [output.sum() for output in outputs if output.requires_grad]
    named = copied.backbone.named_parameters() if learning else ()
    trained = {name: parameter for name, parameter in named if parameter.requires_grad}
    if not trained:
        return []
    gradients = torch.autograd.grad(learning, list(trained.values()), allow_unused=True)
    return [name for name, grad in zip(trained, gradients, strict=True) if grad is None]


def readers_of(model: Any) -> Iterator[tuple[str, Any]]:
    """Yield (config key, module) of what reads the maps of the backbone: the neck, or the heads."""
    if not isinstance(getattr(model, 'backbone', None), nn.Module):
        return
    if isinstance(getattr(model, 'neck', None), nn.Module):
        yield 'model.neck', model.neck
        return
    for key in HEAD_KEYS:
        head = getattr(model, key, None)
        if isinstance(head, nn.ModuleList):
            for number, one in enumerate(head):
                yield f'model.{key}.{number}', one
        elif isinstance(head, nn.Module):
            yield f'model.{key}', getattr(head, 'pixel_decoder', head)  # as in Mask2Former


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Yield all tensors in nested lists, tuples and dicts."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        yield from tensors_in(list(value.values()))
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from tensors_in(one)
