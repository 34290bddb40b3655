"""Draw the attention weights of chosen points over their image."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image

from mmpola.analysis.layer import MAPS, LayerAnalysis
from mmpola.analysis.points import Point, visible_pixels
from mmpola.prediction import Geometry

COLOUR_MAP = 'viridis'
"""Perceptually uniform, and legible with every kind of colour blindness."""

TITLES = {'same': 'same-signed', 'opposite': 'opposite-signed', 'both': 'both', 'softmax': 'softmax of the same q, k'}

LONGEST = 480
"""Pixels of the longer side of the image as it is drawn."""

SATURATED = 99.5
"""Percentile of a map's weights at which its colours end; single larger weights would leave the rest dark."""


class Scene(NamedTuple):
    """An image and how the network sees it.

    Attributes:
        pixels: RGB uint8 [H, W, 3].
        points: chosen by the user, one for each of a layer's `tokens`.
        geometry: of the image in the network's input.
    """

    pixels: NDArray[Any]
    points: list[Point]
    geometry: Geometry


def draw_maps(scene: Scene, layer: LayerAnalysis, stride: int) -> Figure:
    """Draw a row for each point: the image, and the mean over heads of the weights of each of `MAPS`.

    The weights are multiplied by the number of keys, so that 1 is the weight of a query that does not choose. Each row
    has one colour scale for all maps.

    Args:
        scene: the image.
        layer: with as many tokens as the scene has points.
        stride: side of a query token in pixels of the network's input.
    """
    left, top, right, bottom = visible_pixels(scene.geometry, scene.pixels.shape[:2])
    width, rows = 2.05, len(scene.points)
    height = width * (bottom - top) / (right - left)
    figure = Figure(figsize=(width * (len(MAPS) + 1) + 0.8, height * rows + 0.75), dpi=110, layout='constrained')
    figure.suptitle(f'{layer.name}: weights of the marked query, mean of {_heads(layer)}', fontsize=11)
    panels = figure.subplots(rows, len(MAPS) + 1, squeeze=False)
    small = Image.fromarray(scene.pixels)
    small.thumbnail((LONGEST, LONGEST))
    grey = np.asarray(small.convert('L'))
    for row, (point, axes) in enumerate(zip(scene.points, panels, strict=True)):
        weights = {kind: layer.maps[kind][row].mean(axis=0) * layer.maps[kind][row][0].size for kind in MAPS}
        low = min(0.0, *(float(np.percentile(x, 100 - SATURATED)) for x in weights.values()))
        high = max(float(np.percentile(x, SATURATED)) for x in weights.values())
        _draw_image(axes[0], np.asarray(small), scene)
        for kind, panel in zip(MAPS, axes[1:], strict=True):
            _draw_image(panel, grey, scene)
            drawn = _draw_weights(panel, weights[kind], scene.geometry, stride * layer.sr_ratio, (low, high))
        for kind, panel in zip(('', *MAPS), axes, strict=True):
            _mark(panel, point)
            panel.set(xlim=(left, right), ylim=(bottom, top), xticks=[], yticks=[])
            if row == 0 and kind:
                panel.set_title(TITLES[kind], fontsize=10)
        axes[0].set_ylabel(f'{point[0]}, {point[1]}', fontsize=9)
        bar = figure.colorbar(drawn, ax=list(axes), extend='max', fraction=0.03, pad=0.01, aspect=16)
        bar.set_label('weight x keys', fontsize=9)
        bar.ax.tick_params(labelsize=8)
    return figure


def _heads(layer: LayerAnalysis) -> str:
    number = layer.maps['both'].shape[1]
    return f'{number} heads' if number > 1 else 'one head'


def _draw_image(axes: Axes, pixels: NDArray[Any], scene: Scene) -> None:
    """Draw an image, possibly smaller than the scene's, in the coordinates of the scene's pixels."""
    height, width = scene.pixels.shape[:2]
    axes.imshow(pixels, cmap='gray', extent=(0, width, height, 0), interpolation='antialiased')


def _draw_weights(axes: Axes, weights: NDArray[Any], geometry: Geometry, side: int, limits: tuple[float, float]) -> Any:
    """Draw weights [h, w] of tokens of `side` pixels of the network's input over the image."""
    rows, columns = weights.shape
    left, top = geometry.to_image(0, 0)
    right, bottom = geometry.to_image(columns * side, rows * side)
    extent = (left, right, bottom, top)
    low, high = limits
    return axes.imshow(
        weights, cmap=COLOUR_MAP, vmin=low, vmax=high, alpha=0.75, extent=extent, interpolation='nearest'
    )


def _mark(axes: Axes, point: Point) -> None:
    """Mark the query by a ring that is visible on dark and on light colours."""
    x, y = point[0] + 0.5, point[1] + 0.5
    for colour, size in (('black', 3.4), ('white', 1.6)):
        axes.plot(x, y, marker='o', markersize=9, markerfacecolor='none', markeredgecolor=colour, markeredgewidth=size)
