"""The MMEngine registries of scope 'mmpola'.

MMEngine imports this module for a config with `type='mmpola.…'`, so no config needs
`custom_imports`. It reports an ImportError raised here as 'not in the registry', so nothing that
may fail is imported. Without MMEngine, which is an optional extra, nothing is registered and the
classes are used by their Python names.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from mmpola import MODULES

try:
    from mmengine import registry as mmengine_registry
except ModuleNotFoundError:

    class _Registry:
        """Replaces a registry where MMEngine is not installed: `register_module()` returns the class unchanged."""

        def register_module(self) -> Any:
            return lambda cls: cls

    def _child(parent: str) -> Any:
        return _Registry()

else:

    class _LazyRegistry(mmengine_registry.Registry):
        """Imports the one module that registers a name; all of them only for a name that is not in `MODULES`."""

        def get(self, key: str) -> Any:
            if key in MODULES and key not in self.module_dict:
                import_module(MODULES[key])
            return self.module_dict.get(key) or super().get(key)

    def _child(parent: str) -> Any:
        registry = getattr(mmengine_registry, parent)
        return _LazyRegistry(
            registry.name, parent=registry, scope='mmpola', locations=sorted({*MODULES.values()})
        )


MODELS = _child('MODELS')
DATASETS = _child('DATASETS')
DATA_SAMPLERS = _child('DATA_SAMPLERS')
METRICS = _child('METRICS')
LOOPS = _child('LOOPS')
HOOKS = _child('HOOKS')
FUNCTIONS = _child('FUNCTIONS')
OPTIM_WRAPPERS = _child('OPTIM_WRAPPERS')
OPTIM_WRAPPER_CONSTRUCTORS = _child('OPTIM_WRAPPER_CONSTRUCTORS')
PARAM_SCHEDULERS = _child('PARAM_SCHEDULERS')
