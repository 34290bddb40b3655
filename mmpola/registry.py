"""The MMEngine registries of scope 'mmpola', and the list of what is in them.

MMEngine imports this module for a config with `type='mmpola.…'`, so no config needs
`custom_imports`. It reports an ImportError raised here as 'not in the registry', so nothing that
may fail is imported. A class needs no decorator: its module is imported, and the class registered,
when a config first names it.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from mmengine import registry as mmengine_registry

from mmpola import PUBLIC_NAMES, backbones

REGISTERED_NAMES: dict[str, dict[str, str]] = {
    'MODELS': {
        **{name: PUBLIC_NAMES[name] for name in dir(backbones)},
        'ClassificationPreprocessor': 'mmpola.pretraining.preprocessor',
        'ImageClassifier': 'mmpola.pretraining.image_classifier',
        'OnnxTeacher': 'mmpola.pretraining.teacher',
        'SequenceClassifier': 'mmpola.papers.lra.classifier',
        'SequenceEncoder': 'mmpola.papers.lra.encoder',
        'SequencePreprocessor': 'mmpola.papers.lra.preprocessor',
        'TimmTeacher': 'mmpola.pretraining.teacher',
    },
    'DATASETS': {
        'ByteText': 'mmpola.papers.lra.texts',
        'ClassFolders': 'mmpola.pretraining.class_folders',
        'GreyCIFAR': 'mmpola.papers.lra.images',
        'ListOps': 'mmpola.papers.lra.texts',
        'Pathfinder': 'mmpola.papers.lra.images',
        'Retrieval': 'mmpola.papers.lra.texts',
        'SeededDataset': 'mmpola.openmmlab.run.seeding',
        'UnlabelledImages': 'mmpola.pretraining.class_folders',
    },
    'DATA_SAMPLERS': {'SeededBatchSampler': 'mmpola.openmmlab.run.seeding'},
    'FUNCTIONS': {'sequence_collate': 'mmpola.papers.lra.collate'},
    'METRICS': {'Accuracy': 'mmpola.pretraining.accuracy'},
    'LOOPS': {
        'ExactEpochLoop': 'mmpola.openmmlab.run.loops',
        'ExactIterLoop': 'mmpola.openmmlab.run.loops',
    },
    'HOOKS': {
        'AtomicCheckpointHook': 'mmpola.openmmlab.run.atomic_checkpoint',
        'ClassCountHook': 'mmpola.pretraining.class_count',
        'CompileBackboneHook': 'mmpola.pretraining.compile_backbone',
        'FinalTestHook': 'mmpola.openmmlab.run.final_test',
        'FiniteLossHook': 'mmpola.openmmlab.run.finite',
        'FirstBatchHook': 'mmpola.openmmlab.screen.first_batch',
        'Float32SamplingHook': 'mmpola.pretraining.float32_sampling',
        'MeanBuffersHook': 'mmpola.openmmlab.run.mean_buffers',
        'PreemptionHook': 'mmpola.openmmlab.run.preemption',
        'ShowHook': 'mmpola.openmmlab.results.show',
    },
    'OPTIM_WRAPPERS': {'BFloat16OptimWrapper': 'mmpola.pretraining.optim'},
    'OPTIM_WRAPPER_CONSTRUCTORS': {
        'LayerDecayOptimizerConstructor': 'mmpola.pretraining.optim',
        'NoDecayOptimizerConstructor': 'mmpola.pretraining.optim',
    },
    'PARAM_SCHEDULERS': {'WarmupCosineLR': 'mmpola.pretraining.schedules'},
}
"""Registry of MMEngine -> the module of each of our names in it."""


class _ListedRegistry(mmengine_registry.Registry):
    """A child of a registry of MMEngine that imports a listed class when it is asked for."""

    def __init__(self, parent: str) -> None:
        registry = getattr(mmengine_registry, parent)
        super().__init__(registry.name, parent=registry, scope='mmpola')
        self.listed = REGISTERED_NAMES[parent]

    def get(self, key: str) -> Any:
        """Return a class by its name, with or without the scope; see `Registry.get`."""
        name = key.removeprefix('mmpola.')
        if name in self.listed and name not in self.module_dict:
            module = import_module(self.listed[name])
            self.register_module(name=name, module=getattr(module, name))
        return self.module_dict.get(name) or super().get(key)


MODELS = _ListedRegistry('MODELS')
DATASETS = _ListedRegistry('DATASETS')
DATA_SAMPLERS = _ListedRegistry('DATA_SAMPLERS')
FUNCTIONS = _ListedRegistry('FUNCTIONS')
METRICS = _ListedRegistry('METRICS')
LOOPS = _ListedRegistry('LOOPS')
HOOKS = _ListedRegistry('HOOKS')
OPTIM_WRAPPERS = _ListedRegistry('OPTIM_WRAPPERS')
OPTIM_WRAPPER_CONSTRUCTORS = _ListedRegistry('OPTIM_WRAPPER_CONSTRUCTORS')
PARAM_SCHEDULERS = _ListedRegistry('PARAM_SCHEDULERS')
