"""Points of an image that the user chooses, and the tokens that they belong to."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cache

from mmpola.data.read_image import size_as_loaded
from mmpola.layers import Grid, ceil_div
from mmpola.messages import UsageError
from mmpola.prediction import Geometry, ImageFile, Predictor

Point = tuple[int, int]
"""Column and row of a pixel, (x, y), from 0."""


def parse_points(arguments: Iterable[str]) -> list[Point]:
    """Read points that are written as X,Y.

    Raises:
        UsageError: an argument is not a pair of integers.
    """
    points = []
    for argument in arguments:
        match = re.fullmatch(r'(-?\d+),(-?\d+)', argument)
        if match is None:
            raise UsageError(f'--points: expected X,Y in pixels, such as 120,80, got {argument}')
        points.append((int(match[1]), int(match[2])))
    return points


def check_points(points: Sequence[Point], images: Iterable[ImageFile], predictor: Predictor) -> None:
    """Check that the network sees all points in every image that can be read.

    Raises:
        UsageError: a point is outside of an image, or of the part that the config's test transforms crop.
    """
    geometry_of = cache(predictor.geometry)
    for image in images if points else ():
        size = size_as_loaded(image.path)
        if size is None:  # reported when the image is read
            continue
        width, height = size
        try:
            left, top, right, bottom = visible_pixels(geometry_of((height, width)), (height, width))
        except UsageError:  # reported when the image is analysed
            continue
        for x, y in points:
            if not (0 <= x < width and 0 <= y < height):
                raise UsageError(f'--points: expected pixels of {image.path}, {width} x {height}, got {x},{y}')
            if not (left <= x < right and top <= y < bottom):
                raise UsageError(
                    f'--points: expected pixels of {image.path} that the test transforms keep, x from {left} to '
                    f'{right - 1} and y from {top} to {bottom - 1}, got {x},{y}'
                )


def visible_pixels(geometry: Geometry, size: tuple[int, int]) -> tuple[int, int, int, int]:
    """Return left, top, right and bottom (exclusive) of the pixels, in an image of (height, width), that are seen."""
    begin, end = geometry.to_image(0, 0), geometry.to_image(geometry.size[1], geometry.size[0])
    (left, right), (top, bottom) = (_visible_range(*axis) for axis in zip(begin, end, size[::-1], strict=True))
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
