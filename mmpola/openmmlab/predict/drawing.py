"""Draw the best classes of a classifier beside its image."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray

DRAWING_SIDE = 384
"""Pixels of the longer side of the drawn image."""

PANEL_WIDTH = 384
"""Pixels of the width of the panel of classes."""

DPI = 100

BAR_COLOUR = '#0072b2'
TRACK_COLOUR = '#e6e6e6'
"""Colours of a probability's bar and of the rest up to 1."""

LONGEST_NAME = 38
"""Characters of a class name that fit into the panel."""


def draw_classes(pixels: NDArray[Any], best: list[dict[str, Any]]) -> NDArray[np.uint8]:
    """Draw an image with its best classes beside it: names, with bars of their probabilities.

    Args:
        pixels: RGB uint8 [H, W, 3].
        best: `name` and `score` of each class, best first, as in the JSON.

    Returns:
        RGB uint8 [h, w, 3].
    """
    scale = DRAWING_SIDE / max(pixels.shape[:2])
    height = max(1, round(pixels.shape[0] * scale))
    width = max(1, round(pixels.shape[1] * scale))
    total_height = max(height, DRAWING_SIDE * 3 // 4)
    total_width = width + PANEL_WIDTH
    figure = Figure(figsize=(total_width / DPI, total_height / DPI), dpi=DPI)

    bottom = (1 - height / total_height) / 2
    image = figure.add_axes((0, bottom, width / total_width, height / total_height))
    image.imshow(pixels, aspect='auto')
    image.axis('off')

    left = (width + 20) / total_width
    bars = figure.add_axes((left, 0.02, (PANEL_WIDTH - 40) / total_width, 0.96))
    bars.set(xlim=(0, 1), ylim=(len(best) - 0.5, -0.5))
    bars.axis('off')
    for row, entry in enumerate(best):
        bars.barh(row + 0.2, 1, height=0.2, color=TRACK_COLOUR)
        bars.barh(row + 0.2, entry['score'], height=0.2, color=BAR_COLOUR)
        style: dict[str, Any] = {'va': 'bottom', 'fontsize': 10}
        if row == 0:
            style['weight'] = 'bold'
        bars.text(0, row, shortened(entry['name']), parse_math=False, **style)
        bars.text(1, row, f'{entry["score"]:.1%}', ha='right', **style)

    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()


def shortened(name: str) -> str:
    """Return a class name that fits into the panel."""
    if len(name) > LONGEST_NAME:
        return f'{name[: LONGEST_NAME - 1]}…'
    return name
