"""Find the mistakes in a config that are seen without its data and weights: `validate_config` is the entry.

The config's model is built on the meta device, where tensors have shapes, but need no memory. That takes a second and
finds every mistake in `model` that a constructor finds.
"""

from __future__ import annotations

import copy
import importlib.util
import inspect
import re
import traceback
from collections.abc import Iterator
from typing import Any

import torch
from mmengine.config import Config
from mmengine.registry import (
    DATA_SAMPLERS,
    HOOKS,
    LOOPS,
    METRICS,
    MODELS,
    OPTIM_WRAPPERS,
    OPTIMIZERS,
    PARAM_SCHEDULERS,
    TRANSFORMS,
    VISBACKENDS,
    VISUALIZERS,
    Registry,
    init_default_scope,
)
from torch import Tensor, nn
from torch.utils.data import DataLoader

from mmpola.backbones.base import Backbone
from mmpola.config_tree import nodes
from mmpola.engine.config import PLAIN, READ, SPLITS, is_variable
from mmpola.messages import UsageError, listed, nearest

HEADS = ('rpn_head', 'bbox_head', 'panoptic_head', 'decode_head', 'auxiliary_head')
"""Parts of a model that read the maps of the neck, or of the backbone if there is no neck."""

MISSPELT = 0.885
"""Similarity to a key that is read: trian_cfg has 0.89 to train_cfg, but test_pipeline, a variable that a dumped config
keeps, has 0.88 to tta_pipeline."""

POSITIVE = {
    'train_cfg': ('max_epochs', 'max_iters', 'val_interval'),
    'train_dataloader': ('batch_size',),
    'optim_wrapper': ('accumulative_counts',),
}
"""Positive integers, which MMEngine reads when data and weights are loaded."""

IMAGE_SIZE = 64
"""Side in pixels of the image that shows how many channels the maps of a backbone have."""

REMOVED = ('priority', 'convert_to_iter_based', 'constructor', 'paramwise_cfg')
"""Entries of hooks, schedules and wrappers of optimizers that MMEngine removes before it builds them."""

OF_LOADERS = ('sampler', 'batch_sampler', 'dataset', 'collate_fn', 'worker_init_fn', 'num_batch_per_epoch')
"""Entries of a loader's config that are not, or not as they are, arguments of torch's DataLoader."""


NOT_REGISTERED = re.compile(r'(\S+) is not in the (\S+) registry')
UNEXPECTED = re.compile(r"got an unexpected keyword argument '(\w+)'")
OWN_MESSAGE = re.compile(r'\w+: expected ')
"""How the messages of mmpola's constructors begin: with the argument's name."""


def validate_config(cfg: Config) -> nn.Module:
    """Check names, arguments and the model of a config, and change nothing.

    Returns:
        The model, on the meta device.

    Raises:
        UsageError: something is wrong; the message is one line that names the config key, the rule and what was given.
    """
    _check_names(cfg)
    _check_numbers(cfg)
    model = build_on_meta(cfg)  # first: it sets the default scope, in which the other parts are looked up
    _check_channels(cfg.model.get('module', cfg.model), model)
    for key, node, registry in _parts(cfg):
        try:
            _check_arguments(node, registry)
        except Exception as error:  # constructors of other packages raise exceptions of any type
            raise UsageError(_mistake(key, node, error)) from error
    _check_topk(cfg)
    return model


def build_on_meta(cfg: Config) -> nn.Module:
    """Build the config's model on the meta device; the config stays as it is.

    Raises:
        UsageError: it cannot be built; the message is one line that names the config key, the rule and what was given.
    """
    if not isinstance(cfg.get('model'), dict):
        raise UsageError(f'model: expected a dict, got {cfg.get("model")}')
    scope = cfg.get('default_scope', 'mmengine')
    if scope not in MODELS.children and importlib.util.find_spec(scope) is None:
        raise UsageError(f'default_scope: expected an installed package, such as mmdet, got {scope}')
    init_default_scope(scope)
    try:
        model = _build(cfg.model)
    except Exception as error:  # constructors of other packages raise exceptions of any type
        parts = [('model', cfg.model), *((key, node) for key, node in nodes(cfg.model, 'model') if 'type' in node)]
        key, node = next((part for part in reversed(parts) if _fails(part[1], error)), parts[0])
        raise UsageError(_mistake(key, node, error)) from error
    return getattr(model, 'module', model)  # of test-time augmentation: MMEngine loads into the model it wraps


def _mistake(key: str, node: dict[str, Any], error: Exception) -> str:
    """Describe in one line why the part of a config with this key and dict cannot be built."""
    text = str(error.args[0] if error.args else '').partition('\n')[0]  # str() of a KeyError has quotes
    if match := NOT_REGISTERED.match(text):
        return f'{key}.type: expected a name in the {match[2]} registry, got {match[1]}'
    if (match := UNEXPECTED.search(text)) and match[1] in node:
        return f'{key}: expected arguments of {getattr(node["type"], "__name__", node["type"])}, got {match[1]}'
    if OWN_MESSAGE.match(text):
        return f'{key}.{text}'
    where = traceback.extract_tb(error.__traceback__)[-1].line
    return f'{key}: cannot be built: {type(error).__name__}: {text or where}'


def _build(model: dict[str, Any]) -> Any:
    with torch.device('meta'):
        return MODELS.build(copy.deepcopy(model))  # DETR-like detectors change their config


def _fails(node: dict[str, Any], error: Exception) -> bool:
    """Whether a part of a model, built on its own, fails with the same exception as the model."""
    try:
        _build(node)
    except Exception as own:  # as above
        return type(own) is type(error) and str(own) == str(error)
    return False


def _check_names(cfg: Config) -> None:
    """Refuse unknown names in dicts without a class, arguments without one, and what resembles a key that is read."""
    known = {
        **PLAIN,
        **{f'{split}_dataloader': (*inspect.signature(DataLoader).parameters, *OF_LOADERS) for split in SPLITS},
    }
    for key, names in known.items():
        for name in (name for name in cfg.get(key) or () if name not in names):
            raise UsageError(f'{key}: expected {listed(names, None)}, got {name}')
    for key, node in nodes(cfg._cfg_dict, ''):
        called = 'type' in node or key in READ
        if called and (unnamed := [name for name in node if not isinstance(name, str)]):
            raise UsageError(f'{key}: expected names of arguments, got {listed(unnamed)}')
    for name in cfg:
        if name not in READ and not is_variable(cfg, name) and (meant := nearest(name, READ, MISSPELT)):
            raise UsageError(f'{name}: expected a key that training reads, such as {meant}, got {name}')


def _check_numbers(cfg: Config) -> None:
    """Refuse other values than positive integers for `POSITIVE`."""
    for key, names in POSITIVE.items():
        for name in names:
            value = (cfg.get(key) or {}).get(name)
            if value is not None and (type(value) is not int or value < 1):
                raise UsageError(f'{key}.{name}: expected a positive integer, got {value!r}')


def _check_arguments(node: dict[str, Any], registry: Registry) -> None:
    """Build a part of a config, or, if that needs a runner or data, compare its names with its class's arguments."""
    arguments = {name: value for name, value in copy.deepcopy(node).items() if name not in REMOVED}
    if registry in (TRANSFORMS, OPTIMIZERS, PARAM_SCHEDULERS):
        parameters = [nn.Parameter(torch.empty(0))]
        if registry is OPTIMIZERS:
            arguments['params'] = parameters
        if registry is PARAM_SCHEDULERS:
            arguments['optimizer'] = torch.optim.SGD(parameters, lr=1.0, momentum=0.9)
        registry.build(arguments)
        return
    cls: Any = arguments.pop('type')
    with registry.switch_scope_and_registry(arguments.pop('_scope_', None)) as scoped:
        cls = scoped.get(cls) if isinstance(cls, str) else cls
    if cls is None:
        raise KeyError(f'{node["type"]} is not in the {registry.name} registry')
    inspect.signature(cls).bind_partial(**arguments)
    if registry is HOOKS and cls.__module__.startswith('mmpola.'):  # others may ask for parts of the runner
        cls(**arguments)


def _parts(cfg: Config) -> Iterator[tuple[str, dict[str, Any], Registry]]:
    """Yield (config key, dict, registry) of the parts that MMEngine builds from a dict of their own."""
    found: list[tuple[str, Any, Registry]] = [
        *((f'default_hooks.{name}', hook, HOOKS) for name, hook in (cfg.get('default_hooks') or {}).items()),
        ('custom_hooks', cfg.get('custom_hooks'), HOOKS),
        ('param_scheduler', cfg.get('param_scheduler'), PARAM_SCHEDULERS),
        ('optim_wrapper', cfg.get('optim_wrapper'), OPTIM_WRAPPERS),
        ('optim_wrapper.optimizer', (cfg.get('optim_wrapper') or {}).get('optimizer'), OPTIMIZERS),
        ('visualizer', cfg.get('visualizer'), VISUALIZERS),
        ('visualizer.vis_backends', (cfg.get('visualizer') or {}).get('vis_backends'), VISBACKENDS),
    ]
    for split in SPLITS:
        loader = cfg.get(f'{split}_dataloader') or {}
        found += [
            (f'{split}_dataloader.sampler', loader.get('sampler'), DATA_SAMPLERS),
            (f'{split}_cfg', cfg.get(f'{split}_cfg'), LOOPS),
            *(
                (f'{key}.pipeline', node.get('pipeline'), TRANSFORMS)
                for key, node in nodes(loader, f'{split}_dataloader')
            ),
            *((key, metric, METRICS) for key, metric in _metrics(cfg, split)),
        ]
    for key, part, registry in found:
        entries = [(f'{key}.{i}', entry) for i, entry in enumerate(part)] if isinstance(part, list) else [(key, part)]
        for name, entry in entries:
            if isinstance(entry, dict) and 'type' in entry:
                yield name, entry, registry


def _metrics(cfg: Config, split: str) -> list[tuple[str, dict[str, Any]]]:
    """List (config key, dict) of the metrics of a split's evaluator."""
    key = f'{split}_evaluator'
    given = cfg.get(key) or []
    if isinstance(given, dict) and 'metrics' in given:
        key, given = f'{key}.metrics', given['metrics']
    found = [(f'{key}.{i}', metric) for i, metric in enumerate(given)] if isinstance(given, list) else [(key, given)]
    return [(name, metric) for name, metric in found if isinstance(metric, dict)]


def _check_topk(cfg: Config) -> None:
    """Compare the `topk` of metrics with the classes of a classifier."""
    classes = cfg.model.get('num_classes')
    for key, metric in [entry for split in SPLITS for entry in _metrics(cfg, split)]:
        topk = metric.get('topk') or 0
        if classes and max(topk if isinstance(topk, (list, tuple)) else [topk]) > classes:
            raise UsageError(f'{key}.topk: expected at most model.num_classes, {classes}, got {topk}')


def _check_channels(settings: dict[str, Any], model: Any) -> None:
    """Compare the input channels that the config gives its neck and heads with the maps that they get.

    Args:
        settings: the config's model.
        model: the same, built on the meta device.
    """
    heads = [key for key in HEADS if settings.get(key)]
    if not hasattr(model, 'backbone') or not (settings.get('neck') or heads):
        return
    backbone, source = model.backbone, 'model.backbone'
    if isinstance(backbone, Backbone):
        sizes = [(backbone.embed_dims[i], IMAGE_SIZE // backbone.strides[i]) for i in backbone.out_indices]
        maps: list[Tensor] | None = [torch.empty(1, dim, side, side, device='meta') for dim, side in sizes]
    else:
        maps = _maps(backbone, torch.empty(1, 3, IMAGE_SIZE, IMAGE_SIZE, device='meta'))
    if maps and settings.get('neck'):
        neck = settings['neck'][0] if isinstance(settings['neck'], list) else settings['neck']
        if isinstance(neck.get('in_channels'), (list, tuple)):
            _compare('model.neck.in_channels', neck['in_channels'], [x.shape[1] for x in maps], source)
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
    except Exception:  # such as operators of other packages that have no implementation for that device
        return None
    return list(maps) if all(isinstance(x, Tensor) and x.ndim == 4 for x in maps) else None


def _compare_head(key: str, head: dict[str, Any], module: Any, channels: list[int], source: str) -> None:
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
    _compare(f'{key}.in_channels', given, channels if several or len(set(channels)) > 1 else channels[0], source)


def _compare(key: str, given: Any, expected: Any, source: str) -> None:
    if (list(given) if isinstance(given, tuple) else given) != expected:
        raise UsageError(f'{key}: expected the channels of {source}, {expected}, got {given}')
