"""Draw the best classes of a classifier beside its image."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from numpy.typing import NDArray
from timm.data import ImageNetInfo

SIDE, PANEL, DPI = 384, 384, 100
"""Pixels of the drawn image's longer side and of the width of the panel of classes; dots per inch."""

BAR, TRACK = '#0072b2', '#e6e6e6'
"""Colours of a probability's bar and of the rest up to 1."""

LONGEST = 38
"""Characters of a class name that fit into the panel."""


def draw_classes(pixels: NDArray[Any], found: list[dict[str, Any]], path: Path) -> None:
    """Write an image with its best classes beside it, as names with bars of their probabilities.

    Args:
        pixels: RGB uint8 [H, W, 3].
        found: `class` and `score` of each class, best first, as in the JSON.
        path: file to write, in an existing folder.
    """
    height, width = (round(SIDE * side / max(pixels.shape[:2])) or 1 for side in pixels.shape[:2])
    total = width + PANEL, max(height, SIDE * 3 // 4)
    figure = Figure(figsize=(total[0] / DPI, total[1] / DPI), dpi=DPI)
    image = figure.add_axes((0, (1 - height / total[1]) / 2, width / total[0], height / total[1]))
    image.imshow(pixels, aspect='auto')
    image.axis('off')
    bars = figure.add_axes(((width + 20) / total[0], 0.02, (PANEL - 40) / total[0], 0.96))
    bars.set(xlim=(0, 1), ylim=(len(found) - 0.5, -0.5))
    bars.axis('off')
    for row, entry in enumerate(found):
        bars.barh(row + 0.2, 1, height=0.2, color=TRACK)
        bars.barh(row + 0.2, entry['score'], height=0.2, color=BAR)
        weight = 'bold' if row == 0 else 'normal'
        bars.text(
            0,
            row,
            shown_name(entry['class']),
            va='bottom',
            fontsize=10,
            weight=weight,
            parse_math=False,
        )
        bars.text(
            1, row, f'{entry["score"]:.1%}', va='bottom', ha='right', fontsize=10, weight=weight
        )
    figure.savefig(path, dpi=DPI)


def shown_name(name: str) -> str:
    """Return a class name as it is drawn: shortened, and in words if it is one of ImageNet-1k's WordNet numbers."""
    if re.fullmatch(r'n\d{8}', name):
        name = _imagenet_names().get(name, name)
    return name if len(name) <= LONGEST else f'{name[: LONGEST - 1]}…'


@cache
def _imagenet_names() -> dict[str, str]:
    """'n02102040' -> 'English springer': the first word or words for each class of ImageNet-1k."""
    imagenet = ImageNetInfo('imagenet-1k')
    return {
        number: imagenet.label_name_to_description(number).split(',')[0]
        for number in imagenet.label_names()
    }
