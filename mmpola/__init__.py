"""mmpola: polarity-aware linear attention backbones for OpenMMLab, timm and plain PyTorch.

Every public name is an attribute of this package, `mmpola.PolaSwin` in Python as in a config, and
its module is imported on first use (PEP 562). `dir(mmpola)` lists the names.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = '0.1.0'

_NAMES = {
    'mmpola.ops': (
        'ExpMap',
        'PowerMap',
        'available_backends',
        'mix_and_gate',
        'polarity_attention',
    ),
    'mmpola.layers': (
        'PolaAttention',
        'PolaMultiheadAttention',
        'PolaPlusAttention',
        'PolaSpatialReductionAttention',
    ),
    'mmpola.backbones.pola_deit': ('PolaDeiT',),
    'mmpola.backbones.pola_pvt': ('PolaPVT',),
    'mmpola.backbones.pola_pvt_v2': ('PolaPVTv2',),
    'mmpola.backbones.pola_swin': ('PolaSwin',),
    'mmpola.backbones.polaformer_pp': ('PolaFormerPP',),
    'mmpola.classification.accuracy': ('Accuracy',),
    'mmpola.classification.hooks': ('ClassCountHook',),
    'mmpola.classification.image_classifier': ('ImageClassifier',),
    'mmpola.classification.preprocessor': ('ClassificationPreprocessor',),
    'mmpola.classification.class_folders': ('ClassFolders',),
    'mmpola.lra.classifier': ('SequenceClassifier',),
    'mmpola.lra.collate': ('sequence_collate',),
    'mmpola.lra.encoder': ('SequenceEncoder',),
    'mmpola.lra.images': ('GreyCIFAR', 'Pathfinder'),
    'mmpola.lra.preprocessor': ('SequencePreprocessor',),
    'mmpola.lra.texts': ('ByteText', 'ListOps', 'Retrieval'),
    'mmpola.engine.seeding': ('SeededBatchSampler', 'SeededDataset'),
    'mmpola.engine.loops': ('ExactEpochLoop', 'ExactIterLoop'),
    'mmpola.engine.optim': (
        'BFloat16OptimWrapper',
        'LayerDecayOptimizerConstructor',
        'NoDecayOptimizerConstructor',
    ),
    'mmpola.engine.schedules': ('WarmupCosineLR',),
    'mmpola.engine.hooks.checkpoint': ('AtomicCheckpointHook',),
    'mmpola.engine.hooks.compile_backbone': ('CompileBackboneHook',),
    'mmpola.engine.hooks.final_test': ('FinalTestHook',),
    'mmpola.engine.hooks.finite': ('FiniteLossHook',),
    'mmpola.engine.hooks.mean_buffers': ('MeanBuffersHook',),
    'mmpola.engine.hooks.preemption': ('PreemptionHook',),
}
MODULES = {name: module for module, names in _NAMES.items() for name in names}
"""The module of each public name; `mmpola.registry` reads it too."""


def __getattr__(name: str) -> Any:
    if name not in MODULES:
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
    value = globals()[name] = getattr(import_module(MODULES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *MODULES})
