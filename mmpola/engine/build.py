"""The model of a config on the meta device: its tensors have shapes, but need no memory.

Building it takes a second and finds every mistake in the config's `model` that a constructor finds.
"""

from __future__ import annotations

import copy
import importlib.util
import re
import traceback
from typing import Any

import torch
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
from torch import nn

from mmpola.config_tree import nodes
from mmpola.messages import UsageError

NOT_REGISTERED = re.compile(r'(\S+) is not in the (\S+) registry')
UNEXPECTED = re.compile(r"got an unexpected keyword argument '(\w+)'")
OWN_MESSAGE = re.compile(r'\w+: expected ')
"""How the messages of mmpola's constructors begin: with the argument's name."""


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
        raise UsageError(mistake(key, node, error)) from error
    return getattr(model, 'module', model)  # of test-time augmentation: MMEngine loads into the model it wraps


def mistake(key: str, node: dict[str, Any], error: Exception) -> str:
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
