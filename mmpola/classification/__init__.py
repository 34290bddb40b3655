"""Image classification on MMEngine: model, data preprocessor, metric and hook."""

from mmpola.classification.accuracy import Accuracy
from mmpola.classification.hooks import ClassCountHook
from mmpola.classification.image_classifier import ImageClassifier
from mmpola.classification.preprocessor import ClassificationPreprocessor

__all__ = ['Accuracy', 'ClassCountHook', 'ClassificationPreprocessor', 'ImageClassifier']
