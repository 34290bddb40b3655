"""Classification: the network, which needs torch alone, and its MMEngine model."""

from mmpola.classification.network import Classifier

try:
    from mmpola.classification.image_classifier import ImageClassifier
except ModuleNotFoundError as error:  # MMEngine is an optional extra
    if error.name != 'mmengine':
        raise

__all__ = ['Classifier', 'ImageClassifier']
