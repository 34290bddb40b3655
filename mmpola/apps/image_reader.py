"""Read a config and images for prediction and analysis, as evaluation reads its test data."""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from mmengine.config import Config
from mmengine.dataset import Compose, default_collate, pseudo_collate
from numpy.typing import NDArray
from PIL import Image
from timm.data import create_transform
from torch import nn

from mmpola.classification.data_config import evaluation_transform
from mmpola.config_contents import inner_datasets
from mmpola.engine.config import load_config
from mmpola.engine.validate import validate_config

FIRST_IMAGES = 8
"""Number of loaded images that `loading_notes` is given."""


def load_image_config(args: argparse.Namespace) -> tuple[Config, nn.Module]:
    """Read and check the config of a detector, segmenter or classifier.

    Args:
        args: of a script, see `load_config`.

    Returns:
        (the config, its model).

    Raises:
        UsageError: the config cannot be read or has a mistake.
    """
    warnings.filterwarnings('ignore', module='mm(det|seg)')  # about losses
    warnings.filterwarnings('ignore', 'Warning: The .* is out of bounds')  # of drawn boxes
    cfg = load_config(args)
    return cfg, validate_config(cfg)


def is_classifier(cfg: Config) -> bool:
    """Whether the model of a config is an `mmpola.ImageClassifier`."""
    return bool(cfg.model.type == 'mmpola.ImageClassifier')


class ClassifierReader:
    """The transforms of timm for single images of a classifier.

    Args:
        transform: arguments of timm.data.create_transform.

    Attributes:
        steps: the transforms of an RGB image, in their order.
    """

    def __init__(self, transform: dict[str, Any]) -> None:
        self._transform = create_transform(is_training=False, **transform)
        self.steps: list[Callable[[Any], Any]] = self._transform.transforms

    def transform(self, pixels: NDArray[Any]) -> dict[str, Any]:
        """Transform an image, BGR uint8 [H, W, 3], to an item of a batch."""
        return {'inputs': self._transform(Image.fromarray(pixels[..., ::-1]))}

    def collate(self, items: list[dict[str, Any]]) -> dict[str, Any]:
        """Join items to a batch, as the model's data_preprocessor and test_step take it."""
        return default_collate(items)


class PipelineReader:
    """The test pipeline of a detector or segmenter, for single images.

    Args:
        steps: configs of its transforms; the first loads the image.
        scope: of OpenMMLab, mmdet or mmseg.
    """

    def __init__(self, steps: Sequence[dict[str, Any]], scope: str) -> None:
        loader = {**steps[0], 'type': f'{scope}.InferencerLoader'}
        self._pipeline = Compose([loader, *steps[1:]])

    def transform(self, pixels: NDArray[Any]) -> dict[str, Any]:
        """Transform an image, BGR uint8 [H, W, 3], to an item of a batch."""
        item: dict[str, Any] = self._pipeline(pixels)
        return item

    def collate(self, items: list[dict[str, Any]]) -> dict[str, Any]:
        """Join items to a batch, as the model's data_preprocessor and test_step take it."""
        return pseudo_collate(items)


ImageReader = ClassifierReader | PipelineReader


def open_reader(cfg: Config) -> ImageReader:
    """Return the reader of a detector's, segmenter's or classifier's test images."""
    if is_classifier(cfg):
        return ClassifierReader(evaluation_transform(cfg))
    return PipelineReader(image_pipeline(cfg), cfg.default_scope)


def image_pipeline(cfg: Config) -> list[dict[str, Any]]:
    """Return the test pipeline of a config without the steps that load annotations.

    The step that loads the image comes first. Its type has no scope: OpenMMLab's inferencers look
    for `LoadImageFromFile`.
    """
    dataset = next(inner_datasets(cfg.test_dataloader.dataset))
    loader: dict[str, Any] = {'type': 'LoadImageFromFile'}
    others = []
    for step in dataset['pipeline']:
        name = step['type'].split('.')[-1]
        if name == 'LoadImageFromFile':
            loader = {**step, 'type': name}
        elif not name.startswith('Load'):
            others.append(step)
    return [loader, *others]


def loading_notes(images: Iterable[tuple[str | Path, NDArray[Any]]], in_channels: int) -> list[str]:
    """Describe what is wrong with the first images as they were loaded: a line for each fault.

    There are two: the number of channels is not what the backbone reads, and the values of 16-bit
    files are so small that the loader's 8 bits, or the usual mean and std, leave nothing of them.

    Args:
        images: (file, pixels [H, W] or [H, W, C] as the pipeline loaded them) of the first images.
        in_channels: channels that the backbone reads.
    """
    images = list(images)
    notes = []
    for path, pixels in images:
        channels = np.atleast_3d(pixels).shape[2]
        if channels != in_channels:
            notes.append(
                f'{path}: expected {in_channels} channels (model.backbone.in_channels), got '
                f'{channels} from the step that loads the image; set in_channels, or color_type '
                'of that step'
            )
            break
    if images and all(pixels.size > 0 for _, pixels in images):
        largest = max(pixels.max() for _, pixels in images)
        pixels = images[0][1]
        is_whole = pixels.dtype.kind in 'iu' or bool((pixels == np.round(pixels)).all())
        # 12 of 16 bits become 4 of 8: at most 15 of 255.
        is_8_bit = is_whole and pixels.dtype.itemsize != 2 and largest < 32
        is_16_bit = pixels.dtype == np.uint16 and largest < 0.01 * 65535
        if (is_8_bit or is_16_bit) and all(_has_16_bits(path) for path, _ in images):
            limit = 255 if is_8_bit else 65535
            notes.append(
                f'{images[0][0]}: the largest value of the first 16-bit images is {largest:g} of '
                f"{limit} as loaded; load them with color_type='unchanged' and to_float32=True, "
                'and set mean and std of data_preprocessor to those of the values'
            )
    return notes


def _has_16_bits(path: str | Path) -> bool:
    """Whether a file has 16 bits per channel, whatever the config's loader made of them."""
    stored = cv2.imread(str(path), cv2.IMREAD_UNCHANGED)
    return stored is not None and stored.dtype == np.uint16
