"""Draw the weights of chosen points' queries over their image."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import fill
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize, PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray
from PIL import Image

from mmpola.apps.analysis.attention_weights import MAP_KINDS
from mmpola.apps.analysis.scene import Point, Scene
from mmpola.apps.analysis.statistics import Array

KIND_TITLES = {
    'same': 'same-signed',
    'opposite': 'opposite-signed',
    'both': 'both',
    'linear': 'elu + 1 of the same q, k',
    'softmax': 'softmax of the same q, k',
}

PANEL_WIDTH = 2.05
"""Inches."""

DRAWN_SIDE = 480
"""Pixels of the longer side of the image as it is drawn."""

DARKEST_GREY = 0.6
"""Grey level that black has below the weights: a darker image would falsify their colours."""

COLOUR_PERCENTILE = 99.5
"""Percentile of a map's weights at which its colours end; a few large ones darken the rest."""


def draw_maps(
    scene: Scene,
    points: Sequence[Point],
    maps: dict[str, Array],
    side: int,
    name: str,
    head: int | None = None,
) -> Figure:
    """Draw a row for each point: the image, and the weights of each of `MAP_KINDS`.

    The weights are multiplied by the number of keys: 1 is the weight of a query that prefers no
    key. Each row has one colour scale for all maps.

    Args:
        scene: the image.
        points: pixels of the image.
        maps: weights of their queries, from `query_maps`.
        side: of a key token in pixels of the network's input.
        name: of the layer.
        head: from 0; None for the mean of the heads.
    """
    left, top, right, bottom = scene.visible
    aspect = (bottom - top) / (right - left)
    rows = len(points)
    columns = len(MAP_KINDS) + 1
    size = (PANEL_WIDTH * columns + 1.3, PANEL_WIDTH * aspect * rows + 0.75)
    figure = Figure(figsize=size, dpi=110, layout='constrained')
    title = f'{name}: weights of the marked query'
    heads = maps['both'].shape[1]
    if head is not None:
        title += f', head {head + 1} of {heads}'
    elif heads > 1:
        title += f', mean of {heads} heads'
    figure.suptitle(title, fontsize=11)
    width_ratios = [1.0] * columns + [0.05]
    panels = figure.subplots(rows, columns + 1, squeeze=False, width_ratios=width_ratios)

    image = Image.fromarray(scene.pixels)
    image.thumbnail((DRAWN_SIDE, DRAWN_SIDE))
    grey = np.asarray(image.convert('L')) / 255
    background = DARKEST_GREY + grey * (1 - DARKEST_GREY)
    for row, point in enumerate(points):
        weights = {}
        for kind in MAP_KINDS:
            per_head = maps[kind][row]  # [H, h, w]
            chosen = per_head.mean(axis=0) if head is None else per_head[head]
            weights[kind] = chosen * chosen.size
        axes = panels[row]
        _draw_image(axes[0], np.asarray(image), scene, point)
        axes[0].set_ylabel(f'pixel {point[0]}, {point[1]}', fontsize=9)
        drawn = _draw_weights(axes[1:-1], background, scene, point, weights, side)
        extend: Literal['max', 'both'] = 'max' if drawn.norm.vmin == 0 else 'both'
        ticks = MaxNLocator(4, integer=True)
        bar = figure.colorbar(drawn, cax=axes[-1], extend=extend, ticks=ticks)
        bar.set_label('weight\n(1: uniform)', fontsize=8)
        bar.ax.tick_params(labelsize=8)
    for kind, panel in zip(MAP_KINDS, panels[0][1:-1], strict=True):
        panel.set_title(fill(KIND_TITLES[kind], width=16), fontsize=10)
    return figure


def _draw_image(axes: Axes, pixels: NDArray[Any], scene: Scene, point: Point) -> None:
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
    left, top, right, bottom = scene.visible
    axes.set(xlim=(left, right), ylim=(bottom, top), xticks=[], yticks=[])


def _draw_weights(
    panels: Sequence[Axes],
    background: NDArray[Any],
    scene: Scene,
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
    low = min(float(np.percentile(x, 100 - COLOUR_PERCENTILE)) for x in weights.values())
    high = max(float(np.percentile(x, COLOUR_PERCENTILE)) for x in weights.values())
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
            cmap='viridis',  # perceptually uniform, legible with every kind of colour blindness
            norm=norm,
            alpha=0.75,
            interpolation='nearest',
        )
    return drawn
