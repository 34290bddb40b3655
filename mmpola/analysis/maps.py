"""Draw the attention weights of chosen points over their image."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize, PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
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

DARKEST = 0.6
"""Grey level of black below the weights, whose colours a darker image would falsify."""

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

    The weights are multiplied by the number of keys: 1 is the weight of a query that prefers no key. Each row has one
    colour scale for all maps.

    Args:
        scene: the image.
        layer: with as many tokens as the scene has points.
        stride: side of a query token in pixels of the network's input.
    """
    width, rows, columns = 2.05, len(scene.points), len(MAPS) + 1
    height = width * _aspect(scene)
    figure = Figure(figsize=(width * columns + 1.3, height * rows + 0.75), dpi=110, layout='constrained')
    figure.suptitle(f'{layer.name}: weights of the marked query{_mean_of_heads(layer)}', fontsize=11)
    panels = figure.subplots(rows, columns + 1, squeeze=False, width_ratios=[*[1] * columns, 0.05])
    small, background = _backgrounds(scene)
    for row, (point, axes) in enumerate(zip(scene.points, panels, strict=True)):
        weights = {kind: layer.maps[kind][row].mean(axis=0) * layer.maps[kind][row][0].size for kind in MAPS}
        _draw_image(axes[0], small, scene)
        drawn = _draw_query(axes[1:-1], background, scene, weights, stride * layer.sr_ratio)
        for kind, panel in zip(MAPS, axes[1:-1] if row == 0 else (), strict=False):
            panel.set_title(TITLES[kind], fontsize=10)
        for panel in axes[:-1]:
            _mark(panel, point, scene)
        axes[0].set_ylabel(f'pixel {point[0]}, {point[1]}', fontsize=9)
        _add_colour_bar(figure, drawn, cax=axes[-1])
    return figure


def draw_query(scene: Scene, weights: dict[str, NDArray[Any]], side: int, title: str) -> Figure:
    """Draw the weights of one query, those of each of `MAPS` in a panel of its own.

    Args:
        scene: the image, with one point.
        weights: [h, w] for each of `MAPS`, multiplied by the number of keys.
        side: of a key token in pixels of the network's input.
        title: of the figure.
    """
    width = 3.6
    figure = Figure(figsize=(2 * width + 0.9, 2 * (width * _aspect(scene) + 0.3) + 0.3), dpi=110, layout='constrained')
    figure.suptitle(title, fontsize=11)
    panels = list(figure.subplots(2, 2).ravel())
    drawn = _draw_query(panels, _backgrounds(scene)[1], scene, weights, side)
    for kind, panel in zip(MAPS, panels, strict=True):
        panel.set_title(TITLES[kind], fontsize=10)
        _mark(panel, scene.points[0], scene)
    _add_colour_bar(figure, drawn, ax=panels, fraction=0.04, pad=0.01)
    return figure


def _aspect(scene: Scene) -> float:
    """Return height / width of the part of the image that the network sees."""
    left, top, right, bottom = visible_pixels(scene.geometry, scene.pixels.shape[:2])
    return (bottom - top) / (right - left)


def _backgrounds(scene: Scene) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the image as it is drawn on its own [h, w, 3], and in grey below the weights [h, w]."""
    small = Image.fromarray(scene.pixels)
    small.thumbnail((LONGEST, LONGEST))
    return np.asarray(small), DARKEST + np.asarray(small.convert('L')) / 255 * (1 - DARKEST)


def _draw_query(
    panels: Sequence[Axes], background: NDArray[Any], scene: Scene, weights: dict[str, NDArray[Any]], side: int
) -> Any:
    """Draw the weights of a query over the image with one colour scale; returns what a colour bar needs."""
    norm = _norm(list(weights.values()))
    for kind, panel in zip(MAPS, panels, strict=True):
        _draw_image(panel, background, scene)
        drawn = _draw_weights(panel, weights[kind], scene.geometry, side, norm)
    return drawn


def _add_colour_bar(figure: Figure, drawn: Any, **place: Any) -> None:
    """Add the colour bar of a query's maps; `place` are arguments of `Figure.colorbar`."""
    extend = 'max' if drawn.norm.vmin == 0 else 'both'
    bar = figure.colorbar(drawn, extend=extend, ticks=MaxNLocator(4, integer=True), **place)
    bar.set_label('weight (1: no preference)', fontsize=9)
    bar.ax.tick_params(labelsize=8)


def _mean_of_heads(layer: LayerAnalysis) -> str:
    number = layer.maps['both'].shape[1]
    return f', mean of {number} heads' if number > 1 else ''


def _norm(maps: list[NDArray[Any]]) -> Normalize:
    """Return the colour scale of a row of maps: of the square root, which keeps small weights visible.

    Rotated weights may be negative; their scale is linear.
    """
    low = min(float(np.percentile(x, 100 - SATURATED)) for x in maps)
    high = max(float(np.percentile(x, SATURATED)) for x in maps)
    return PowerNorm(0.5, vmin=0, vmax=high) if low >= 0 else Normalize(low, high)


def _draw_image(axes: Axes, pixels: NDArray[Any], scene: Scene) -> None:
    """Draw an image, possibly smaller than the scene's, in the coordinates of the scene's pixels."""
    height, width = scene.pixels.shape[:2]
    axes.imshow(pixels, cmap='gray', vmin=0, vmax=1, extent=(0, width, height, 0), interpolation='antialiased')


def _draw_weights(axes: Axes, weights: NDArray[Any], geometry: Geometry, side: int, norm: Normalize) -> Any:
    """Draw weights [h, w] of tokens of `side` pixels of the network's input over the image."""
    rows, columns = weights.shape
    left, top = geometry.to_image(0, 0)
    right, bottom = geometry.to_image(columns * side, rows * side)
    extent = (left, right, bottom, top)
    return axes.imshow(weights, cmap=COLOUR_MAP, norm=norm, alpha=0.75, extent=extent, interpolation='nearest')


def _mark(axes: Axes, point: Point, scene: Scene) -> None:
    """Mark the query by a ring that is visible on dark and on light colours, and show what the network sees."""
    left, top, right, bottom = visible_pixels(scene.geometry, scene.pixels.shape[:2])
    x, y = point[0] + 0.5, point[1] + 0.5
    for colour, size in (('black', 3.4), ('white', 1.6)):
        axes.plot(x, y, marker='o', markersize=9, markerfacecolor='none', markeredgecolor=colour, markeredgewidth=size)
    axes.set(xlim=(left, right), ylim=(bottom, top), xticks=[], yticks=[])
