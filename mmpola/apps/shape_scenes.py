"""Draw seeded scenes of six shapes, whose masks are known."""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

CLASSES = ('circle', 'square', 'triangle', 'star', 'ring', 'cross')

RGBImage = NDArray[np.uint8]
"""RGB [H, W, 3]."""

Mask = NDArray[np.bool_]
"""[H, W]."""

EMPTY_SCENES = 0.05
CROWD_SCENES = 0.08
"""Shares of all scenes."""

SMALL_OBJECTS = 0.15
"""Share of all objects."""

LEAST_VISIBLE_SHARE = 0.3
LEAST_VISIBLE_PIXELS = 24
"""What stays visible of each object."""

PLACEMENTS = 30
"""Attempts before an object is omitted."""

SUBPIXELS = 4
"""Sub-pixels per pixel side, of coverage and of polygons."""


@dataclass
class Instance:
    """The visible part of an object, or of a crowd of tiny objects.

    Attributes:
        class_index: into CLASSES.
        mask: visible pixels, bool [H, W].
        pixels: number of pixels before others hid a part of them.
        iscrowd: whether it is a crowd.
    """

    class_index: int
    mask: Mask
    pixels: int
    iscrowd: bool = False


@dataclass
class Scene:
    """An RGB image and its instances, farthest first; their masks do not overlap."""

    image: RGBImage
    instances: list[Instance]


def draw_scene(
    seed: int, index: int, size: tuple[int, int] = (192, 160), only: int | None = None
) -> Scene:
    """Draw scene number `index` of the series of a seed; equal arguments give equal scenes.

    Args:
        seed: seed of the series, 0 or more.
        index: number of the scene, 0 or more.
        size: (width, height) in pixels.
        only: draw a single large object of this class, an index into CLASSES; None: up to six of
            any class.
    """
    if only is not None:
        painting = _Painting(np.random.default_rng([seed, index, only + 1]), size)
        painting.add_single_object(only)
    else:
        painting = _Painting(np.random.default_rng([seed, index, 0]), size)
        painting.add_random_objects()
    noisy = painting.image + painting.rng.normal(0, 4, painting.image.shape)
    image = np.clip(np.rint(noisy), 0, 255).astype(np.uint8)
    return Scene(image, painting.instances)


class _Painting:
    """A scene that is being painted.

    Attributes:
        image: float32 [H, W, 3], at first a gradient with clouds.
        instances: farthest first.
    """

    def __init__(self, rng: np.random.Generator, size: tuple[int, int]) -> None:
        self.rng = rng
        self.size = size
        self.instances: list[Instance] = []
        width, height = size
        corners = rng.uniform(50, 205, 3) + rng.uniform(-45, 45, (2, 2, 3))
        clouds = rng.normal(0, 14, (height // 12 + 2, width // 12 + 2, 3))
        self.image = cv2.resize(corners, size).astype(np.float32)
        self.image += cv2.resize(clouds, size, interpolation=cv2.INTER_CUBIC).astype(np.float32)

    def add_random_objects(self) -> None:
        """Paint up to six objects and perhaps a crowd, or nothing."""
        kind = self.rng.uniform()
        if kind < EMPTY_SCENES:
            return
        if kind < EMPTY_SCENES + CROWD_SCENES:
            self.add_crowd()
        for _ in range(self.rng.integers(1, 7)):
            self.add_object(int(self.rng.integers(len(CLASSES))))

    def add_single_object(self, class_index: int) -> None:
        """Paint a large object that is whole."""
        for _ in range(PLACEMENTS):
            diameter = self.rng.uniform(0.5, 0.9) * min(self.size)
            margin = 0.5 * diameter
            if self._place(class_index, diameter, margin):
                return

    def add_object(self, class_index: int) -> None:
        """Paint an object at a place where enough of every earlier object stays visible."""
        for _ in range(PLACEMENTS):
            if self.rng.uniform() < SMALL_OBJECTS:
                diameter = self.rng.uniform(12, 24)
            else:
                diameter = self.rng.uniform(28 / min(self.size), 0.6) * min(self.size)
            margin = 0.3 * diameter  # the frame may cut the object, but not in half
            if self._place(class_index, diameter, margin):
                return

    def _place(self, class_index: int, diameter: float, margin: float) -> bool:
        """Paint an object at a random place; return False if it would hide too much there.

        Args:
            class_index: class of the object.
            diameter: diameter of the object in pixels.
            margin: least distance of its centre from the frame in pixels.
        """
        centre = self.rng.uniform(margin, np.subtract(self.size, margin))
        coverage = self._coverage(class_index, centre, diameter)
        mask = coverage >= 0.5
        if mask.sum() < LEAST_VISIBLE_PIXELS:
            return False
        for other in self.instances:
            visible = (other.mask & ~mask).sum()
            if visible < max(LEAST_VISIBLE_SHARE * other.pixels, LEAST_VISIBLE_PIXELS):
                return False
        self._paint(coverage)
        self._cover(Instance(class_index, mask, int(mask.sum())))
        return True

    def add_crowd(self) -> None:
        """Paint a cluster of tiny objects of one class as a single instance."""
        class_index = int(self.rng.integers(len(CLASSES)))
        radius = 0.25 * min(self.size)
        middle = self.rng.uniform(radius, np.subtract(self.size, radius))
        mask = np.zeros(self.image.shape[:2], bool)
        for _ in range(self.rng.integers(12, 31)):
            angle = self.rng.uniform(0, 2 * np.pi)
            distance = radius * np.sqrt(self.rng.uniform())
            centre = middle + distance * np.array([np.cos(angle), np.sin(angle)])
            coverage = self._coverage(class_index, centre, self.rng.uniform(9, 13))
            self._paint(coverage)
            mask |= coverage >= 0.5
        self._cover(Instance(class_index, mask, int(mask.sum()), iscrowd=True))

    def _coverage(
        self, class_index: int, centre: NDArray[np.float64], diameter: float
    ) -> NDArray[np.float32]:
        """Return the share of each pixel, [H, W] in 0 … 1, inside a shape at a random angle."""
        width, height = self.size
        angle = self.rng.uniform(0, 2 * np.pi)
        turn = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
        polygons_to_fill = []
        for contour in _outline(class_index, self.rng):
            placed = contour @ turn * (diameter / 2) + centre
            polygons_to_fill.append(np.rint(placed * SUBPIXELS - 0.5).astype(np.int32))
        fine = np.zeros((height * SUBPIXELS, width * SUBPIXELS), np.uint8)
        cv2.fillPoly(fine, polygons_to_fill, 255)
        coverage = cv2.resize(fine, self.size, interpolation=cv2.INTER_AREA)
        return coverage.astype(np.float32) / np.float32(255)

    def _paint(self, coverage: NDArray[np.float32]) -> None:
        """Paint a shape in the colour, of eight random ones, that contrasts most around it."""
        mask = coverage >= 0.5
        grown = cv2.dilate(mask.astype(np.uint8), np.ones((7, 7), np.uint8)).astype(bool)
        around = grown & ~mask
        colours = self.rng.uniform(0, 255, (8, 3)).astype(np.float32)
        distances = np.linalg.norm(self.image[around] - colours[:, None], axis=-1)
        # A low percentile, not the mean: the edge must be visible almost everywhere.
        colour = colours[np.percentile(distances, 15, axis=1).argmax()]
        self.image += coverage[..., None] * (colour - self.image)

    def _cover(self, instance: Instance) -> None:
        """Add an instance, which hides a part of the earlier ones."""
        for other in self.instances:
            other.mask &= ~instance.mask
        self.instances.append(instance)


def _outline(class_index: int, rng: np.random.Generator) -> list[NDArray[np.float64]]:
    """Return the contours of a class inside the unit circle, each [P, 2] as (x, y).

    The inside of a second contour is a hole. Proportions that do not define the class (a star's
    depth, a ring's or a cross's thickness) are random.
    """
    match CLASSES[class_index]:
        case 'circle':
            return [_regular_polygon(64)]
        case 'square':
            return [_regular_polygon(4)]
        case 'triangle':
            return [_regular_polygon(3)]
        case 'star':
            radii = np.tile([1.0, rng.uniform(0.40, 0.50)], 5)
            return [_regular_polygon(10) * radii[:, None]]
        case 'ring':
            return [_regular_polygon(64), _regular_polygon(64) * rng.uniform(0.50, 0.62)]
        case _:  # cross
            reach = 0.95
            half = rng.uniform(0.24, 0.31)
            arm = np.array([[half, half], [reach, half], [reach, -half]])  # a quarter
            quarter_turn = [[0, -1], [1, 0]]
            arms = [arm @ np.linalg.matrix_power(quarter_turn, turns) for turns in range(4)]
            return [np.concatenate(arms)]


def _regular_polygon(corners: int) -> NDArray[np.float64]:
    """Return the corners of a regular polygon in the unit circle, [P, 2]."""
    angles = np.arange(corners) * (2 * np.pi / corners)
    return np.stack([np.cos(angles), np.sin(angles)], axis=1)
