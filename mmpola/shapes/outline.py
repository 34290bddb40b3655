"""The six classes as unit outlines, and their placement on the pixel grid."""

import cv2
import numpy as np
from numpy.typing import NDArray

CLASSES: tuple[str, ...] = ('circle', 'square', 'triangle', 'star', 'ring', 'cross')

Outline = list[NDArray[np.float64]]  # closed contours, each [P, 2] as (x, y); the inside of two of them is a hole

_SUPERSAMPLING = 4  # sub-pixels per pixel side when measuring how much of a pixel an outline covers


def _regular(corners: int, first: float = -np.pi / 2) -> NDArray[np.float64]:
    """Return points at equal distances on the unit circle, starting at angle `first`; -pi / 2 is the top."""
    angles = first + np.arange(corners) * (2 * np.pi / corners)
    return np.stack([np.cos(angles), np.sin(angles)], axis=1)


def unit_outline(class_index: int, rng: np.random.Generator) -> Outline:
    """Return the upright outline of a class inside the unit circle.

    Proportions that do not define the class (a star's depth, a ring's or a cross's thickness) are drawn from `rng`.
    """
    match CLASSES[class_index]:
        case 'circle':
            return [_regular(64)]
        case 'square':
            return [_regular(4, first=np.pi / 4)]
        case 'triangle':
            return [_regular(3)]
        case 'star':
            return [_regular(10) * np.tile([1.0, rng.uniform(0.40, 0.50)], 5)[:, None]]
        case 'ring':
            return [_regular(64), _regular(64) * rng.uniform(0.50, 0.62)]
        case _:  # cross
            reach, half = 0.95, rng.uniform(0.24, 0.31)
            arm = np.array([[half, half], [reach, half], [reach, -half]])  # a quarter of the outline
            quarters = [arm @ np.linalg.matrix_power([[0, -1], [1, 0]], k) for k in range(4)]
            return [np.concatenate(quarters)]


def place(outline: Outline, centre: NDArray[np.float64], diameter: float, angle: float) -> Outline:
    """Rotate an outline by `angle` (radians), scale it to `diameter` and move it to `centre` (x, y), both in pixels."""
    cos, sin = np.cos(angle), np.sin(angle)
    turn = np.array([[cos, sin], [-sin, cos]])
    return [contour @ turn * (diameter / 2) + centre for contour in outline]


def coverage(outline: Outline, size: tuple[int, int]) -> NDArray[np.float32]:
    """Return the share of each pixel inside the outline, float32 [H, W] in 0..1, for an image of `size` (W, H)."""
    width, height = size
    fine = np.zeros((height * _SUPERSAMPLING, width * _SUPERSAMPLING), np.uint8)
    contours = [np.rint(contour * _SUPERSAMPLING - 0.5).astype(np.int32) for contour in outline]
    cv2.fillPoly(fine, contours, 255)
    return cv2.resize(fine, size, interpolation=cv2.INTER_AREA).astype(np.float32) / np.float32(255)
