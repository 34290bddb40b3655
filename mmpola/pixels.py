"""What the numbers in images stand for: colours and their order, mean and std, range."""

from __future__ import annotations

import colorsys
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Values = TypeVar('Values', NDArray[Any], Tensor)


def reads_bgr(preprocessor: Any) -> bool:
    """Whether a model of OpenMMLab reads blue first, as mmcv loads images."""
    for name in ('_channel_conversion', 'channel_conversion'):  # of mmdet and mmseg
        if hasattr(preprocessor, name):
            return not getattr(preprocessor, name)
    return False


def mean_and_std(*parts: Any) -> tuple[Tensor, Tensor] | None:
    """Return mean and standard deviation [C, 1, 1] of the first part that normalises.

    Args:
        parts: preprocessors of models, and transforms of data sets.

    Returns:
        In the order and the unit of the values that it normalises; None if no part does.
    """
    for part in parts:
        mean = getattr(part, 'mean', None)
        std = getattr(part, 'std', None)
        if mean is not None and std is not None:
            mean = torch.as_tensor(mean).float().cpu().view(-1, 1, 1)
            std = torch.as_tensor(std).float().cpu().view(-1, 1, 1)
            return mean, std
    return None


def stretched(values: Values) -> Values:
    """Return values of any range, stretched so that the smallest is 0 and the largest 255."""
    smallest = float(values.min())
    largest = float(values.max())
    return (values - smallest) * (255 / max(largest - smallest, 1e-12))


def loaded_as_rgb(pixels: NDArray[Any]) -> NDArray[np.uint8]:
    """Return loaded pixels as RGB uint8 [H, W, 3], from the first three channels.

    Values outside of 0 ... 255, or only in 0 ... 1, are stretched.

    Args:
        pixels: [H, W] or [H, W, C] of any dtype, blue first, as OpenMMLab's loaders return them.
    """
    pixels = np.atleast_3d(pixels)
    if pixels.shape[2] < 3:
        pixels = pixels[..., [0, 0, 0]]
    pixels = pixels[..., 2::-1]
    if pixels.dtype != np.uint8:
        pixels = np.nan_to_num(pixels.astype(np.float64))
        if pixels.min() < 0 or pixels.max() >= 256 or pixels.max() <= 1:
            pixels = stretched(pixels)
    return np.ascontiguousarray(pixels.astype(np.uint8))


def inputs_as_rgb(inputs: Tensor, preprocessor: Any, dataset: Any) -> list[NDArray[np.uint8]]:
    """Undo the normalisation of a network's images.

    Of one or two channels the first is shown in grey, of four and more the first three.

    Args:
        inputs: [B, C, H, W].
        preprocessor: of the model: it may normalise and exchange the colours' order.
        dataset: its transform may normalise instead.

    Returns:
        uint8 [H, W, 3] in RGB for each image.
    """
    values = inputs.detach().float().cpu()
    transforms = getattr(getattr(dataset, 'transform', None), 'transforms', ())
    found = mean_and_std(preprocessor, *transforms)
    is_share = False
    if found is not None:
        mean, std = found
        values = values * std + mean
        is_share = float(mean.max()) <= 1
    if is_share:
        values = values * 255
    elif values.min() < -1 or values.max() > 256:  # unknown normalisation, or more than 8 bits
        values = stretched(values)
    channels = values.shape[1]
    if channels < 3:
        values = values[:, :1].expand(-1, 3, -1, -1)
    elif channels > 3:
        values = values[:, :3]
    elif reads_bgr(preprocessor):
        values = values.flip(1)
    pixels = values.round().clamp(0, 255).to(torch.uint8).permute(0, 2, 3, 1)
    return [np.ascontiguousarray(image) for image in pixels.numpy()]


def class_colours(palette: Any, number: int) -> list[tuple[int, int, int]] | None:
    """Return a colour per class: those of the data set if it has enough of them."""
    if isinstance(palette, (list, tuple)) and len(palette) >= number:
        return [tuple(colour) for colour in palette]
    colours = []
    for index in range(number):
        hue = index * 0.618 % 1  # the golden ratio: neighbours differ
        red, green, blue = colorsys.hsv_to_rgb(hue, 0.85, 0.95)
        colours.append((round(255 * red), round(255 * green), round(255 * blue)))
    return colours or None


def place_names_quickly(visualizer: Any) -> None:
    """Let mmseg's visualizer find the place of a class's name in milliseconds.

    Its own search sorts the pixels of each class in Python, which takes seconds of a photograph.
    """
    visualizer._get_center_loc = place_of_name


def place_of_name(mask: NDArray[Any]) -> NDArray[Any]:
    """Return the middle (x, y) of a mask's fullest row, as mmseg's `_get_center_loc` does.

    Args:
        mask: [H, W] of 0 and 1; some are 1.
    """
    y = mask.sum(1).argmax()
    columns = np.flatnonzero(mask[y])
    return np.array([columns[len(columns) // 2], y])
