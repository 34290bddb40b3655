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

from mmpola import PUBLIC_NAMES
from mmpola.zoo import NAMED

REGISTERED_NAMES: dict[str, dict[str, str]] = {
    'MODELS': {
        **{backbone: PUBLIC_NAMES[backbone] for backbone, _ in NAMED.values()},
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
        'ChecksHook': 'mmpola.openmmlab.checks.built',
        'ClassCountHook': 'mmpola.pretraining.class_count',
        'CompileBackboneHook': 'mmpola.pretraining.compile_backbone',
        'FinalTestHook': 'mmpola.openmmlab.run.final_test',
        'FiniteLossHook': 'mmpola.openmmlab.run.finite',
        'FirstBatchHook': 'mmpola.openmmlab.screen.first_batch',
        'Float32SamplingHook': 'mmpola.pretraining.float32_sampling',
        'MeanBuffersHook': 'mmpola.openmmlab.run.mean_buffers',
        'MistakesHook': 'mmpola.openmmlab.results.mistakes',
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

EARLIER_MODULES = {
    'mmpola.backbones.pola_deit': 'mmpola.papers.ablations.pola_deit',
    'mmpola.classification.accuracy': 'mmpola.pretraining.accuracy',
    'mmpola.classification.class_folders': 'mmpola.pretraining.class_folders',
    'mmpola.classification.hooks': 'mmpola.pretraining.class_count',
    'mmpola.classification.image_classifier': 'mmpola.pretraining.image_classifier',
    'mmpola.classification.preprocessor': 'mmpola.pretraining.preprocessor',
    'mmpola.classification.teacher': 'mmpola.pretraining.teacher',
    'mmpola.engine.hooks.atomic_checkpoint': 'mmpola.openmmlab.run.atomic_checkpoint',
    'mmpola.engine.hooks.compile_backbone': 'mmpola.pretraining.compile_backbone',
    'mmpola.engine.hooks.final_test': 'mmpola.openmmlab.run.final_test',
    'mmpola.engine.hooks.finite': 'mmpola.openmmlab.run.finite',
    'mmpola.engine.hooks.first_batch': 'mmpola.openmmlab.screen.first_batch',
    'mmpola.engine.hooks.float32_sampling': 'mmpola.pretraining.float32_sampling',
    'mmpola.engine.hooks.mean_buffers': 'mmpola.openmmlab.run.mean_buffers',
    'mmpola.engine.hooks.preemption': 'mmpola.openmmlab.run.preemption',
    'mmpola.engine.hooks.show': 'mmpola.openmmlab.results.show',
    'mmpola.engine.loops': 'mmpola.openmmlab.run.loops',
    'mmpola.engine.optim': 'mmpola.pretraining.optim',
    'mmpola.engine.schedules': 'mmpola.pretraining.schedules',
    'mmpola.engine.seeding': 'mmpola.openmmlab.run.seeding',
    'mmpola.lra.classifier': 'mmpola.papers.lra.classifier',
    'mmpola.lra.collate': 'mmpola.papers.lra.collate',
    'mmpola.lra.encoder': 'mmpola.papers.lra.encoder',
    'mmpola.lra.images': 'mmpola.papers.lra.images',
    'mmpola.lra.preprocessor': 'mmpola.papers.lra.preprocessor',
    'mmpola.lra.texts': 'mmpola.papers.lra.texts',
}
"""Where the classes of version 0.1 were -> where they are. Runs wrote these names into configs."""


class _ListedRegistry(mmengine_registry.Registry):
    """A child of a registry of MMEngine that imports a listed class when it is asked for."""

    def __init__(self, parent: str) -> None:
        registry = getattr(mmengine_registry, parent)
        super().__init__(registry.name, parent=registry, scope='mmpola')
        self.listed = REGISTERED_NAMES[parent]

    def get(self, key: str) -> Any:
        """Return a class by its name, with or without the scope, or by an earlier full name."""
        name = key.removeprefix('mmpola.')
        module, _, class_name = name.rpartition('.')
        if f'mmpola.{module}' in EARLIER_MODULES:
            name = class_name
        if name in self.listed and name not in self.module_dict:
            found = import_module(self.listed[name])
            self.register_module(name=name, module=getattr(found, name))
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
