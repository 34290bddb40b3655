"""Predict images with a detector, a segmenter or a classifier: find the files, predict, draw, write JSON."""

from mmpola.prediction.files import ImageFile, batches, check_outputs, find_images
from mmpola.prediction.geometry import Geometry
from mmpola.prediction.predictor import NOISE, Predictor, build_predictor, check_config, check_device, load_predictor
from mmpola.prediction.run import SKIPPED, Outcome, predict

__all__ = [
    'NOISE',
    'SKIPPED',
    'Geometry',
    'ImageFile',
    'Outcome',
    'Predictor',
    'batches',
    'build_predictor',
    'check_config',
    'check_device',
    'check_outputs',
    'find_images',
    'load_predictor',
    'predict',
]
