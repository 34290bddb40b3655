"""Image classification on MMEngine: the model, its preprocessor, its metric and its hooks."""

from mmpola.classification.accuracy import Accuracy
from mmpola.classification.hooks import ClassCountHook, UnreadableImagesHook
from mmpola.classification.image_classifier import ImageClassifier
from mmpola.classification.preprocessor import ClassificationPreprocessor

__all__ = [
    'Accuracy',
    'ClassCountHook',
    'ClassificationPreprocessor',
    'ImageClassifier',
    'UnreadableImagesHook',
]
