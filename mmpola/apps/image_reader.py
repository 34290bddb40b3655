"""Read images as the test data of a config is read: decoded, checked and transformed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import cv2
import torch
from mmengine.config import Config
from mmengine.dataset import Compose, default_collate, pseudo_collate
from numpy.typing import NDArray
from PIL import Image
from timm.data import create_transform
from timm.data.transforms import ResizeKeepRatio
from torch import Tensor
from torchvision.transforms import Resize

from mmpola.apps.arguments import is_classifier
from mmpola.classification.data_config import evaluation_transform
from mmpola.config_tree import leaves
from mmpola.messages import UsageError
from mmpola.read_image import read_pixels, size_as_loaded

Size = tuple[int, int]
"""Height and width in pixels."""

LARGEST_INPUT = 100_000_000
"""Pixels of the largest image that is accepted, after resizing: 1.2 GB in float32.

A narrow image in a file of some hundred bytes could otherwise take all memory.
"""


class ImageReader:
    """The test transforms of a config for single images. `open_reader` chooses the subclass."""

    def transform(self, pixels: NDArray[Any]) -> dict[str, Any]:
        """Transform an image, BGR uint8 [H, W, 3], to an item of a batch."""
        raise NotImplementedError

    def collate(self, items: list[dict[str, Any]]) -> dict[str, Any]:
        """Join items to a batch, as the model's data_preprocessor and test_step take it."""
        raise NotImplementedError

    def resized(self, size: Size) -> list[Size]:
        """Return the sizes that an image has after each transform that resizes it."""
        raise NotImplementedError

    def read(self, path: Path) -> NDArray[Any]:
        """Read an image, BGR uint8 [H, W, 3]; it is not decoded if its size is refused.

        Raises:
            UsageError: it cannot be read, or see `check_size`; the message does not name it.
        """
        size = size_as_loaded(path)
        if size is not None:
            width, height = size
            self.check_size((height, width))
        return read_pixels(path)

    def check_size(self, size: Size) -> None:
        """Check that an image stays within `LARGEST_INPUT` when it is resized.

        Raises:
            UsageError: it becomes larger, or a side vanishes; the message does not name it.
        """
        height, width = size
        try:
            sizes = self.resized(size)
        except RuntimeError:
            raise too_narrow(height, width) from None
        for new_height, new_width in sizes:
            if new_height * new_width == 0:
                raise too_narrow(height, width)
            if new_height * new_width > LARGEST_INPUT:
                raise UsageError(
                    f'{width} x {height} pixels, of which the test transforms would make '
                    f'{new_width} x {new_height}; expected at most {LARGEST_INPUT} pixels'
                )


class ClassifierReader(ImageReader):
    """The transforms of timm for a classifier.

    Args:
        transform: arguments of timm.data.create_transform.

    Attributes:
        steps: the transforms of an RGB image, in their order.
    """

    def __init__(self, transform: dict[str, Any]) -> None:
        self._transform = create_transform(is_training=False, **transform)
        self.steps: list[Callable[[Any], Any]] = self._transform.transforms

    def transform(self, pixels: NDArray[Any]) -> dict[str, Any]:
        return {'inputs': self._transform(Image.fromarray(pixels[..., ::-1]))}

    def collate(self, items: list[dict[str, Any]]) -> dict[str, Any]:
        return default_collate(items)

    def resized(self, size: Size) -> list[Size]:
        return resized_by_transforms(self.steps, size)


class PipelineReader(ImageReader):
    """The test pipeline of a detector or segmenter.

    Args:
        steps: configs of its transforms; the first loads the image.
        scope: of OpenMMLab, mmdet or mmseg.
    """

    def __init__(self, steps: Sequence[dict[str, Any]], scope: str) -> None:
        loader = {**steps[0], 'type': f'{scope}.InferencerLoader'}
        self._pipeline = Compose([loader, *steps[1:]])

    def transform(self, pixels: NDArray[Any]) -> dict[str, Any]:
        try:
            item: dict[str, Any] = self._pipeline(pixels)
        except cv2.error:  # the shorter side is resized to nothing
            height, width = pixels.shape[:2]
            raise too_narrow(height, width) from None
        return item

    def collate(self, items: list[dict[str, Any]]) -> dict[str, Any]:
        return pseudo_collate(items)

    def resized(self, size: Size) -> list[Size]:
        return resized_by_pipeline(self._pipeline.transforms, size)


def open_reader(cfg: Config) -> ImageReader:
    """Return the reader of a detector's, segmenter's or classifier's test images."""
    if is_classifier(cfg):
        return ClassifierReader(evaluation_transform(cfg))
    return PipelineReader(image_pipeline(cfg), cfg.default_scope)


def network_input(model: Any, reader: ImageReader, pixels: NDArray[Any]) -> Tensor:
    """Return what the backbone of a model reads for an image, [1, 3, H, W].

    Raises:
        UsageError: the image is too narrow for the test transforms.
    """
    batch = reader.collate([reader.transform(pixels)])
    inputs: Tensor = model.data_preprocessor(batch)['inputs']
    return inputs


def image_pipeline(cfg: Config) -> list[dict[str, Any]]:
    """Return the test pipeline of a config without the steps that load annotations.

    The step that loads the image comes first. Its type has no scope: OpenMMLab's inferencers look
    for `LoadImageFromFile`.
    """
    dataset = next(leaves(cfg.test_dataloader.dataset))
    loader: dict[str, Any] = {'type': 'LoadImageFromFile'}
    others = []
    for step in dataset['pipeline']:
        name = step['type'].split('.')[-1]
        if name == 'LoadImageFromFile':
            loader = {**step, 'type': name}
        elif not name.startswith('Load'):
            others.append(step)
    return [loader, *others]


def resized_by_transforms(steps: Iterable[Callable[[Any], Any]], size: Size) -> list[Size]:
    """Return the size after each of timm's transforms that resizes an image.

    Raises:
        RuntimeError: a side would be resized to nothing.
    """
    image = torch.empty(3, *size, dtype=torch.uint8, device='meta')
    sizes = []
    for step in steps:
        if isinstance(step, Resize | ResizeKeepRatio):
            image = step(image)
            sizes.append((image.shape[1], image.shape[2]))
    return sizes


def resized_by_pipeline(steps: Iterable[Any], size: Size) -> list[Size]:
    """Return the size after each Resize of mmcv, mmdet or mmseg.

    Other steps have their own limits.
    """
    from mmcv import rescale_size
    from mmcv.transforms import Resize

    height, width = size
    sizes = []
    for step in steps:
        if not isinstance(step, Resize):
            continue
        scale = step.scale
        if scale is None:
            factor_x, factor_y = step.scale_factor
            scale = (int(width * factor_x + 0.5), int(height * factor_y + 0.5))
        if step.keep_ratio:
            scale = rescale_size((width, height), scale)
        width, height = scale
        sizes.append((height, width))
    return sizes


def too_narrow(height: int, width: int) -> UsageError:
    """Return the error about an image that would be resized to nothing."""
    return UsageError(f'{width} x {height} pixels, too narrow for the test transforms')
