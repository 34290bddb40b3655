"""Sizes that test transforms resize an image to, computed without its pixels."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from timm.data.transforms import ResizeKeepRatio
from torchvision.transforms import Resize

from mmpola.messages import UsageError

Size = tuple[int, int]
"""Height and width in pixels."""

LARGEST_INPUT = 100_000_000
"""Pixels of an image after it was resized, above which it is refused: they take 1.2 GB in float32. A
narrow image in a file of some hundred bytes could otherwise take all memory."""


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


def check_sizes(size: Size, resized: Callable[[Size], list[Size]]) -> None:
    """Check that an image stays within `LARGEST_INPUT` when it is resized.

    Args:
        size: of the image.
        resized: returns the sizes that the image gets.

    Raises:
        UsageError: it becomes larger, or a side vanishes; the message does not name the image.
    """
    height, width = size
    try:
        sizes = resized(size)
    except RuntimeError:
        sizes = [(0, 0)]
    for new_height, new_width in sizes:
        if new_height * new_width == 0:
            raise UsageError(f'{width} x {height} pixels, too narrow for the test transforms')
        if new_height * new_width > LARGEST_INPUT:
            raise UsageError(
                f'{width} x {height} pixels, of which the test transforms would make '
                f'{new_width} x {new_height}; expected at most {LARGEST_INPUT} pixels'
            )
