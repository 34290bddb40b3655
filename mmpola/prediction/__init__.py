"""Predict images with a detector, a segmenter or a classifier: find the files, predict, draw, write JSON."""

from mmpola.prediction.config import (
    add_files_arguments,
    add_model_arguments,
    add_score_argument,
    check_device,
    checked_config,
    output_suffixes,
)
from mmpola.prediction.files import ImageFile, check_outputs, find_images
from mmpola.prediction.geometry import Geometry
from mmpola.prediction.predict import SKIPPED, Outcome, predict
from mmpola.prediction.predictor import Predictor, load_predictor

__all__ = [
    'SKIPPED',
    'Geometry',
    'ImageFile',
    'Outcome',
    'Predictor',
    'add_files_arguments',
    'add_model_arguments',
    'add_score_argument',
    'check_device',
    'check_outputs',
    'checked_config',
    'find_images',
    'load_predictor',
    'output_suffixes',
    'predict',
]
