"""Classification: the network, which needs torch alone, and what MMEngine's Runner trains and tests it with."""

from mmpola.classification.network import Classifier

try:
    from mmpola.classification.accuracy import Accuracy
    from mmpola.classification.dataset import ClassFolders
    from mmpola.classification.draws import DrawSampler
    from mmpola.classification.hooks import (
        AtomicCheckpointHook,
        BatchSizeHook,
        ClassCountHook,
        MeanBuffersHook,
        PreemptionHook,
        ThroughputHook,
        UnreadableImagesHook,
    )
    from mmpola.classification.image_classifier import ImageClassifier
    from mmpola.classification.loop import ExactEpochLoop
    from mmpola.classification.preprocessor import ClassificationPreprocessor
except ModuleNotFoundError as error:  # MMEngine is an optional extra
    if error.name != 'mmengine':
        raise

__all__ = [
    'Accuracy',
    'AtomicCheckpointHook',
    'BatchSizeHook',
    'ClassCountHook',
    'ClassFolders',
    'ClassificationPreprocessor',
    'Classifier',
    'DrawSampler',
    'ExactEpochLoop',
    'ImageClassifier',
    'MeanBuffersHook',
    'PreemptionHook',
    'ThroughputHook',
    'UnreadableImagesHook',
]
