"""What a config's types stand for: a name, with or without a scope, or a class.

Configs in Python's own style have classes, and the config that a run writes their full names:
`type=CheckpointHook`, 'mmengine.hooks.CheckpointHook'.
"""

from __future__ import annotations

from typing import Any

from mmengine.config import Config
from mmengine.registry import MODELS, Registry

LIBRARIES = ('mmdet', 'mmseg', 'mmpola')


def scope(cfg: Config) -> str:
    """Return the scope in which MMEngine looks for the config's names."""
    return cfg.get('default_scope') or 'mmengine'


def type_class(kind: Any, registry: Registry, scope_name: str | None = None) -> Any:
    """Return the class or function that a type stands for; None if there is none of its name.

    Args:
        kind: the type, as a name or as a class.
        registry: of MMEngine, such as `mmengine.registry.HOOKS`.
        scope_name: where names without a scope are looked for; None: in MMEngine's current one.
    """
    if not isinstance(kind, str):
        return kind
    with registry.switch_scope_and_registry(scope_name) as scoped:
        try:
            return scoped.get(kind)
        except RuntimeError:  # MMEngine's, of a name that it cannot import
            return None


def library(cfg: Config) -> str:
    """Return the library that the config's model is of: 'mmdet', 'mmseg' or 'mmpola'.

    A model of the user's own is of the library whose class it extends; of none of them, it is of
    the config's scope.
    """
    model_class = type_class(cfg.model.get('type'), MODELS, scope(cfg))
    for base in getattr(model_class, '__mro__', ()):
        package = base.__module__.partition('.')[0]
        if package in LIBRARIES:
            return package
    return scope(cfg)
