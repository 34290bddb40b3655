"""A config's model with the steps around it, from images to samples: timm's transforms, or OpenMMLab's inferencers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from mmengine.config import Config
from mmengine.dataset import default_collate, pseudo_collate
from mmengine.registry import DATASETS
from numpy.typing import NDArray
from PIL import Image
from timm.data import create_transform
from torch import Tensor, nn

from mmpola.apps.prediction.config import is_classifier
from mmpola.apps.prediction.files import ImageFile, read_pixels
from mmpola.apps.prediction.geometry import Geometry, pipeline_geometry, transform_geometry
from mmpola.apps.prediction.sizes import Size, check_sizes, resized_by_transforms
from mmpola.classification.class_folders import IMAGENET, class_names, class_source
from mmpola.config_tree import class_count_problems, leaves
from mmpola.engine.checkpoint import TrainingCheckpoint, load_model, read_fitting
from mmpola.engine.config import evaluation_transform
from mmpola.messages import UsageError, printable
from mmpola.read_image import size_as_loaded

Batch = list[tuple[ImageFile, NDArray[Any], Any]]
"""Images with their pixels, BGR uint8 [H, W, 3], and what the test transforms made of them."""

OPACITY = 0.6
"""Opacity of a segmentation that is drawn over its image."""


@dataclass
class Predictor:
    """A model with its test transforms.

    Attributes:
        model: in eval mode, on its device.
        transforms: from an image, BGR uint8 [H, W, 3], to an item of a batch.
        collate: joins the items of a batch.
        classes: names in the order of the labels.
        mixed: whether a batch may hold images of several sizes: mmdet pads them, classifiers crop
            them to one size, mmseg stacks them as they are.
        inferencer: mmdet's or mmseg's, which draws; None for a classifier.
        resized: from the size of an image to those that the transforms resize it to.
    """

    model: Any
    transforms: Callable[[NDArray[Any]], Any]
    collate: Callable[[list[Any]], Any]
    classes: tuple[str, ...]
    mixed: bool
    inferencer: Any = None
    resized: Callable[[Size], list[Size]] = lambda size: []

    def __call__(self, batch: Batch) -> list[Any]:
        """Predict a batch and return a sample for each image."""
        with torch.no_grad():
            samples: list[Any] = self.model.test_step(self._collated(batch))
        return samples

    def read(self, image: ImageFile) -> tuple[ImageFile, NDArray[Any], Any]:
        """Read an image as one of a batch.

        Raises:
            UsageError: it cannot be read, or is too narrow or too long for the test transforms; the
                message does not name it.
        """
        size = size_as_loaded(image.path)
        if size is not None:
            width, height = size
            check_sizes((height, width), self.resized)
        pixels = read_pixels(image.path)
        return image, pixels, self._transformed(pixels)

    def batches(
        self, images: list[ImageFile], size: int, skip: Callable[[], None]
    ) -> Iterator[Batch]:
        """Read images in their order and yield them in batches; name those that `read` refuses, and the reason.

        Args:
            images: paths of the images.
            size: largest number of images in a batch.
            skip: called after an image was refused.
        """
        batch: Batch = []
        for image in images:
            try:
                entry = self.read(image)
            except UsageError as error:
                print(printable(f'skipped: {image.path}: {error}'), flush=True)
                skip()
                continue
            if batch and (
                len(batch) == size or not (self.mixed or entry[1].shape == batch[0][1].shape)
            ):
                yield batch
                batch = []
            batch.append(entry)
        if batch:
            yield batch

    def network_input(self, batch: Batch) -> Tensor:
        """Return what the network reads for a batch, [B, 3, H, W]."""
        inputs: Tensor = self.model.data_preprocessor(self._collated(batch))['inputs']
        return inputs

    def geometry(self, size: tuple[int, int]) -> Geometry:
        """Return where the pixels of an image of (height, width) are in the network's input.

        Raises:
            UsageError: the image is too narrow or too long for the test transforms.
        """
        check_sizes(size, self.resized)
        if isinstance(self.transforms, ClassifierTransform):
            return transform_geometry(self.transforms.steps, size)
        return pipeline_geometry(self._transformed(np.zeros((*size, 3), np.uint8)))

    def draw(self, sample: Any, pixels: NDArray[Any]) -> NDArray[Any]:
        """Return an image, RGB uint8 [H, W, 3], with all instances or the segmentation of its sample drawn over it."""
        options = {'pred_score_thr': -1.0}
        if 'pred_sem_seg' in sample:
            # Its visualizer takes a tensor of one pixel for a number.
            sample, options = sample.numpy(), {'opacity': OPACITY}
        (drawn,) = self.inferencer.visualize([pixels], [sample], return_vis=True, **options)
        return drawn

    def _collated(self, batch: Batch) -> Any:
        return self.collate([item for _, _, item in batch])

    def _transformed(self, pixels: NDArray[Any]) -> Any:
        try:
            return self.transforms(pixels)
        except cv2.error:  # the shorter side is resized to nothing
            height, width = pixels.shape[:2]
            raise UsageError(
                f'{width} x {height} pixels, too narrow for the test transforms'
            ) from None


def load_predictor(
    cfg: Config, on_meta: nn.Module, path: str, device: str, named: bool = True
) -> Predictor:
    """Read weights as `read_fitting` does and build the config's model and test transforms.

    A checkpoint without class names gets those of the config's test data.

    Args:
        cfg: of a detector, segmenter or classifier.
        on_meta: what `checked_config` returned with it.
        path: path or name of the checkpoint.
        device: where the model runs.
        named: whether predictions need the names of a classifier's classes.

    Raises:
        UsageError: the file cannot be read or does not fit the config, or see `classifier_classes`.
    """
    checkpoint = read_fitting(path, cfg, on_meta)
    model = load_model(cfg, checkpoint).to(device)
    if is_classifier(cfg):
        classes = classifier_classes(cfg, checkpoint, named)
        transform = ClassifierTransform(evaluation_transform(cfg))
        resized = partial(resized_by_transforms, transform.steps)
        return Predictor(model, transform, default_collate, classes, mixed=True, resized=resized)
    dataset = next(leaves(cfg.test_dataloader.dataset))
    own = DATASETS.build({**dataset, 'lazy_init': True, 'pipeline': []}).metainfo
    names = checkpoint.meta.get('dataset_meta') or own
    model.dataset_meta = {key: names.get(key) or own.get(key) for key in ('classes', 'palette')}
    inferencer = _inferencer(cfg, dataset['pipeline'], model, device)
    classes = tuple(model.dataset_meta['classes'])
    mixed = cfg.default_scope == 'mmdet'
    resized = partial(resized_by_pipeline, inferencer.pipeline.transforms)
    return Predictor(
        model, inferencer.pipeline, inferencer.collate_fn, classes, mixed, inferencer, resized
    )


def _inferencer(cfg: Config, pipeline: list[dict[str, Any]], model: Any, device: str) -> Any:
    """Return mmdet's or mmseg's inferencer around a model that is built and has its weights and class names."""
    if cfg.default_scope == 'mmdet':
        from mmdet.apis import DetInferencer as Inferencer
    else:
        from mmseg.apis import MMSegInferencer as Inferencer

    class Built(Inferencer):
        def _init_model(self, *_: Any) -> Any:
            return model

        def _init_collate(self, _: Any) -> Any:
            return pseudo_collate  # as the inferencers use it, which search their registries first and log a warning

    # Inferencers know the loading steps by these names only, and mmdet's keeps those of
    # annotations.
    steps = [step for step in pipeline if not step['type'].split('.')[-1].startswith('Load')]
    steps = [dict(type='LoadImageFromFile'), *steps]
    visualizer = {**cfg.visualizer, 'vis_backends': None}
    used = Config(dict(test_dataloader=dict(dataset=dict(pipeline=steps)), visualizer=visualizer))
    return Built(used, device=device, scope=cfg.default_scope)


def resized_by_pipeline(steps: Iterable[Any], size: Size) -> list[Size]:
    """Return the size after each Resize of mmcv, mmdet or mmseg; other steps have bounds of their own."""
    from mmcv import rescale_size
    from mmcv.transforms import Resize

    height, width = size
    sizes = []
    for step in steps:
        if isinstance(step, Resize):
            scale = step.scale
            if scale is None:
                factor_x, factor_y = step.scale_factor
                scale = (int(width * factor_x + 0.5), int(height * factor_y + 0.5))
            if step.keep_ratio:
                scale = rescale_size((width, height), scale)
            width, height = scale
            sizes.append((height, width))
    return sizes


class ClassifierTransform:
    """The test transform of a classifier's config, for an image, BGR uint8 [H, W, 3].

    Args:
        transform: arguments of timm.data.create_transform.

    Attributes:
        steps: its transforms of an RGB image, in their order.
    """

    def __init__(self, transform: dict[str, Any]) -> None:
        self.transform = create_transform(is_training=False, **transform)
        self.steps: list[Callable[[Any], Any]] = self.transform.transforms

    def __call__(self, pixels: NDArray[Any]) -> dict[str, Any]:
        return {'inputs': self.transform(Image.fromarray(pixels[..., ::-1]))}


def classifier_classes(cfg: Config, checkpoint: TrainingCheckpoint, named: bool) -> tuple[str, ...]:
    """Return a classifier's class names: the checkpoint's, else those of `class_source`.

    Args:
        cfg: of the classifier.
        checkpoint: fits the config.
        named: whether names are needed; otherwise numbers take the place of unknown ones.

    Raises:
        UsageError: names are needed, and nothing defines them or their number is not
            `model.num_classes`.
    """
    if checkpoint.classes:  # as many as the model has, as `read_fitting` has checked
        return tuple(checkpoint.classes)
    count = cfg.model.num_classes
    source = class_source(
        next(leaves(cfg.test_dataloader.dataset)) if 'test_dataloader' in cfg else {}, count
    )
    if isinstance(source, str) and source != IMAGENET and not Path(source).exists():
        problems = [
            f'{checkpoint.path}: has no class names, and {source}, which would define them, does not exist; set '
            'test_dataloader.dataset.classes to the training folder or to a text file with a name per line'
        ]
    else:
        names = class_names(source)
        where = source if isinstance(source, str) else 'test_dataloader.dataset.classes'
        problems = class_count_problems([('model.num_classes', count)], names, where)
    if problems and named:
        raise UsageError(problems[0])
    return tuple(f'class {number}' for number in range(count)) if problems else tuple(names)
