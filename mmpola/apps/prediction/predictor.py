"""A config's model as a function from images to predictions: drawings, and results to write."""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from mmengine.config import Config
from mmengine.logging import MMLogger
from mmengine.registry import DATASETS
from numpy.typing import NDArray
from torch import nn

from mmpola.apps.arguments import is_classifier
from mmpola.apps.image_reader import ImageReader, image_pipeline, open_reader
from mmpola.apps.prediction.drawing import draw_classes, shown_name
from mmpola.classification.class_folders import class_names
from mmpola.classification.data_config import class_source
from mmpola.config_tree import IMAGENET, class_count_problems, leaves
from mmpola.engine.training_checkpoint import TrainingCheckpoint, load_model, read_fitting
from mmpola.messages import UsageError, counted, listed
from mmpola.read_image import ImageFile

BEST_CLASSES = 5
"""Number of classes that are written and drawn for a classifier."""

OPACITY = 0.6
"""Opacity of a segmentation that is drawn over its image."""


class ReadImage(NamedTuple):
    """An image file and its pixels, BGR uint8 [H, W, 3]."""

    file: ImageFile
    pixels: NDArray[Any]


@dataclass
class Prediction:
    """What a model predicts for an image.

    Attributes:
        drawing: RGB uint8 [H, W, 3].
        result: content of the JSON file, or the label of each pixel [H, W] of a segmenter.
        summary: one line of text.
        instances: how many a detector draws.
    """

    drawing: NDArray[Any]
    result: dict[str, Any] | NDArray[Any]
    summary: str
    instances: int = 0


class Predictor:
    """A model that predicts batches of images; its subclasses are for one task each.

    Attributes:
        model: in eval mode, on its device.
        reader: of its test images.
        classes: names in the order of the labels.
        result_suffix: of the file of a result.
        mixed_sizes: whether a batch may hold images of several sizes.
    """

    model: Any
    result_suffix = '.json'
    mixed_sizes = True

    def __init__(self, reader: ImageReader, classes: tuple[str, ...]) -> None:
        self.reader = reader
        self.classes = classes

    def read(self, path: Path) -> NDArray[Any]:
        """Read an image, BGR uint8 [H, W, 3].

        Raises:
            UsageError: see `ImageReader.read`.
        """
        return self.reader.read(path)

    def __call__(self, batch: Sequence[ReadImage], threshold: float) -> list[Prediction]:
        """Predict a batch; a detector draws the instances whose score is above `threshold`."""
        raise NotImplementedError


class ClassificationPredictor(Predictor):
    """An `mmpola.ImageClassifier`, whose images are cropped to one size."""

    def __init__(self, model: Any, reader: ImageReader, classes: tuple[str, ...]) -> None:
        super().__init__(reader, classes)
        self.model = model

    def __call__(self, batch: Sequence[ReadImage], threshold: float) -> list[Prediction]:
        items = [self.reader.transform(image.pixels) for image in batch]
        with torch.no_grad():
            samples = self.model.test_step(self.reader.collate(items))
        predictions = []
        for image, sample in zip(batch, samples, strict=True):
            scores, labels = sample.pred_score.cpu().topk(min(BEST_CLASSES, len(self.classes)))
            best = []
            for label, score in zip(labels.tolist(), scores.tolist(), strict=True):
                best.append({'label': label, 'class': self.classes[label], 'score': score})
            height, width = image.pixels.shape[:2]
            result = {
                'image': str(image.file.path),
                'width': width,
                'height': height,
                'classes': best,
            }
            drawing = draw_classes(image.pixels[..., ::-1], best)
            predictions.append(Prediction(drawing, result, _classes_in_words(best)))
        return predictions


class InferencerPredictor(Predictor):
    """A model in an inferencer of mmdet or mmseg."""

    def __init__(self, inferencer: Any, reader: ImageReader) -> None:
        super().__init__(reader, tuple(inferencer.model.dataset_meta['classes']))
        self.inferencer = inferencer

    @property
    def model(self) -> Any:
        return self.inferencer.model


class DetectionPredictor(InferencerPredictor):
    """A detector in mmdet's `DetInferencer`; its JSON has all instances, whatever their score."""

    def __call__(self, batch: Sequence[ReadImage], threshold: float) -> list[Prediction]:
        found = self.inferencer(
            [str(image.file.path) for image in batch],
            batch_size=len(batch),
            return_vis=True,
            pred_score_thr=threshold,
        )
        predictions = []
        for drawing, result in zip(found['visualization'], found['predictions'], strict=True):
            drawn = []
            for label, score in zip(result['labels'], result['scores'], strict=True):
                if score > threshold:
                    drawn.append(f'{self.classes[label]} {score:.0%}')
            summary = f'{counted(len(drawn), "detection")} with a score above {threshold}'
            if drawn:
                summary += f': {listed(drawn)}'
            predictions.append(Prediction(drawing, result, summary, len(drawn)))
        return predictions


class SegmentationPredictor(InferencerPredictor):
    """A segmenter in mmseg's `MMSegInferencer`, which stacks the images of a batch as they are."""

    result_suffix = '.png'
    mixed_sizes = False

    def read(self, path: Path) -> NDArray[Any]:
        pixels = super().read(path)
        if pixels.shape[:2] == (1, 1):
            raise UsageError('a single pixel, which mmseg cannot draw')
        return pixels

    def __call__(self, batch: Sequence[ReadImage], threshold: float) -> list[Prediction]:
        found = self.inferencer(
            [str(image.file.path) for image in batch],
            batch_size=len(batch),
            return_vis=True,
            opacity=OPACITY,
        )
        drawings = found['visualization']
        label_maps = found['predictions']
        if len(batch) == 1:  # mmseg returns one image without a list around it
            drawings = [drawings]
            label_maps = [label_maps]
        type_of_labels = np.uint8 if len(self.classes) < 256 else np.uint16
        predictions = []
        for drawing, labels in zip(drawings, label_maps, strict=True):
            summary = _shares_in_words(labels, self.classes)
            predictions.append(Prediction(drawing, labels.astype(type_of_labels), summary))
        return predictions


def _classes_in_words(best: Sequence[dict[str, Any]]) -> str:
    return listed(f'{shown_name(entry["class"])} {entry["score"]:.1%}' for entry in best)


def _shares_in_words(labels: NDArray[Any], classes: tuple[str, ...]) -> str:
    """Return the share of the pixels of the classes in a label map [H, W], the largest first."""
    counts = np.bincount(labels.ravel())
    present = np.flatnonzero(counts)
    by_share = sorted(present.tolist(), key=lambda label: -counts[label])
    shares = [f'{classes[label]} {counts[label] / labels.size:.0%}' for label in by_share]
    return f'share of the pixels: {listed(shares)}'


def load_predictor(
    cfg: Config, on_meta: nn.Module, path: str, device: str, needs_names: bool = True
) -> Predictor:
    """Read weights as `read_fitting` does and return the predictor of the config's model.

    A checkpoint without class names gets those of the config's test data.

    Args:
        cfg: of a detector, segmenter or classifier.
        on_meta: its model on the meta device, from `load_image_config`.
        path: path or name of the checkpoint.
        device: where the model runs.
        needs_names: whether predictions need the names of a classifier's classes.

    Raises:
        UsageError: the file cannot be read or does not fit the config, or see `classifier_classes`.
    """
    checkpoint = read_fitting(path, cfg, on_meta)
    model = load_model(cfg, checkpoint).to(device)
    if is_classifier(cfg):
        classes = classifier_classes(cfg, checkpoint, needs_names)
        return ClassificationPredictor(model, open_reader(cfg), classes)
    model.dataset_meta = _dataset_meta(cfg, checkpoint)
    inferencer = build_inferencer(cfg, model, device)
    if cfg.default_scope == 'mmdet':
        return DetectionPredictor(inferencer, open_reader(cfg))
    return SegmentationPredictor(inferencer, open_reader(cfg))


def _dataset_meta(cfg: Config, checkpoint: TrainingCheckpoint) -> dict[str, Any]:
    """Return class names and palette: the checkpoint's, else those of the config's test data."""
    dataset = next(leaves(cfg.test_dataloader.dataset))
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
    dataset = next(leaves(cfg.test_dataloader.dataset))
    cfg.test_dataloader.dataset = {**dataset, 'pipeline': image_pipeline(cfg)}
    cfg.visualizer.vis_backends = None  # they would write a copy of each drawing
    with _quiet():
        inferencer = Inferencer(cfg, device='cpu', scope=cfg.default_scope)
    inferencer.model = model
    inferencer.device = device
    inferencer.show_progress = False
    inferencer.visualizer.dataset_meta = model.dataset_meta
    return inferencer


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide warnings and log lines: an inferencer without weights warns of random ones."""
    logger = MMLogger.get_current_instance()
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter('ignore')
            yield
    finally:
        logger.setLevel(level)


def classifier_classes(
    cfg: Config, checkpoint: TrainingCheckpoint, needs_names: bool
) -> tuple[str, ...]:
    """Return a classifier's class names: the checkpoint's, else those of `class_source`.

    Args:
        cfg: of the classifier.
        checkpoint: fits the config.
        needs_names: whether they must be known; otherwise numbers take the place of unknown names.

    Raises:
        UsageError: names are needed, and nothing defines them or their number is not
            `model.num_classes`.
    """
    if checkpoint.classes:  # `read_fitting` has compared their number with the model's
        return tuple(checkpoint.classes)
    count = cfg.model.num_classes
    dataset = {}
    if 'test_dataloader' in cfg:
        dataset = next(leaves(cfg.test_dataloader.dataset))
    source = class_source(dataset, count)
    where = 'test_dataloader.dataset.classes'
    if isinstance(source, str):
        where = source
    is_path = isinstance(source, str) and source != IMAGENET
    if is_path and not Path(where).exists():
        problem = (
            f'{checkpoint.path}: has no class names, and {source}, which would define them, does '
            'not exist; set test_dataloader.dataset.classes to the training folder or to a text '
            'file with a name per line'
        )
    else:
        names = class_names(source)
        problems = class_count_problems([('model.num_classes', count)], names, where)
        if not problems:
            return tuple(names)
        problem = problems[0]
    if needs_names:
        raise UsageError(problem)
    return tuple(f'class {number}' for number in range(count))
