"""A config's model as a function from an image to a prediction: a drawing, and a result to write.

Detectors and segmenters run in the inferencers of mmdet and mmseg.
"""

from __future__ import annotations

import copy
import logging
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from mmengine.config import Config
from mmengine.logging import MMLogger
from mmengine.registry import DATASETS
from numpy.typing import NDArray
from torch import nn

from mmpola.apps.image_reader import ClassifierReader, image_pipeline, is_classifier
from mmpola.apps.prediction.drawing import draw_classes
from mmpola.classification.class_folders import class_names
from mmpola.classification.data_config import class_source, evaluation_transform
from mmpola.config_contents import IMAGENET, inner_datasets
from mmpola.engine.training_checkpoint import TrainingCheckpoint, load_model, read_checkpoint_for
from mmpola.engine.validate import unwrapped
from mmpola.read_image import read_pixels

BEST_CLASSES = 5
"""Number of classes that are written and drawn for a classifier."""

OPACITY = 0.6
"""Opacity of a segmentation that is drawn over its image."""


class Prediction(NamedTuple):
    """What a model predicts for an image.

    Attributes:
        drawing: RGB uint8 [H, W, 3].
        result: content of the JSON file, or the label of each pixel [H, W] of a segmenter.
    """

    drawing: NDArray[Any]
    result: dict[str, Any] | NDArray[Any]


class Classifier:
    """An `mmpola.ImageClassifier`, with the names of its classes in the order of the labels."""

    result_suffix = '.json'

    def __init__(self, model: Any, reader: ClassifierReader, classes: tuple[str, ...]) -> None:
        self.model = model
        self.reader = reader
        self.classes = classes

    def __call__(self, path: Path) -> Prediction:
        """Predict an image file; raise UsageError if it cannot be read."""
        pixels = read_pixels(path)
        with torch.no_grad():
            (sample,) = self.model.test_step(self.reader.collate([self.reader.transform(pixels)]))
        scores, labels = sample.pred_score.cpu().topk(min(BEST_CLASSES, len(self.classes)))
        best = []
        for label, score in zip(labels.tolist(), scores.tolist(), strict=True):
            best.append({'label': label, 'class': self.classes[label], 'score': score})
        height, width = pixels.shape[:2]
        result = {'image': str(path), 'width': width, 'height': height, 'classes': best}
        return Prediction(draw_classes(pixels[..., ::-1], best), result)


class Detector:
    """A detector in mmdet's `DetInferencer`.

    Args:
        inferencer: has the model.
        threshold: score above which an instance is drawn; the result has all of them.
    """

    result_suffix = '.json'

    def __init__(self, inferencer: Any, threshold: float) -> None:
        self.inferencer = inferencer
        self.model = inferencer.model
        self.threshold = threshold

    def __call__(self, path: Path) -> Prediction:
        """Predict an image file; raise UsageError if it cannot be read."""
        read_pixels(path)
        found = self.inferencer(str(path), return_vis=True, pred_score_thr=self.threshold)
        return Prediction(found['visualization'][0], found['predictions'][0])


class Segmenter:
    """A segmenter in mmseg's `MMSegInferencer`."""

    result_suffix = '.png'

    def __init__(self, inferencer: Any) -> None:
        self.inferencer = inferencer
        self.model = inferencer.model

    def __call__(self, path: Path) -> Prediction:
        """Predict an image file; raise UsageError if it cannot be read."""
        read_pixels(path)
        found = self.inferencer(str(path), return_vis=True, opacity=OPACITY)
        labels = found['predictions']
        highest = len(self.model.dataset_meta['classes']) - 1
        return Prediction(found['visualization'], labels.astype(np.min_scalar_type(highest)))


def load_predictor(
    cfg: Config, built: nn.Module, path: str, device: str, threshold: float
) -> Classifier | Detector | Segmenter:
    """Read weights as `read_checkpoint_for` does and return the predictor of the config's model.

    A checkpoint without class names gets those of the config's test data.

    Args:
        cfg: of a detector, segmenter or classifier.
        built: its model, from `load_image_config`.
        path: path or name of the checkpoint.
        device: where the model runs.
        threshold: score above which a detection is drawn.

    Raises:
        UsageError: the file cannot be read or does not fit the config.
    """
    checkpoint = read_checkpoint_for(path, built)
    model = unwrapped(load_model(built, checkpoint)).to(device)
    if is_classifier(cfg):
        reader = ClassifierReader(evaluation_transform(cfg))
        return Classifier(model, reader, classifier_classes(cfg, checkpoint))
    model.dataset_meta = _dataset_meta(cfg, checkpoint)
    inferencer = build_inferencer(cfg, model, device)
    if cfg.default_scope == 'mmdet':
        return Detector(inferencer, threshold)
    return Segmenter(inferencer)


def _dataset_meta(cfg: Config, checkpoint: TrainingCheckpoint) -> dict[str, Any]:
    """Return class names and palette: the checkpoint's, else those of the config's test data."""
    dataset = next(inner_datasets(cfg.test_dataloader.dataset))
    config_meta = DATASETS.build({**dataset, 'lazy_init': True, 'pipeline': []}).metainfo
    checkpoint_meta = checkpoint.meta.get('dataset_meta') or {}
    meta = {}
    for key in ('classes', 'palette'):
        meta[key] = checkpoint_meta.get(key) or config_meta.get(key)
    return meta


def build_inferencer(cfg: Config, model: Any, device: str) -> Any:
    """Return mmdet's or mmseg's inferencer of a config, with a model that has its weights.

    The inferencer builds the config's model itself, and would read its weights without saying
    which are missing; both are replaced by `model`.

    Args:
        cfg: of a detector or segmenter.
        model: built from it, with `dataset_meta`, on its device.
        device: the same.
    """
    if cfg.default_scope == 'mmdet':
        from mmdet.apis import DetInferencer as Inferencer
    else:
        from mmseg.apis import MMSegInferencer as Inferencer

    cfg = copy.deepcopy(cfg)
    dataset = next(inner_datasets(cfg.test_dataloader.dataset))
    cfg.test_dataloader.dataset = {**dataset, 'pipeline': image_pipeline(cfg)}
    cfg.visualizer.vis_backends = None  # they would write a copy of each drawing
    logger = MMLogger.get_current_instance()
    level = logger.level
    logger.setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')  # that the weights are random
        inferencer = Inferencer(cfg, device='cpu', scope=cfg.default_scope)
    logger.setLevel(level)
    inferencer.model = model
    inferencer.device = device
    inferencer.show_progress = False
    inferencer.visualizer.dataset_meta = model.dataset_meta
    return inferencer


def classifier_classes(cfg: Config, checkpoint: TrainingCheckpoint) -> tuple[str, ...]:
    """Return a classifier's class names: the checkpoint's, else those of `class_source`.

    If nothing defines as many names as the classifier has classes, numbers take their place.
    """
    if checkpoint.classes:  # `read_checkpoint_for` has compared their number with the model's
        return tuple(checkpoint.classes)
    count = cfg.model.num_classes
    dataset = next(inner_datasets(cfg.test_dataloader.dataset))
    source = class_source(dataset, count)
    if not isinstance(source, str) or source == IMAGENET or Path(source).exists():
        names = class_names(source)
        if len(names) == count:
            return tuple(names)
    print(f'{checkpoint.path}: has no class names; {source} does not name {count} classes')
    return tuple(f'class {number}' for number in range(count))
