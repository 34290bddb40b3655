"""Find mistakes in a config without reading its data and weights: `validate_config`.

The config's model is built on the meta device, where tensors have shapes but need no memory. This
takes a second and finds every mistake in `model` that a constructor finds. In the other parts, only
names and a few numbers are checked: MMEngine builds them once, and `mistakes_in_one_line` then
reports what their constructors refuse.
"""

from __future__ import annotations

import copy
import importlib.util
import inspect
import re
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
from mmpola.engine.config import RUNNER_KEYS
from mmpola.engine.maps import check_channels
from mmpola.engine.mistakes import (
    arguments_of,
    class_of,
    mistake,
    mistakes_in_one_line,
    unknown_argument,
)
from mmpola.messages import UsageError, listed, suggestion

TRAINING_KEYS = re.compile('.*')
EVALUATION_KEYS = re.compile(
    '(model|default_hooks|custom_hooks|visualizer|test_|env_cfg|randomness|log_level|log_processor)'
    '.*'
)
PREDICTION_KEYS = re.compile(r'model.*|visualizer|test_dataloader\.dataset.*')
EXPORT_KEYS = re.compile(r'model.*|test_dataloader\.dataset.*')
"""The dotted config keys that are read by training, evaluating, predicting and exporting."""

PARTS = {
    r'default_hooks\.\w+': HOOKS,
    r'custom_hooks\.\d+': HOOKS,
    r'param_scheduler(\.\d+)?': PARAM_SCHEDULERS,
    r'optim_wrapper': OPTIM_WRAPPERS,
    r'optim_wrapper\.optimizer': OPTIMIZERS,
    r'visualizer': VISUALIZERS,
    r'visualizer\.vis_backends(\.\d+)?': VISBACKENDS,
    r'(train|val|test)_cfg': LOOPS,
    r'(train|val|test)_dataloader\.sampler': DATA_SAMPLERS,
    r'(train|val|test)_dataloader\.(.+\.)?pipeline\.\d+': TRANSFORMS,
    r'(train|val|test)_evaluator(\.metrics)?(\.\d+)?': METRICS,
}
"""Keys of the parts that MMEngine builds -> the registry of their classes."""

MMENGINE_ENTRIES = (
    'type',
    '_scope_',
    'priority',
    'convert_to_iter_based',
    'constructor',
    'paramwise_cfg',
)
"""Entries of a part that are not arguments of its class: MMEngine reads them itself."""

LOADER_NAMES = (
    *inspect.signature(DataLoader).parameters,
    'disable_subprocess_warning',
    'num_batch_per_epoch',
)

KNOWN_NAMES = {
    'auto_scale_lr': ('enable', 'base_batch_size'),
    'env_cfg': ('cudnn_benchmark', 'mp_cfg', 'dist_cfg', 'resource_limit'),
    'randomness': ('seed', 'diff_rank_seed', 'deterministic'),
    'train_dataloader': LOADER_NAMES,
    'val_dataloader': LOADER_NAMES,
    'test_dataloader': LOADER_NAMES,
}
"""What MMEngine reads in the dicts of a config that name no class."""

LOWEST_INTEGERS = {
    'train_cfg.max_epochs': 1,
    'train_cfg.max_iters': 1,
    'train_cfg.val_interval': 1,
    'train_dataloader.batch_size': 1,
    'train_dataloader.num_workers': 0,
    'val_dataloader.batch_size': 1,
    'val_dataloader.num_workers': 0,
    'test_dataloader.batch_size': 1,
    'test_dataloader.num_workers': 0,
    'optim_wrapper.accumulative_counts': 1,
    'auto_scale_lr.base_batch_size': 1,
    'randomness.seed': 0,
}
"""The smallest values of integers that are read late, some after the first epoch."""

LARGEST_SEED = 2**32 - 1
"""The largest seed of NumPy's generator."""

LOG_LEVELS = ('CRITICAL', 'ERROR', 'WARNING', 'INFO', 'DEBUG', 'NOTSET')

MISSPELLING_SIMILARITY = 0.885
"""An unknown key that is at least as similar to a known one counts as misspelt.

trian_cfg has 0.89 to train_cfg, but test_pipeline, a variable that a dumped config keeps, has 0.88
to tta_pipeline.
"""


def validate_config(cfg: Config, used: re.Pattern[str] = TRAINING_KEYS) -> nn.Module:
    """Check names, a few numbers and the model of a config; the config stays as it is.

    A key at the top of the config that nothing reads is printed if it resembles one that is read.

    Args:
        cfg: the config.
        used: the keys that will be read, such as `PREDICTION_KEYS`; others are not checked.

    Returns:
        The model, on the meta device.

    Raises:
        UsageError: something is wrong; the message is one line that names the config key, the rule
            and what was given.
    """
    _check_plain_names(cfg, used)
    _check_values(cfg, used)
    model = build_on_meta(cfg)  # first: it sets the scope for looking up the other parts
    check_channels(cfg.model.get('module', cfg.model), model)
    for key, node in nodes(cfg._cfg_dict, ''):
        if 'type' not in node or not used.fullmatch(key):
            continue
        for pattern, registry in PARTS.items():
            if re.fullmatch(pattern, key):
                _check_arguments(key, node, registry)
                if registry is METRICS:
                    _check_topk(key, node, cfg.model.get('num_classes'))
    return model


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
    model_cfg = copy.deepcopy(cfg.model)  # DETR-like detectors change their config
    with mistakes_in_one_line({'model': cfg.model}), torch.device('meta'):
        model = MODELS.build(model_cfg)
    # MMEngine loads weights into the model that a wrapper for test-time augmentation wraps
    return getattr(model, 'module', model)


def _check_plain_names(cfg: Config, used: re.Pattern[str]) -> None:
    """Refuse unknown names in `KNOWN_NAMES`; print what resembles a key that MMEngine reads."""
    for key, known in KNOWN_NAMES.items():
        if not used.fullmatch(key):
            continue
        for name in cfg.get(key) or ():
            if name not in known:
                meant = suggestion(str(name), known)
                raise UsageError(f'{key}: expected {listed(known, None)}, got {name}{meant}')
    if used is not TRAINING_KEYS:
        return
    for name in cfg:
        if name in RUNNER_KEYS:
            continue
        meant = suggestion(name, RUNNER_KEYS, MISSPELLING_SIMILARITY)
        if meant:
            print(f'{name}: MMEngine does not read this key{meant}')


def _check_values(cfg: Config, used: re.Pattern[str]) -> None:
    """Check `LOWEST_INTEGERS` and the level of the log."""
    for key, lowest in LOWEST_INTEGERS.items():
        part, name = key.split('.')
        value = (cfg.get(part) or {}).get(name)
        if value is None or not used.fullmatch(key):
            continue
        if type(value) is not int or value < lowest:
            raise UsageError(f'{key}: expected an integer from {lowest}, got {value!r}')
        if key == 'randomness.seed' and value > LARGEST_SEED:
            raise UsageError(f'{key}: expected an integer up to {LARGEST_SEED}, got {value}')
    level = cfg.get('log_level', 'INFO')
    if not used.fullmatch('log_level') or not isinstance(level, str):  # MMEngine takes numbers too
        return
    if level not in LOG_LEVELS:
        meant = suggestion(level, LOG_LEVELS)
        raise UsageError(f'log_level: expected {listed(LOG_LEVELS, None)}, got {level}{meant}')


def _check_arguments(key: str, node: dict[str, Any], registry: Registry) -> None:
    """Refuse a class that is not registered, or an argument that it does not take."""
    try:
        cls = class_of(node, registry)
    except KeyError as error:
        raise UsageError(mistake(key, node, registry, error)) from None
    known, takes_others = arguments_of(cls)
    for name in node:
        if name not in known and name not in MMENGINE_ENTRIES and not takes_others:
            raise UsageError(unknown_argument(key, node, cls, str(name)))


def _check_topk(key: str, node: dict[str, Any], num_classes: int | None) -> None:
    """Compare the `topk` of a metric with the classes of a classifier."""
    topk = node.get('topk')
    if topk is None or num_classes is None:
        return
    largest = topk
    if isinstance(topk, (list, tuple)):
        largest = max(topk)
    if largest > num_classes:
        raise UsageError(
            f'{key}.topk: expected at most model.num_classes, {num_classes}, got {topk}'
        )
