"""The MMEngine registries of scope 'mmpola'.

MMEngine imports this module for a config with `type='mmpola.…'`, so no config needs
`custom_imports`. It reports an ImportError raised here as 'not in the registry', so nothing that
may fail is imported. Without MMEngine, which is an optional extra, nothing is registered and the
classes can only be imported.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from mmpola import PUBLIC_NAMES

REGISTERED_NAMES = {
    'Accuracy': 'mmpola.classification.accuracy',
    'ClassCountHook': 'mmpola.classification.hooks',
    'ClassFolders': 'mmpola.classification.class_folders',
    'ClassificationPreprocessor': 'mmpola.classification.preprocessor',
    'ImageClassifier': 'mmpola.classification.image_classifier',
    'ByteText': 'mmpola.lra.texts',
    'GreyCIFAR': 'mmpola.lra.images',
    'ListOps': 'mmpola.lra.texts',
    'Pathfinder': 'mmpola.lra.images',
    'Retrieval': 'mmpola.lra.texts',
    'SequenceClassifier': 'mmpola.lra.classifier',
    'SequenceEncoder': 'mmpola.lra.encoder',
    'SequencePreprocessor': 'mmpola.lra.preprocessor',
    'sequence_collate': 'mmpola.lra.collate',
    'AtomicCheckpointHook': 'mmpola.engine.hooks.atomic_checkpoint',
    'BFloat16OptimWrapper': 'mmpola.engine.optim',
    'CompileBackboneHook': 'mmpola.engine.hooks.compile_backbone',
    'CurvesHook': 'mmpola.engine.hooks.curves',
    'ExactEpochLoop': 'mmpola.engine.loops',
    'ExactIterLoop': 'mmpola.engine.loops',
    'Float32SamplingHook': 'mmpola.engine.hooks.float32_sampling',
    'FinalTestHook': 'mmpola.engine.hooks.final_test',
    'FirstBatchHook': 'mmpola.engine.hooks.first_batch',
    'FiniteLossHook': 'mmpola.engine.hooks.finite',
    'LayerDecayOptimizerConstructor': 'mmpola.engine.optim',
    'MeanBuffersHook': 'mmpola.engine.hooks.mean_buffers',
    'NoDecayOptimizerConstructor': 'mmpola.engine.optim',
    'PreemptionHook': 'mmpola.engine.hooks.preemption',
    'SeededBatchSampler': 'mmpola.engine.seeding',
    'SeededDataset': 'mmpola.engine.seeding',
    'WarmupCosineLR': 'mmpola.engine.schedules',
}
"""The module of each type that configs name, besides the backbones, which are in `PUBLIC_NAMES`."""

MODULE_OF_NAME = {**PUBLIC_NAMES, **REGISTERED_NAMES}


try:
    from mmengine import registry as mmengine_registry
except ModuleNotFoundError:

    class _EmptyRegistry:
        """Replaces a registry where MMEngine is not installed."""

        def register_module(self) -> Any:
            """Return a decorator that returns the class unchanged."""
            return lambda cls: cls

    def _child(parent: str) -> Any:
        return _EmptyRegistry()

else:

    class _LazyRegistry(mmengine_registry.Registry):
        """Imports only the module that registers a name; for an unknown name, all modules."""

        def get(self, key: str) -> Any:
            if key in MODULE_OF_NAME and key not in self.module_dict:
                import_module(MODULE_OF_NAME[key])
            return self.module_dict.get(key) or super().get(key)

    def _child(parent: str) -> Any:
        registry = getattr(mmengine_registry, parent)
        locations = sorted(set(MODULE_OF_NAME.values()))
        return _LazyRegistry(registry.name, parent=registry, scope='mmpola', locations=locations)


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
