"""Where a pixel of an image is in the input of the network, and which token contains it.

Test transforms resize, crop and pad an image.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from mmpola.apps.image_reader import ClassifierReader, ImageReader, Size
from mmpola.layers import Grid, covering_grid

Point = tuple[int, int]
"""Column and row of a pixel, (x, y), from 0."""


class Geometry(NamedTuple):
    """Network input = scale * image + shift, for coordinates (x, y) in pixels from the upper left.

    Attributes:
        scale, shift: for x and y.
        size: (height, width) of the network's input, without the padding of a batch.
    """

    scale: tuple[float, float]
    shift: tuple[float, float]
    size: Size

    def to_input(self, x: float, y: float) -> tuple[float, float]:
        """Return the coordinates in the network's input of a point of the image."""
        return self.scale[0] * x + self.shift[0], self.scale[1] * y + self.shift[1]

    def to_image(self, x: float, y: float) -> tuple[float, float]:
        """Return the coordinates in the image of a point of the network's input."""
        return (x - self.shift[0]) / self.scale[0], (y - self.shift[1]) / self.scale[1]


def image_geometry(reader: ImageReader, size: Size) -> Geometry:
    """Return where the pixels of an image of (height, width) are in the network's input.

    Raises:
        UsageError: the image is too narrow or too long for the test transforms.
    """
    reader.check_size(size)
    if isinstance(reader, ClassifierReader):
        return transform_geometry(reader.steps, size)
    return pipeline_geometry(reader.transform(np.zeros((*size, 3), np.uint8)))


def pipeline_geometry(item: dict[str, Any]) -> Geometry:
    """Return the geometry of what a test pipeline of mmdet or mmseg returned.

    Such pipelines pad below and on the right.
    """
    scale_x, scale_y = item['data_samples'].get('scale_factor', (1.0, 1.0))
    height, width = item['inputs'].shape[-2:]
    return Geometry((float(scale_x), float(scale_y)), (0.0, 0.0), (height, width))


def transform_geometry(steps: Sequence[Callable[[Any], Any]], size: Size) -> Geometry:
    """Return the geometry of torchvision's transforms for an image of (height, width).

    Two images whose pixels hold their own coordinates pass the steps that return images, and are
    read near the centre.
    """
    rows, columns = np.indices(size, dtype=np.float32) + 0.5
    horizontal = _transformed(steps, columns)
    vertical = _transformed(steps, rows)
    height, width = vertical.shape
    scale_x, shift_x = _scale_and_shift(horizontal[height // 2])
    scale_y, shift_y = _scale_and_shift(vertical[:, width // 2])
    return Geometry((scale_x, scale_y), (shift_x, shift_y), (height, width))


def _transformed(
    steps: Sequence[Callable[[Any], Any]], pixels: NDArray[np.float32]
) -> NDArray[Any]:
    """Return what the steps that return images make of one, [H, W]."""
    image: Any = Image.fromarray(pixels)
    for step in steps:
        result = step(image)
        if not isinstance(result, Image.Image):
            break
        image = result
    return np.asarray(image)


def _scale_and_shift(coordinates: NDArray[Any]) -> tuple[float, float]:
    """Return scale and shift of input = scale * image + shift, from a row of image coordinates.

    A row that shows a single pixel of the image is treated as if it showed all of that pixel: where
    the pixel is cropped is unknown.
    """
    count = len(coordinates)
    first = count // 4
    last = count - 1 - count // 4
    if coordinates[first] == coordinates[last]:
        return float(count), -count * float(coordinates[first] - 0.5)
    scale = (last - first) / float(coordinates[last] - coordinates[first])
    return scale, first + 0.5 - scale * float(coordinates[first])


def visible_pixels(geometry: Geometry, size: Size) -> tuple[int, int, int, int]:
    """Return left, top, right and bottom (exclusive) of what the network sees of an image.

    Args:
        geometry: of the image.
        size: its height and width.
    """
    image_height, image_width = size
    input_height, input_width = geometry.size
    x_begin, y_begin = geometry.to_image(0, 0)
    x_end, y_end = geometry.to_image(input_width, input_height)
    left, right = _visible_range(x_begin, x_end, image_width)
    top, bottom = _visible_range(y_begin, y_end, image_height)
    return left, top, right, bottom


def _visible_range(begin: float, end: float, size: int) -> tuple[int, int]:
    """Return the first and last (exclusive) of `size` pixels that are seen; at least one is."""
    first = max(0, round(begin))
    last = min(size, round(end))
    if first < last:
        return first, last
    middle = int((begin + end) / 2)
    only = min(max(middle, 0), size - 1)
    return only, only + 1


def centre(geometry: Geometry, size: Size) -> Point:
    """Return the pixel in the centre of what the network sees of an image of (height, width)."""
    left, top, right, bottom = visible_pixels(geometry, size)
    return (left + right) // 2, (top + bottom) // 2


def token_stride(input_size: Size, grid: Grid) -> int:
    """Return the side of a token in pixels of the network's input: a power of two."""
    stride = 1
    while covering_grid(input_size, stride) != grid:
        if stride > max(input_size):
            raise ValueError(f'grid: expected {input_size} divided by a power of two, got {grid}')
        stride *= 2
    return stride


def token_at(point: Point, geometry: Geometry, stride: int, grid: Grid) -> tuple[int, int]:
    """Return row and column of the token that contains the centre of a pixel of the image."""
    x, y = geometry.to_input(point[0] + 0.5, point[1] + 0.5)
    rows, columns = grid
    row = min(max(int(y // stride), 0), rows - 1)
    column = min(max(int(x // stride), 0), columns - 1)
    return row, column
