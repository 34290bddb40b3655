"""Where the pixels of an image are in what the network reads, after the resizing, cropping and padding of a test."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from mmpola.layers import Grid, ceil_div

Point = tuple[int, int]
"""Column and row of a pixel, (x, y), from 0."""


class Geometry(NamedTuple):
    """Network input = scale * image + shift, for coordinates (x, y) in pixels, from the upper left corner of the first.

    Attributes:
        scale, shift: for x and y.
        size: (height, width) of the network's input, without the padding of a batch.
    """

    scale: tuple[float, float]
    shift: tuple[float, float]
    size: tuple[int, int]

    def to_input(self, x: float, y: float) -> tuple[float, float]:
        """Return the coordinates in the network's input of a point of the image."""
        return self.scale[0] * x + self.shift[0], self.scale[1] * y + self.shift[1]

    def to_image(self, x: float, y: float) -> tuple[float, float]:
        """Return the coordinates in the image of a point of the network's input."""
        return (x - self.shift[0]) / self.scale[0], (y - self.shift[1]) / self.scale[1]


def pipeline_geometry(packed: dict[str, Any]) -> Geometry:
    """Return the geometry of what a test pipeline of mmdet or mmseg returned; they pad below and on the right."""
    scale = packed['data_samples'].get('scale_factor', (1.0, 1.0))
    return Geometry(
        (float(scale[0]), float(scale[1])), (0.0, 0.0), tuple(packed['inputs'].shape[-2:])
    )


def transform_geometry(steps: Sequence[Callable[[Any], Any]], size: tuple[int, int]) -> Geometry:
    """Return the geometry of torchvision's transforms for an image of (height, width).

    Two images whose pixels hold their own coordinates pass the steps that return images, and are
    read near the centre.
    """
    read = []
    for axis in (0, 1):
        centres = np.arange(size[axis], dtype=np.float32) + 0.5
        image: Any = Image.fromarray(
            np.ascontiguousarray(np.broadcast_to(np.expand_dims(centres, 1 - axis), size))
        )
        for step in steps:
            placed = step(image)
            if not isinstance(placed, Image.Image):
                break
            image = placed
        read.append(np.asarray(image))
    vertical, horizontal = read
    height, width = vertical.shape
    scale_x, shift_x = _line(horizontal[height // 2])
    scale_y, shift_y = _line(vertical[:, width // 2])
    return Geometry((scale_x, scale_y), (shift_x, shift_y), (height, width))


def _line(coordinates: Any) -> tuple[float, float]:
    """Return scale and shift of input = scale * image + shift, from the image coordinates of a row of pixels.

    A row that shows a single pixel of the image is taken for the whole of it: where it is cropped
    cannot be read.
    """
    first, last = len(coordinates) // 4, len(coordinates) - 1 - len(coordinates) // 4
    if coordinates[first] == coordinates[last]:
        return float(len(coordinates)), -len(coordinates) * float(coordinates[first] - 0.5)
    scale = (last - first) / float(coordinates[last] - coordinates[first])
    return scale, first + 0.5 - scale * float(coordinates[first])


def visible_pixels(geometry: Geometry, size: tuple[int, int]) -> tuple[int, int, int, int]:
    """Return left, top, right and bottom (exclusive) of the pixels, in an image of (height, width), that are seen."""
    begin, end = geometry.to_image(0, 0), geometry.to_image(geometry.size[1], geometry.size[0])
    (left, right), (top, bottom) = (
        _visible_range(*axis) for axis in zip(begin, end, size[::-1], strict=True)
    )
    return left, top, right, bottom


def _visible_range(begin: float, end: float, size: int) -> tuple[int, int]:
    """Return the first and the last (exclusive) of `size` pixels that are seen: one pixel, if it is not even that."""
    first, last = max(0, round(begin)), min(size, round(end))
    if first < last:
        return first, last
    only = min(max(int((begin + end) / 2), 0), size - 1)
    return only, only + 1


def centre(geometry: Geometry, size: tuple[int, int]) -> Point:
    """Return the pixel in the centre of what is seen of an image of (height, width)."""
    left, top, right, bottom = visible_pixels(geometry, size)
    return (left + right) // 2, (top + bottom) // 2


def token_stride(input_size: tuple[int, int], grid: Grid) -> int:
    """Return the side of a token in pixels of the network's input: the power of two that gives the grid."""
    stride = 1
    while ceil_div(input_size, stride) != grid:
        if stride > max(input_size):
            raise ValueError(f'grid: expected {input_size} divided by a power of two, got {grid}')
        stride *= 2
    return stride


def token_at(point: Point, geometry: Geometry, stride: int, grid: Grid) -> tuple[int, int]:
    """Return row and column of the token that contains the centre of a pixel of the image."""
    x, y = geometry.to_input(point[0] + 0.5, point[1] + 0.5)
    return min(max(int(y // stride), 0), grid[0] - 1), min(max(int(x // stride), 0), grid[1] - 1)
