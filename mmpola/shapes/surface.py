"""Backgrounds, contrasting colours and textures. Images are float32 RGB from 0 to 255."""

import cv2
import numpy as np
from numpy.typing import NDArray

Image = NDArray[np.float32]

_TEXTURES = ('solid', 'solid', 'solid', 'stripes', 'checks', 'dots')  # half of the objects are plain


def _smooth_noise(rng: np.random.Generator, size: tuple[int, int], cell: int, channels: int) -> Image:
    """Draw smooth normal noise [H, W, channels] with a wavelength of about `cell` pixels."""
    width, height = size
    coarse = rng.normal(size=(height // cell + 2, width // cell + 2, channels)).astype(np.float32)
    return cv2.resize(coarse, size, interpolation=cv2.INTER_CUBIC).reshape(height, width, channels).astype(np.float32)


def background(rng: np.random.Generator, size: tuple[int, int]) -> Image:
    """Paint an image [H, W, 3] of `size` (W, H): a gradient, clouds, soft patches and thin open lines.

    It has no filled region with a sharp edge that could be mistaken for an object.
    """
    corners = rng.uniform(50, 205, (1, 1, 3)) + rng.uniform(-45, 45, (2, 2, 3))
    image = cv2.resize(corners.astype(np.float32), size, interpolation=cv2.INTER_LINEAR)
    image = image + 14 * _smooth_noise(rng, size, cell=12, channels=3)
    for _ in range(rng.integers(1, 4)):
        patch = 1 / (1 + np.exp(2 - 3 * _smooth_noise(rng, size, cell=20, channels=1)))
        image = image + patch * rng.uniform(-45, 45, 3).astype(np.float32)
    for _ in range(rng.integers(4, 13)):
        start = rng.uniform(0, size).astype(int)
        colour = (image[start[1], start[0]] + rng.uniform(-60, 60, 3)).tolist()
        # small turns, so that a line never closes to an outline
        heading = rng.uniform(0, 2 * np.pi) + rng.normal(0, 0.35, rng.integers(2, 8)).cumsum()
        steps = 0.1 * min(size) * np.stack([np.cos(heading), np.sin(heading)], axis=1)
        points = start + np.rint(steps.cumsum(axis=0)).astype(np.int32)
        cv2.polylines(image, [points], False, colour, int(rng.integers(1, 3)), cv2.LINE_AA)
    return np.clip(image, 0, 255).astype(np.float32)


def contrasting_colour(rng: np.random.Generator, image: Image, mask: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return that of eight random RGB colours which contrasts most with the pixels around `mask` [H, W]."""
    around = cv2.dilate(mask.astype(np.uint8), np.ones((7, 7), np.uint8)).astype(bool) & ~mask
    colours = rng.uniform(0, 255, (8, 3))
    distances = np.linalg.norm(image[around] - colours[:, None], axis=-1)
    # a low percentile, not the mean: the edge must be visible almost everywhere
    return colours[np.percentile(distances, 15, axis=1).argmax()]


def texture(rng: np.random.Generator, size: tuple[int, int], period: float, colour: NDArray[np.float64]) -> Image:
    """Paint an image [H, W, 3] in a colour [3] and a shade of it, plain or with a pattern every `period` pixels."""
    width, height = size
    darkest_or_lightest = 0 if colour.mean() > 127 else 255
    shade = colour + rng.uniform(0.2, 0.4) * (darkest_or_lightest - colour)
    angle, x0, y0 = rng.uniform(0, np.pi), rng.uniform(), rng.uniform()
    y, x = np.mgrid[:height, :width]
    u = (x * np.cos(angle) + y * np.sin(angle)) / period + x0
    v = (y * np.cos(angle) - x * np.sin(angle)) / period + y0
    match rng.choice(_TEXTURES):
        case 'stripes':
            second = u % 1 < 0.5
        case 'checks':
            second = (u % 1 < 0.5) ^ (v % 1 < 0.5)
        case 'dots':
            second = np.hypot(u % 1 - 0.5, v % 1 - 0.5) < 0.3
        case _:
            second = np.zeros((height, width), bool)
    return np.where(second[..., None], shade, colour).astype(np.float32)
