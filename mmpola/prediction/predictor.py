"""A model of a config with the steps around it, from pixels to predicted samples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from mmengine.config import Config
from mmengine.dataset import Compose, default_collate, pseudo_collate
from mmengine.registry import DATASETS, VISUALIZERS
from numpy.typing import NDArray
from PIL import Image
from timm.data import create_transform
from torch import Tensor

from mmpola.data.class_counts import class_count_problems, class_source
from mmpola.data.class_folders import IMAGENET, class_names
from mmpola.engine.checkpoint import TrainingCheckpoint, read_fitting
from mmpola.engine.config import evaluation_transform, leaves
from mmpola.engine.inference import load_model
from mmpola.messages import UsageError
from mmpola.prediction.config import is_classifier
from mmpola.prediction.files import Batch
from mmpola.prediction.geometry import Geometry, pipeline_geometry, transform_geometry

OPACITY = 0.6
"""Opacity of a segmentation that is drawn over its image."""


@dataclass
class Predictor:
    """A model with its test pipeline and its visualizer.

    Attributes:
        model: in eval mode, on its device.
        transforms: the config's test pipeline, from a dict with the pixels to an item of a batch.
        collate: joins the items of a batch.
        classes: names in the order of the labels.
        mixed: whether a batch may hold images of several sizes: mmdet pads them, classifiers crop them to one size,
            mmseg stacks them as they are.
        visualizer: mmdet's or mmseg's; None for a classifier.
    """

    model: Any
    transforms: Callable[[dict[str, Any]], Any]
    collate: Callable[[list[Any]], Any]
    classes: tuple[str, ...]
    mixed: bool
    visualizer: Any = None

    def __call__(self, batch: Batch) -> list[Any]:
        """Predict a batch and return a sample for each image."""
        with torch.no_grad():
            samples: list[Any] = self.model.test_step(self._collated(batch))
        return samples

    def network_input(self, batch: Batch) -> Tensor:
        """Return what the network reads for a batch, [B, 3, H, W]."""
        inputs: Tensor = self.model.data_preprocessor(self._collated(batch))['inputs']
        return inputs

    def geometry(self, size: tuple[int, int]) -> Geometry:
        """Return where the pixels of an image of (height, width) are in the network's input.

        Raises:
            UsageError: the image is too narrow for the test transforms.
        """
        if isinstance(self.transforms, ClassifierTransform):
            return transform_geometry(self.transforms.steps, size)
        return pipeline_geometry(self._transformed, loaded(np.zeros((*size, 3), np.uint8), ''))

    def _collated(self, batch: Batch) -> Any:
        return self.collate([self._transformed(loaded(pixels, str(image.path))) for image, pixels in batch])

    def _transformed(self, item: dict[str, Any]) -> Any:
        try:
            return self.transforms(item)
        except cv2.error:  # the shorter side is resized to nothing
            height, width = item['ori_shape']
            raise UsageError(f'{width} x {height} pixels, too narrow for the test transforms') from None

    def draw(self, sample: Any, pixels: NDArray[Any], path: Path) -> None:
        """Draw all instances of mmdet's sample, or the segmentation of mmseg's, over its image, RGB uint8 [H, W, 3]."""
        options = {'pred_score_thr': -1.0} if 'pred_instances' in sample else {}
        # mmseg's visualizer takes a tensor of one pixel for a number; mmdet's needs tensors.
        sample = sample.numpy() if 'pred_sem_seg' in sample else sample.cpu()
        self.visualizer.add_datasample(path.name, pixels, sample, draw_gt=False, out_file=str(path), **options)


def load_predictor(cfg: Config, path: str, device: str, named: bool = True) -> Predictor:
    """Read weights as `read_fitting` does and build the predictor.

    Args:
        cfg: of a detector, segmenter or classifier.
        path: path or name of the checkpoint.
        device: where the model runs.
        named: whether predictions need the names of a classifier's classes.

    Raises:
        UsageError: the file cannot be read or does not fit the config, or see `classifier_classes`.
    """
    return build_predictor(cfg, read_fitting(path, cfg), device, named)


def build_predictor(cfg: Config, checkpoint: TrainingCheckpoint, device: str, named: bool = True) -> Predictor:
    """Build the config's model and test pipeline, with the checkpoint's weights and class names.

    A checkpoint without class names gets those of the config's test data.

    Raises:
        UsageError: see `classifier_classes`.
    """
    model = load_model(cfg, checkpoint).to(device)
    if is_classifier(cfg):
        classes = classifier_classes(cfg, checkpoint, named)
        return Predictor(model, ClassifierTransform(evaluation_transform(cfg)), default_collate, classes, mixed=True)
    dataset = next(leaves(cfg.test_dataloader.dataset))
    own = DATASETS.build({**dataset, 'lazy_init': True, 'pipeline': []}).metainfo
    names = checkpoint.meta.get('dataset_meta') or own
    classes = tuple(names.get('classes') or own['classes'])
    palette = names.get('palette') or own.get('palette') or 'random'
    visualizer = VISUALIZERS.build({**cfg.visualizer, 'name': 'prediction', 'vis_backends': None})
    visualizer.dataset_meta = {'classes': classes, 'palette': palette}
    if cfg.default_scope == 'mmseg':
        visualizer.alpha = OPACITY
    transforms = Compose([step for step in dataset['pipeline'] if not step['type'].split('.')[-1].startswith('Load')])
    mixed = cfg.default_scope == 'mmdet'
    return Predictor(model, transforms, pseudo_collate, classes, mixed, visualizer)


def loaded(pixels: NDArray[Any], path: str) -> dict[str, Any]:
    """Return an image, BGR uint8 [H, W, 3], as the loading steps of a pipeline do."""
    size = pixels.shape[:2]
    return {'img': pixels, 'img_path': path, 'img_shape': size, 'ori_shape': size, 'img_id': 0}


class ClassifierTransform:
    """The test transform of a classifier's config, for a dict with the pixels `img`, BGR uint8 [H, W, 3].

    Args:
        transform: arguments of timm.data.create_transform.

    Attributes:
        steps: its transforms of an RGB image, in their order.
    """

    def __init__(self, transform: dict[str, Any]) -> None:
        self.transform = create_transform(is_training=False, **transform)
        self.steps: list[Callable[[Any], Any]] = self.transform.transforms

    def __call__(self, item: dict[str, Any]) -> dict[str, Any]:
        return {'inputs': self.transform(Image.fromarray(item['img'][..., ::-1]))}


def classifier_classes(cfg: Config, checkpoint: TrainingCheckpoint, named: bool) -> tuple[str, ...]:
    """Return a classifier's class names: the checkpoint's, else those of `class_source`.

    Args:
        cfg: of the classifier.
        checkpoint: fits the config.
        named: whether names are needed; otherwise numbers take the place of unknown ones.

    Raises:
        UsageError: names are needed, and nothing defines them or their number is not `model.num_classes`.
    """
    if checkpoint.classes:  # as many as the model has, as `read_fitting` has checked
        return tuple(checkpoint.classes)
    count = cfg.model.num_classes
    source = class_source(next(leaves(cfg.test_dataloader.dataset)) if 'test_dataloader' in cfg else {}, count)
    if source != IMAGENET and not Path(source).exists():
        problems = [
            f'{checkpoint.path}: has no class names, and {source}, which would define them, does not exist; set '
            'test_dataloader.dataset.classes to the training folder or to a text file with a name per line'
        ]
    else:
        names = class_names(source)
        problems = class_count_problems([('model.num_classes', count)], names, source)
    if problems and named:
        raise UsageError(problems[0])
    return tuple(f'class {number}' for number in range(count)) if problems else tuple(names)
