"""Find the mistakes in a config that are seen without its data and weights: `validate_config` is the entry.

The config's model is built on the meta device, where tensors have shapes, but need no memory. That
takes a second and finds every mistake in `model` that a constructor finds.
"""

from __future__ import annotations

import copy
import importlib.util
import inspect
import logging
from collections.abc import Iterator
from fnmatch import fnmatchcase
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
from torch import nn
from torch.utils.data import DataLoader

from mmpola.config_tree import nodes
from mmpola.engine.config import PLAIN, READ, SPLITS, is_variable
from mmpola.engine.maps import check_channels
from mmpola.engine.mistakes import class_of, defaults_of, mistake
from mmpola.messages import UsageError, listed, suggestion

MISSPELT = 0.885
"""Similarity to a key that is read: trian_cfg has 0.89 to train_cfg, but test_pipeline, a variable that a dumped config
keeps, has 0.88 to tta_pipeline."""

MODEL = ('model*', 'default_scope', 'custom_imports')

TRAINED = ('*',)
EVALUATED = (
    *MODEL,
    *('default_hooks*', 'custom_hooks*', 'visualizer*', 'test_*'),
    *('env_cfg*', 'randomness*', 'log_level', 'log_processor*'),
)
PREDICTED = (*MODEL, 'visualizer', 'test_dataloader.dataset*')
EXPORTED = (*MODEL, 'test_dataloader.dataset*')
"""Patterns of the config keys that are read by training, evaluating, predicting and exporting."""

INTEGERS = {
    'train_cfg': {'max_epochs': 1, 'max_iters': 1, 'val_interval': 1},
    'optim_wrapper': {'accumulative_counts': 1},
    **{f'{split}_dataloader': {'batch_size': 1, 'num_workers': 0} for split in SPLITS},
}
"""The smallest values of integers that MMEngine reads when data and weights are loaded."""

LARGEST_SEED = 2**32 - 1
"""Of NumPy's generator."""

WITH_NUMBERS = (HOOKS, OPTIM_WRAPPERS, OPTIMIZERS, PARAM_SCHEDULERS)
"""Registries of classes that compute with an argument whose default is a number."""

REMOVED = ('priority', 'convert_to_iter_based', 'constructor', 'paramwise_cfg')
"""Entries of hooks, schedules and wrappers of optimizers that MMEngine removes before it builds them."""

OF_LOADERS = (
    'sampler',
    'batch_sampler',
    'dataset',
    'collate_fn',
    'worker_init_fn',
    'num_batch_per_epoch',
)
"""Entries of a loader's config that are not, or not as they are, arguments of torch's DataLoader."""


def validate_config(cfg: Config, used: tuple[str, ...] = TRAINED) -> nn.Module:
    """Check names, arguments and the model of a config, and change nothing.

    Args:
        cfg: the config.
        used: patterns of the keys that will be read, such as `PREDICTED`; others may have mistakes.

    Returns:
        The model, on the meta device.

    Raises:
        UsageError: something is wrong; the message is one line that names the config key, the rule
            and what was given.
    """
    _check_names(cfg, used)
    _check_numbers(cfg, used)
    model = build_on_meta(
        cfg
    )  # first: it sets the default scope, in which the other parts are looked up
    check_channels(cfg.model.get('module', cfg.model), model)
    for key, node, registry in _parts(cfg):
        if not _matches(key, used):
            continue
        try:
            _check_arguments(node, registry)
        except Exception as error:  # constructors of other packages raise exceptions of any type
            raise UsageError(mistake(key, node, registry, error)) from error
    _check_topk(cfg, used)
    return model


def _matches(key: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(key, pattern) for pattern in patterns)


def build_on_meta(cfg: Config) -> nn.Module:
    """Build the config's model on the meta device; the config stays as it is.

    Raises:
        UsageError: it cannot be built; the message is one line that names the config key, the rule
            and what was given.
    """
    if not isinstance(cfg.get('model'), dict):
        raise UsageError(f'model: expected a dict, got {cfg.get("model")}')
    scope = cfg.get('default_scope', 'mmengine')
    if scope not in MODELS.children and importlib.util.find_spec(scope) is None:
        raise UsageError(
            f'default_scope: expected an installed package, such as mmdet, got {scope}'
        )
    init_default_scope(scope)
    try:
        model = _build(cfg.model)
    except Exception as error:  # constructors of other packages raise exceptions of any type
        parts = [
            ('model', cfg.model),
            *((key, node) for key, node in nodes(cfg.model, 'model') if 'type' in node),
        ]
        key, node = next((part for part in reversed(parts) if _fails(part[1], error)), parts[0])
        raise UsageError(mistake(key, node, MODELS, error)) from error
    return getattr(
        model, 'module', model
    )  # of test-time augmentation: MMEngine loads into the model it wraps


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


def _check_names(cfg: Config, used: tuple[str, ...]) -> None:
    """Refuse unknown names in dicts without a class, arguments without one, and what resembles a key that is read."""
    known = {
        **PLAIN,
        **{
            f'{split}_dataloader': (*inspect.signature(DataLoader).parameters, *OF_LOADERS)
            for split in SPLITS
        },
    }
    for key, names in known.items():
        for name in (name for name in cfg.get(key) or () if name not in names):
            if _matches(key, used):
                meant = suggestion(str(name), names)
                raise UsageError(f'{key}: expected {listed(names, None)}, got {name}{meant}')
    for key, node in nodes(cfg._cfg_dict, ''):
        called = _matches(key, used) and ('type' in node or key in READ)
        if called and (unnamed := [name for name in node if not isinstance(name, str)]):
            raise UsageError(f'{key}: expected names of arguments, got {listed(unnamed)}')
    whole = tuple(pattern.partition('.')[0] for pattern in used)
    read = [key for key in READ if _matches(key, whole)]
    for name in cfg:
        if (
            name not in READ
            and not is_variable(cfg, name)
            and (meant := suggestion(name, read, MISSPELT))
        ):
            raise UsageError(f'{name}: expected a key that MMEngine reads, got {name}{meant}')


def _check_numbers(cfg: Config, used: tuple[str, ...]) -> None:
    """Check `INTEGERS`, the seed and the level of the log."""
    for part, names in INTEGERS.items():
        for name, lowest in names.items():
            key = f'{part}.{name}'
            value = (cfg.get(part) or {}).get(name)
            if value is None or not _matches(key, used):
                continue
            if type(value) is not int or value < lowest:
                rule = 'a positive integer' if lowest == 1 else f'an integer from {lowest}'
                raise UsageError(f'{key}: expected {rule}, got {value!r}')
    seed = (cfg.get('randomness') or {}).get('seed')
    is_seed = type(seed) is int and 0 <= seed <= LARGEST_SEED
    if seed is not None and not is_seed and _matches('randomness.seed', used):
        raise UsageError(
            f'randomness.seed: expected an integer from 0 to {LARGEST_SEED}, got {seed!r}'
        )
    level = cfg.get('log_level', 'INFO')
    number = logging.getLevelName(level) if isinstance(level, str) else level  # of a known name
    if type(number) is not int and _matches('log_level', used):
        raise UsageError(
            f'log_level: expected DEBUG, INFO, WARNING, ERROR or CRITICAL, got {level!r}'
        )


def _check_arguments(node: dict[str, Any], registry: Registry) -> None:
    """Build a part of a config, or, if that needs a runner or data, compare its names with its class's arguments."""
    arguments = {name: value for name, value in copy.deepcopy(node).items() if name not in REMOVED}
    if registry in WITH_NUMBERS:
        _check_types(arguments, registry)
    if registry in (TRANSFORMS, OPTIMIZERS, PARAM_SCHEDULERS):
        parameters = [nn.Parameter(torch.empty(0))]
        if registry is OPTIMIZERS:
            arguments['params'] = parameters
        if registry is PARAM_SCHEDULERS:
            arguments['optimizer'] = torch.optim.SGD(parameters, lr=1.0, momentum=0.9)
        registry.build(arguments)
        return
    cls = class_of(arguments, registry)
    del arguments['type']
    arguments.pop('_scope_', None)
    inspect.signature(cls).bind_partial(**arguments)
    if registry is HOOKS and cls.__module__.startswith(
        'mmpola.'
    ):  # others may ask for parts of the runner
        cls(**arguments)


def _check_types(arguments: dict[str, Any], registry: Registry) -> None:
    """Refuse text, such as a mistyped number, for arguments whose default is a number."""
    for name, default in defaults_of(class_of(arguments, registry)).items():
        if type(default) in (int, float) and isinstance(arguments.get(name), str):
            raise ValueError(f'{name}: expected a number, got {arguments[name]!r}')


def _parts(cfg: Config) -> Iterator[tuple[str, dict[str, Any], Registry]]:
    """Yield (config key, dict, registry) of the parts that MMEngine builds from a dict of their own."""
    found: list[tuple[str, Any, Registry]] = [
        *(
            (f'default_hooks.{name}', hook, HOOKS)
            for name, hook in (cfg.get('default_hooks') or {}).items()
        ),
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
        entries = (
            [(f'{key}.{i}', entry) for i, entry in enumerate(part)]
            if isinstance(part, list)
            else [(key, part)]
        )
        for name, entry in entries:
            if isinstance(entry, dict) and 'type' in entry:
                yield name, entry, registry


def _metrics(cfg: Config, split: str) -> list[tuple[str, dict[str, Any]]]:
    """List (config key, dict) of the metrics of a split's evaluator."""
    key = f'{split}_evaluator'
    given = cfg.get(key) or []
    if isinstance(given, dict) and 'metrics' in given:
        key, given = f'{key}.metrics', given['metrics']
    found = (
        [(f'{key}.{i}', metric) for i, metric in enumerate(given)]
        if isinstance(given, list)
        else [(key, given)]
    )
    return [(name, metric) for name, metric in found if isinstance(metric, dict)]


def _check_topk(cfg: Config, used: tuple[str, ...]) -> None:
    """Compare the `topk` of metrics with the classes of a classifier."""
    classes = cfg.model.get('num_classes')
    metrics = [entry for split in SPLITS for entry in _metrics(cfg, split)]
    for key, metric in (entry for entry in metrics if _matches(entry[0], used)):
        topk = metric.get('topk') or 0
        if classes and max(topk if isinstance(topk, (list, tuple)) else [topk]) > classes:
            raise UsageError(
                f'{key}.topk: expected at most model.num_classes, {classes}, got {topk}'
            )
