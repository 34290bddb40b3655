"""The MMEngine registries of scope 'mmpola'.

MMEngine imports this module for a config with `type='mmpola.…'`, then the `locations` below, so no config needs
`custom_imports`. It reports an ImportError raised here as 'not in the registry', so nothing that may fail is imported.
Without MMEngine, which is an optional extra, nothing is registered and the classes are used by their Python names.
"""

from __future__ import annotations

from typing import Any

try:
    from mmengine import registry as mmengine_registry
except ModuleNotFoundError:
    mmengine_registry = None


class _NoRegistry:
    """Replaces a registry where MMEngine is not installed: `register_module()` returns the class unchanged."""

    def register_module(self) -> Any:
        return lambda cls: cls


def _child(name: str, parent: str, locations: list[str]) -> Any:
    if mmengine_registry is None:
        return _NoRegistry()
    return mmengine_registry.Registry(
        name, parent=getattr(mmengine_registry, parent), scope='mmpola', locations=locations
    )


MODELS = _child('model', 'MODELS', ['mmpola.backbones', 'mmpola.classification'])
DATASETS = _child('dataset', 'DATASETS', ['mmpola.data', 'mmpola.sequences'])
DATA_SAMPLERS = _child('data sampler', 'DATA_SAMPLERS', ['mmpola.engine.draws'])
METRICS = _child('metric', 'METRICS', ['mmpola.classification'])
LOOPS = _child('loop', 'LOOPS', ['mmpola.engine.loop'])
HOOKS = _child('hook', 'HOOKS', ['mmpola.engine.hooks', 'mmpola.classification'])
FUNCTIONS = _child('function', 'FUNCTIONS', ['mmpola.sequences'])
OPTIM_WRAPPER_CONSTRUCTORS = _child('optim wrapper constructor', 'OPTIM_WRAPPER_CONSTRUCTORS', ['mmpola.engine.optim'])
