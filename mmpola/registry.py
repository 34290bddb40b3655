"""The MMEngine registry nodes of scope 'mmpola', nothing else.

MMEngine imports this module when a config says `type='mmpola.…'`, then the `locations`, so no config needs
`custom_imports`. It hides an ImportError raised here behind 'not in the registry': nothing that may fail is imported.
Without MMEngine, which is an optional extra, classes register nowhere and are used by their Python names.
"""

from __future__ import annotations

from typing import Any

try:
    from mmengine import registry as mmengine_registry
except ModuleNotFoundError:
    mmengine_registry = None


class _NoRegistry:
    """Stands where MMEngine is not installed: `register_module()` leaves the class as it is."""

    def register_module(self) -> Any:
        return lambda cls: cls


def _child(name: str, parent: str, locations: list[str]) -> Any:
    if mmengine_registry is None:
        return _NoRegistry()
    return mmengine_registry.Registry(
        name, parent=getattr(mmengine_registry, parent), scope='mmpola', locations=locations
    )


MODELS = _child('model', 'MODELS', ['mmpola.backbones', 'mmpola.classification'])
DATASETS = _child('dataset', 'DATASETS', ['mmpola.data'])
DATA_SAMPLERS = _child('data sampler', 'DATA_SAMPLERS', ['mmpola.engine.draws'])
METRICS = _child('metric', 'METRICS', ['mmpola.classification'])
LOOPS = _child('loop', 'LOOPS', ['mmpola.engine.loop'])
HOOKS = _child('hook', 'HOOKS', ['mmpola.engine.hooks', 'mmpola.classification'])
OPTIM_WRAPPER_CONSTRUCTORS = _child('optim wrapper constructor', 'OPTIM_WRAPPER_CONSTRUCTORS', ['mmpola.engine.optim'])
