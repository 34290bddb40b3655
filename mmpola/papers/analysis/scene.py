"""An image and how a network sees it: where its pixels are in the network's input."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from mmpola.layers import Grid, covering_grid
from mmpola.messages import UsageError
from mmpola.openmmlab.predict.reader import ClassFoldersReader, ImageReader, channels_explained

Point = tuple[int, int]
"""Column and row of a pixel, (x, y), from 0."""

Size = tuple[int, int]
"""Height and width in pixels."""


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


class Scene(NamedTuple):
    """An image and how a network sees it.

    Attributes:
        pixels: RGB uint8 [H, W, 3].
        inputs: what the backbone reads, [1, in_channels, h, w].
        geometry: of the image in these inputs.
    """

    pixels: NDArray[Any]
    inputs: Tensor
    geometry: Geometry

    @property
    def visible(self) -> tuple[int, int, int, int]:
        """Left, top, right and bottom (exclusive) of the pixels that the network sees.

        The test transforms of a classifier may crop the others away.
        """
        image_height, image_width = self.pixels.shape[:2]
        input_height, input_width = self.geometry.size
        left, top = self.geometry.to_image(0, 0)
        right, bottom = self.geometry.to_image(input_width, input_height)
        return (
            max(0, round(left)),
            max(0, round(top)),
            min(image_width, round(right)),
            min(image_height, round(bottom)),
        )

    @property
    def centre(self) -> Point:
        """The pixel in the centre of what the network sees."""
        left, top, right, bottom = self.visible
        return (left + right) // 2, (top + bottom) // 2

    def token_side(self, grid: Grid) -> int:
        """Return the side of a token in pixels of the network's input: a power of two."""
        height, width = self.inputs.shape[2:]
        side = 1
        while covering_grid((height, width), side) != grid:
            if side > max(height, width):
                raise ValueError(
                    f'grid: expected {height}, {width} divided by a power of two, got {grid}'
                )
            side *= 2
        return side

    def tokens(self, points: Sequence[Point], grid: Grid) -> list[tuple[int, int]]:
        """Return row and column of the tokens that contain the centres of pixels of the image."""
        side = self.token_side(grid)
        rows, columns = grid
        tokens = []
        for x, y in points:
            input_x, input_y = self.geometry.to_input(x + 0.5, y + 0.5)
            row = min(max(int(input_y // side), 0), rows - 1)
            column = min(max(int(input_x // side), 0), columns - 1)
            tokens.append((row, column))
        return tokens

    def check_points(self, points: Sequence[Point]) -> None:
        """Raise UsageError if the network does not see a pixel: `tokens` would give another one."""
        left, top, right, bottom = self.visible
        for x, y in points:
            if not (left <= x < right and top <= y < bottom):
                raise UsageError(
                    f'point {x},{y}: expected a pixel that the network sees, x from {left} to '
                    f'{right - 1} and y from {top} to {bottom - 1}'
                )


def open_scene(model: Any, reader: ImageReader, path: Path) -> Scene:
    """Read an image as the test data of a config is read.

    Args:
        model: of the config; its data_preprocessor is used.
        reader: of its images.
        path: of the image.

    Raises:
        UsageError: the image cannot be read, or has other channels than the backbone reads; the
            message does not name it.
    """
    image = reader.load(path)
    item = image.plain_view()
    channels = model.backbone.in_channels
    with channels_explained(path, image, channels):
        inputs = model.data_preprocessor(reader.collate(item))['inputs']
        if inputs.shape[1] != channels:
            raise ValueError(f'inputs: expected [B, {channels}, H, W], got {list(inputs.shape)}')
    if isinstance(reader, ClassFoldersReader):
        geometry = transform_geometry(reader.steps, image.pixels.shape[:2])
    else:
        geometry = pipeline_geometry(item)
    return Scene(image.picture, inputs, geometry)


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
    """Return scale and shift of input = scale * image + shift, from a row of image coordinates."""
    count = len(coordinates)
    first = count // 4
    last = count - 1 - count // 4
    scale = (last - first) / float(coordinates[last] - coordinates[first])
    return scale, first + 0.5 - scale * float(coordinates[first])
