"""Draw the weights of chosen points' queries over their image."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import fill
from typing import Any, Literal, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize, PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray
from PIL import Image

from mmpola.apps.analysis.attention_weights import MAP_KINDS
from mmpola.apps.analysis.geometry import Geometry, Point, visible_pixels
from mmpola.apps.analysis.layer_analysis import LayerAnalysis

COLOUR_MAP = 'viridis'
"""Perceptually uniform, and legible with every kind of colour blindness."""

KIND_TITLES = {
    'same': 'same-signed',
    'opposite': 'opposite-signed',
    'both': 'both',
    'softmax': 'softmax of the same q, k',
}

DRAWN_SIDE = 480
"""Pixels of the longer side of the image as it is drawn."""

DARKEST_GREY = 0.6
"""Grey level that black has below the weights: a darker image would falsify their colours."""

COLOUR_PERCENTILE = 99.5
"""Percentile of a map's weights at which its colours end; a few large ones darken the rest."""


class AnalyzedImage(NamedTuple):
    """An image and how the network sees it.

    Attributes:
        pixels: RGB uint8 [H, W, 3].
        points: chosen by the user, one for each of a layer's `tokens`.
        geometry: of the image in the network's input.
    """

    pixels: NDArray[Any]
    points: list[Point]
    geometry: Geometry


def draw_maps(scene: AnalyzedImage, layer: LayerAnalysis, stride: int) -> Figure:
    """Draw a row for each point: the image, and the weights of each of `MAP_KINDS`.

    The weights are means over heads, multiplied by the number of keys: 1 is the weight of a query
    that prefers no key. Each row has one colour scale for all maps.

    Args:
        scene: the image.
        layer: with as many tokens as the scene has points.
        stride: side of a query token in pixels of the network's input.
    """
    width = 2.05
    rows = len(scene.points)
    columns = len(MAP_KINDS) + 1
    height = width * _aspect(scene) * rows + 0.75
    figure = Figure(figsize=(width * columns + 1.3, height), dpi=110, layout='constrained')
    title = f'{layer.name}: weights of the marked query'
    heads = layer.maps['both'].shape[1]
    if heads > 1:
        title += f', mean of {heads} heads'
    figure.suptitle(title, fontsize=11)
    width_ratios = [1.0] * columns + [0.05]
    panels = figure.subplots(rows, columns + 1, squeeze=False, width_ratios=width_ratios)

    image, background = _image_and_background(scene)
    for row, point in enumerate(scene.points):
        weights = {}
        for kind in MAP_KINDS:
            per_head = layer.maps[kind][row]
            weights[kind] = per_head.mean(axis=0) * per_head[0].size
        axes = panels[row]
        _draw_image(axes[0], image, scene, point)
        axes[0].set_ylabel(f'pixel {point[0]}, {point[1]}', fontsize=9)
        side = stride * layer.sr_ratio
        drawn = _draw_weights(axes[1:-1], background, scene, point, weights, side)
        _add_colour_bar(figure, drawn, cax=axes[-1])
    for kind, panel in zip(MAP_KINDS, panels[0][1:-1], strict=True):
        panel.set_title(fill(KIND_TITLES[kind], width=16), fontsize=10)
    return figure


def draw_query(
    scene: AnalyzedImage, weights: dict[str, NDArray[Any]], side: int, title: str
) -> Figure:
    """Draw the weights of one query, each of `MAP_KINDS` in a panel.

    Args:
        scene: the image, with one point.
        weights: [h, w] for each of `MAP_KINDS`, multiplied by the number of keys.
        side: of a key token in pixels of the network's input.
        title: of the figure.
    """
    width = 3.6
    height = 2 * (width * _aspect(scene) + 0.3) + 0.3
    figure = Figure(figsize=(2 * width + 0.9, height), dpi=110, layout='constrained')
    figure.suptitle(title, fontsize=11)
    panels = list(figure.subplots(2, 2).ravel())
    _, background = _image_and_background(scene)
    drawn = _draw_weights(panels, background, scene, scene.points[0], weights, side)
    for kind, panel in zip(MAP_KINDS, panels, strict=True):
        panel.set_title(KIND_TITLES[kind], fontsize=10)
    _add_colour_bar(figure, drawn, ax=panels, fraction=0.04, pad=0.01)
    return figure


def _aspect(scene: AnalyzedImage) -> float:
    """Return height / width of the part of the image that the network sees."""
    left, top, right, bottom = visible_pixels(scene.geometry, scene.pixels.shape[:2])
    return (bottom - top) / (right - left)


def _image_and_background(scene: AnalyzedImage) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the image as it is drawn [h, w, 3], and in light grey for below the weights [h, w]."""
    image = Image.fromarray(scene.pixels)
    image.thumbnail((DRAWN_SIDE, DRAWN_SIDE))
    grey = np.asarray(image.convert('L')) / 255
    return np.asarray(image), DARKEST_GREY + grey * (1 - DARKEST_GREY)


def _draw_image(axes: Axes, pixels: NDArray[Any], scene: AnalyzedImage, point: Point) -> None:
    """Draw what the network sees of an image, possibly smaller than the scene's; mark a point."""
    height, width = scene.pixels.shape[:2]
    axes.imshow(
        pixels,
        cmap='gray',
        vmin=0,
        vmax=1,
        extent=(0, width, height, 0),
        interpolation='antialiased',
    )
    # A black and a white ring: one of them is visible on any colour.
    ring: dict[str, Any] = {'marker': 'o', 'markersize': 9, 'markerfacecolor': 'none'}
    x = point[0] + 0.5
    y = point[1] + 0.5
    axes.plot(x, y, markeredgecolor='black', markeredgewidth=3.4, **ring)
    axes.plot(x, y, markeredgecolor='white', markeredgewidth=1.6, **ring)
    left, top, right, bottom = visible_pixels(scene.geometry, (height, width))
    axes.set(xlim=(left, right), ylim=(bottom, top), xticks=[], yticks=[])


def _draw_weights(
    panels: Sequence[Axes],
    background: NDArray[Any],
    scene: AnalyzedImage,
    point: Point,
    weights: dict[str, NDArray[Any]],
    side: int,
) -> Any:
    """Draw a query's weights, of tokens of `side` pixels of the network's input, over the image.

    All panels have one colour scale: of the square root, which keeps small weights visible. Rotated
    weights may be negative; their scale is linear.

    Returns:
        What a colour bar needs.
    """
    lows = [float(np.percentile(x, 100 - COLOUR_PERCENTILE)) for x in weights.values()]
    highs = [float(np.percentile(x, COLOUR_PERCENTILE)) for x in weights.values()]
    low = min(lows)
    high = max(highs)
    norm: Normalize
    if low >= 0:
        norm = PowerNorm(0.5, vmin=0, vmax=high)
    else:
        norm = Normalize(low, high)
    left, top = scene.geometry.to_image(0, 0)
    for kind, panel in zip(MAP_KINDS, panels, strict=True):
        _draw_image(panel, background, scene, point)
        rows, columns = weights[kind].shape
        right, bottom = scene.geometry.to_image(columns * side, rows * side)
        drawn = panel.imshow(
            weights[kind],
            extent=(left, right, bottom, top),
            cmap=COLOUR_MAP,
            norm=norm,
            alpha=0.75,
            interpolation='nearest',
        )
    return drawn


def _add_colour_bar(figure: Figure, drawn: Any, **place: Any) -> None:
    """Add the colour bar of a query's maps; `place` are arguments of `Figure.colorbar`."""
    extend: Literal['max', 'both'] = 'both'
    if drawn.norm.vmin == 0:
        extend = 'max'
    bar = figure.colorbar(drawn, extend=extend, ticks=MaxNLocator(4, integer=True), **place)
    bar.set_label('weight\n(1: uniform)', fontsize=8)
    bar.ax.tick_params(labelsize=8)
