"""A seeded scene: objects painted on a background, and the mask of the visible part of each."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mmpola.shapes.outline import CLASSES, coverage, place, unit_outline
from mmpola.shapes.region import Mask
from mmpola.shapes.surface import Image, background, contrasting_colour, texture

_SMALLEST_SIDE, _LARGEST_SIDE = 64, 2048  # of an image, pixels

_EMPTY_SCENES, _CROWD_SCENES = 0.05, 0.08  # share of all scenes
_SMALL_OBJECTS = 0.15  # share of all objects
_LEAST_VISIBLE_SHARE = 0.3  # of an object's own pixels
_LEAST_VISIBLE_PIXELS = 24
_PLACEMENTS = 30  # attempts before an object is omitted


@dataclass(frozen=True)
class Instance:
    """The visible part of an object, or of a crowd of tiny objects: `mask` is bool [H, W]."""

    class_index: int  # into CLASSES
    mask: Mask
    iscrowd: bool = False


@dataclass(frozen=True)
class Scene:
    """An RGB image, uint8 [H, W, 3], and its instances, farthest first; their masks do not overlap."""

    image: NDArray[np.uint8]
    instances: list[Instance]


def check_scene_options(seed: int, size: tuple[int, int]) -> None:
    """Raise ValueError if the seed is negative or the size is out of range."""
    if seed < 0:
        raise ValueError(f'seed: expected 0 or more, got {seed}')
    if len(size) != 2 or not all(_SMALLEST_SIDE <= side <= _LARGEST_SIDE for side in size):
        raise ValueError(
            f'size: expected width and height from {_SMALLEST_SIDE} to {_LARGEST_SIDE} pixels, got {tuple(size)}'
        )


def draw_scene(seed: int, index: int, size: tuple[int, int] = (192, 160)) -> Scene:
    """Draw scene number `index` of the series of a seed; the same arguments always give the same scene.

    Args:
        seed: of the series, from 0.
        index: from 0.
        size: (width, height) in pixels, each 64 to 2048.

    Raises:
        ValueError: an argument is out of range.
    """
    check_scene_options(seed, size)
    if index < 0:
        raise ValueError(f'index: expected 0 or more, got {index}')
    rng = np.random.default_rng([seed, index])
    painting = _Painting(rng, size)
    kind = rng.uniform()
    if kind >= _EMPTY_SCENES:
        if kind < _EMPTY_SCENES + _CROWD_SCENES:
            painting.add_crowd()
        for _ in range(rng.integers(1, 7)):
            painting.add_object()
    return painting.finish()


@dataclass
class _Layer:
    """An instance that later ones may still hide in part; `pixels` is the area that it had at first."""

    class_index: int
    visible: Mask
    pixels: int
    iscrowd: bool


class _Painting:
    """A scene while it is painted."""

    def __init__(self, rng: np.random.Generator, size: tuple[int, int]) -> None:
        self.rng = rng
        self.size = size
        self.image: Image = background(rng, size)
        self.layers: list[_Layer] = []

    def add_object(self) -> None:
        """Paint an object of a random class at a place where enough of every earlier object stays visible."""
        class_index = int(self.rng.integers(len(CLASSES)))
        for _ in range(_PLACEMENTS):
            small = self.rng.uniform() < _SMALL_OBJECTS
            diameter = self.rng.uniform(12, 24) if small else self.rng.uniform(28, 0.6 * min(self.size))
            margin = 0.3 * diameter  # the frame may cut an object, but not in half
            centre = self.rng.uniform(margin, np.subtract(self.size, margin))
            opacity = self._opacity(class_index, centre, diameter)
            if self._leaves_enough_visible(opacity >= 0.5):
                self._paint(opacity, diameter)
                self._cover(class_index, opacity >= 0.5)
                return

    def add_crowd(self) -> None:
        """Paint a cluster of tiny objects of one class as a single instance."""
        class_index = int(self.rng.integers(len(CLASSES)))
        radius = 0.25 * min(self.size)
        middle = self.rng.uniform(radius, np.subtract(self.size, radius))
        mask = np.zeros(self.image.shape[:2], bool)
        for _ in range(self.rng.integers(12, 31)):
            angle, distance = self.rng.uniform(0, 2 * np.pi), radius * np.sqrt(self.rng.uniform())
            centre = middle + distance * np.array([np.cos(angle), np.sin(angle)])
            diameter = self.rng.uniform(9, 13)
            opacity = self._opacity(class_index, centre, diameter)
            self._paint(opacity, diameter)
            mask |= opacity >= 0.5
        self._cover(class_index, mask, iscrowd=True)

    def finish(self) -> Scene:
        noisy = self.image + self.rng.normal(0, 4, self.image.shape)
        image = np.clip(np.rint(noisy), 0, 255).astype(np.uint8)
        return Scene(image, [Instance(layer.class_index, layer.visible, layer.iscrowd) for layer in self.layers])

    def _opacity(self, class_index: int, centre: NDArray[np.float64], diameter: float) -> NDArray[np.float32]:
        outline = unit_outline(class_index, self.rng)
        return coverage(place(outline, centre, diameter, self.rng.uniform(0, 2 * np.pi)), self.size)

    def _leaves_enough_visible(self, mask: Mask) -> bool:
        return mask.sum() >= _LEAST_VISIBLE_PIXELS and all(
            (layer.visible & ~mask).sum() >= max(_LEAST_VISIBLE_SHARE * layer.pixels, _LEAST_VISIBLE_PIXELS)
            for layer in self.layers
        )

    def _paint(self, opacity: NDArray[np.float32], diameter: float) -> None:
        mask = opacity >= 0.5
        colour = contrasting_colour(self.rng, self.image, mask)
        period = self.rng.uniform(5, max(7, diameter / 3))
        paint = texture(self.rng, self.size, period, colour)
        self.image += opacity[..., None] * (paint - self.image)

    def _cover(self, class_index: int, mask: Mask, iscrowd: bool = False) -> None:
        for layer in self.layers:
            layer.visible &= ~mask
        self.layers.append(_Layer(class_index, mask, int(mask.sum()), iscrowd))
