"""Figures of an image's analysis: the weights of chosen points over the image, and charts of all layers."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import fill
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize, PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray
from PIL import Image

from mmpola.apps.analysis.geometry import Geometry, Point, visible_pixels
from mmpola.apps.analysis.statistics import LayerAnalysis
from mmpola.apps.analysis.weights import MAPS

BLUE, ORANGE, GREEN, PINK, GREY = '#0072b2', '#d55e00', '#009e73', '#cc79a7', '#666666'
LIGHT_BLUE = '#56b4e9'

ENTROPY_STYLES: dict[str, tuple[str, str, str]] = {
    'linear': ('linear, elu + 1', GREEN, '-^'),
    'relu': ('linear, ReLU only', PINK, '-v'),
    'both': ('polarity-aware, both streams', BLUE, '-o'),
    'same': ('same-signed stream', LIGHT_BLUE, '--'),
    'opposite': ('opposite-signed stream', LIGHT_BLUE, ':'),
    'softmax': ('softmax', ORANGE, '-s'),
}
"""Label, colour and format of the line of each kind of weights."""

STREAM_STYLES = (('same-signed', BLUE, 'o'), ('opposite-signed', ORANGE, 's'))

PARAMETER_TITLES = {
    'exponent': 'exponent p',
    'scale': 'scale s',
    'same': 'temperature, same-signed',
    'opposite': 'temperature, opposite-signed',
}
"""Labels of the parameters of both feature maps."""

PCA_COLUMNS = 4

COLOUR_MAP = 'viridis'
"""Perceptually uniform, and legible with every kind of colour blindness."""

TITLES = {
    'same': 'same-signed',
    'opposite': 'opposite-signed',
    'both': 'both',
    'softmax': 'softmax of the same q, k',
}

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

    The weights are multiplied by the number of keys: 1 is the weight of a query that prefers no
    key. Each row has one colour scale for all maps.

    Args:
        scene: the image.
        layer: with as many tokens as the scene has points.
        stride: side of a query token in pixels of the network's input.
    """
    width, rows, columns = 2.05, len(scene.points), len(MAPS) + 1
    heads = layer.maps['both'].shape[1]
    figure = Figure(
        figsize=(width * columns + 1.3, width * _aspect(scene) * rows + 0.75),
        dpi=110,
        layout='constrained',
    )
    mean = f', mean of {heads} heads' if heads > 1 else ''
    figure.suptitle(f'{layer.name}: weights of the marked query{mean}', fontsize=11)
    panels = figure.subplots(rows, columns + 1, squeeze=False, width_ratios=[*[1] * columns, 0.05])
    small, background = _backgrounds(scene)
    for row, (point, axes) in enumerate(zip(scene.points, panels, strict=True)):
        weights = {
            kind: layer.maps[kind][row].mean(axis=0) * layer.maps[kind][row][0].size
            for kind in MAPS
        }
        _draw_image(axes[0], small, scene, point)
        axes[0].set_ylabel(f'pixel {point[0]}, {point[1]}', fontsize=9)
        drawn = _draw_weights(
            axes[1:-1], background, scene, point, weights, stride * layer.sr_ratio
        )
        _add_colour_bar(figure, drawn, cax=axes[-1])
    for kind, panel in zip(MAPS, panels[0][1:-1], strict=True):
        panel.set_title(fill(TITLES[kind], width=16), fontsize=10)
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
    figure = Figure(
        figsize=(2 * width + 0.9, 2 * (width * _aspect(scene) + 0.3) + 0.3),
        dpi=110,
        layout='constrained',
    )
    figure.suptitle(title, fontsize=11)
    panels = list(figure.subplots(2, 2).ravel())
    drawn = _draw_weights(panels, _backgrounds(scene)[1], scene, scene.points[0], weights, side)
    for kind, panel in zip(MAPS, panels, strict=True):
        panel.set_title(TITLES[kind], fontsize=10)
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


def _draw_image(axes: Axes, pixels: NDArray[Any], scene: Scene, point: Point) -> None:
    """Draw what the network sees of an image, possibly smaller than the scene's, and mark a pixel of the scene."""
    height, width = scene.pixels.shape[:2]
    axes.imshow(
        pixels,
        cmap='gray',
        vmin=0,
        vmax=1,
        extent=(0, width, height, 0),
        interpolation='antialiased',
    )
    x, y = point[0] + 0.5, point[1] + 0.5
    for colour, size in (
        ('black', 3.4),
        ('white', 1.6),
    ):  # a ring that is visible on dark and on light colours
        axes.plot(
            x,
            y,
            marker='o',
            markersize=9,
            markerfacecolor='none',
            markeredgecolor=colour,
            markeredgewidth=size,
        )
    left, top, right, bottom = visible_pixels(scene.geometry, (height, width))
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
    low = min(float(np.percentile(x, 100 - SATURATED)) for x in weights.values())
    high = max(float(np.percentile(x, SATURATED)) for x in weights.values())
    norm = PowerNorm(0.5, vmin=0, vmax=high) if low >= 0 else Normalize(low, high)
    left, top = scene.geometry.to_image(0, 0)
    for kind, panel in zip(MAPS, panels, strict=True):
        _draw_image(panel, background, scene, point)
        rows, columns = weights[kind].shape
        right, bottom = scene.geometry.to_image(columns * side, rows * side)
        style: dict[str, Any] = {
            'cmap': COLOUR_MAP,
            'norm': norm,
            'alpha': 0.75,
            'interpolation': 'nearest',
        }
        drawn = panel.imshow(weights[kind], extent=(left, right, bottom, top), **style)
    return drawn


def _add_colour_bar(figure: Figure, drawn: Any, **place: Any) -> None:
    """Add the colour bar of a query's maps; `place` are arguments of `Figure.colorbar`."""
    extend = 'max' if drawn.norm.vmin == 0 else 'both'
    bar = figure.colorbar(drawn, extend=extend, ticks=MaxNLocator(4, integer=True), **place)
    bar.set_label('weight\n(1: uniform)', fontsize=8)
    bar.ax.tick_params(labelsize=8)


def draw_entropy(layers: Sequence[LayerAnalysis]) -> Figure:
    """Draw the entropy of each kind of weights as a share of log M: lines for the mean of the heads, dots for each."""
    figure, (axes,) = _figure(layers, panels=1)
    for kind, (label, colour, line) in ENTROPY_STYLES.items():
        shares = [layer.entropy[kind] / layer.largest_entropy for layer in layers]
        # Softmax often coincides with elu + 1, whose wide line then shows behind it.
        size, width = (10, 4) if kind == 'linear' else (6, 1.6)
        _plot_heads(axes, shares, label, colour, line, markersize=size, linewidth=width)
    axes.axhline(1, color=GREY, linewidth=0.8, linestyle='--')
    axes.set_ylabel('entropy / log(number of keys)')
    figure.suptitle(
        'Entropy of the attention weights; 1: all keys have the same weight', fontsize=11
    )
    _label_layers(axes, [_short(layer.name) for layer in layers])
    _legend(axes, loc='center left', bbox_to_anchor=(1, 0.5))
    return figure


def draw_query_entropy(
    names: Sequence[str], shares: Sequence[dict[str, NDArray[Any]]], chosen: int, head: int | None
) -> Figure:
    """Draw the entropy of one query's weights in each layer, next to that of softmax: bars for the mean of the heads.

    Args:
        names: of the layers.
        shares: entropy of each head as a share of log M, [H] for 'both' and 'softmax', for each
            layer.
        chosen: index of the layer that is emphasised.
        head: of this layer, whose dot is emphasised; None for none.
    """
    figure = Figure(figsize=(8.1, 2.9), dpi=110, layout='constrained')
    axes = figure.subplots()
    for offset, kind in ((-0.2, 'both'), (0.2, 'softmax')):
        label, colour, _ = ENTROPY_STYLES[kind]
        for index, share in enumerate(shares):
            heads, position = share[kind], index + offset
            opacity = 1.0 if index == chosen else 0.4
            axes.bar(
                position,
                heads.mean(),
                width=0.38,
                color=colour,
                alpha=opacity,
                label=label if index == chosen else '',
            )
            axes.scatter(
                [position] * len(heads), heads, s=12, color='black', alpha=0.5, linewidths=0
            )
            if index == chosen and head is not None:
                axes.scatter(
                    position, heads[head], s=60, facecolor='white', edgecolor='black', zorder=3
                )
    axes.axhline(1, color=GREY, linewidth=0.8, linestyle='--')
    axes.set_ylabel('entropy / log(number of keys)', fontsize=9)
    _label_layers(axes, [_short(name) for name in names])
    axes.get_xticklabels()[chosen].set_fontweight('bold')
    figure.legend(fontsize=9, frameon=False, loc='outside upper center', ncols=2)
    return figure


def draw_parameters(layers: Sequence[LayerAnalysis]) -> Figure:
    """Draw the distribution over heads and channels of each learned parameter."""
    names = [name for name in PARAMETER_TITLES if any(name in layer.parameters for layer in layers)]
    figure, panels = _figure(layers, panels=len(names))
    for name, axes in zip(names, panels, strict=True):
        values = [layer.parameters.get(name, np.empty(0)).ravel() for layer in layers]
        axes.boxplot(
            values,
            positions=range(len(layers)),
            widths=0.6,
            whis=(5, 95),
            showfliers=False,
            patch_artist=True,
            boxprops={'facecolor': '#cfe3f2', 'edgecolor': BLUE},
            medianprops={'color': ORANGE, 'linewidth': 2},
            whiskerprops={'color': BLUE},
            capprops={'color': BLUE},
        )
        axes.set_title(PARAMETER_TITLES[name], fontsize=11)
        axes.set_ylabel('median, quartiles, 5 to 95 %', fontsize=9)
        axes.ticklabel_format(axis='y', useOffset=False)
        _label_layers(axes, [_short(layer.name) for layer in layers])
    return figure


def draw_gates(layers: Sequence[LayerAnalysis]) -> Figure:
    """Draw means and correlations of the gate's two halves, and both halves on their principal components."""
    rows = -(-len(layers) // PCA_COLUMNS)
    figure = Figure(
        figsize=(max(9.0, 0.42 * len(layers) + 3), 3.6 + 2.3 * rows), dpi=110, layout='constrained'
    )
    upper, lower = figure.subfigures(2, 1, height_ratios=[3.6, 2.3 * rows])
    means, correlations = upper.subplots(1, 2)
    for stream, (label, colour, marker) in enumerate(STREAM_STYLES):
        _plot_heads(
            means, [layer.gate.mean[stream] for layer in layers], label, colour, f'-{marker}'
        )
    for name, label, colour, marker in (
        ('correlation', 'of paired channels', GREEN, '^'),
        ('token_correlation', "of the tokens' means", PINK, 'v'),
    ):
        values = [getattr(layer.gate, name) for layer in layers]
        _plot_heads(correlations, values, label, colour, f'-{marker}')
    means.set_title('Mean of the gate', fontsize=11)
    correlations.set_title('Correlation of the two halves', fontsize=11)
    correlations.set_ylim(-1.05, 1.05)
    for axes in (means, correlations):
        axes.axhline(0, color=GREY, linewidth=0.8, linestyle='--')
        _legend(axes)
        _label_layers(axes, [_short(layer.name) for layer in layers])
    _draw_components(lower, layers, rows)
    return figure


def _draw_components(figure: Any, layers: Sequence[LayerAnalysis], rows: int) -> None:
    """Draw a panel per layer with the tokens' gates, same-signed and opposite-signed, on two principal components."""
    figure.suptitle(
        'Gates of tokens on the first (across) and second (up) principal component of both halves,\n'
        'and the share of the variance that these have',
        fontsize=11,
    )
    panels = figure.subplots(rows, PCA_COLUMNS, squeeze=False).ravel()
    for axes, layer in zip(panels, layers, strict=False):
        for points, (label, colour, marker) in zip(
            layer.gate.components, STREAM_STYLES, strict=True
        ):
            axes.scatter(
                *points.T, s=5, color=colour, marker=marker, alpha=0.35, linewidths=0, label=label
            )
        axes.set_title(f'{_short(layer.name)}: {layer.gate.explained.sum():.0%}', fontsize=9)
        axes.set(xticks=[], yticks=[])
    for axes in panels[len(layers) :]:
        axes.axis('off')
    entries = panels[0].get_legend_handles_labels()
    legend = figure.legend(
        *entries, fontsize=9, frameon=False, loc='outside lower center', ncols=2, markerscale=3
    )
    for handle in legend.legend_handles:
        handle.set_alpha(1)


def draw_rank(layers: Sequence[LayerAnalysis]) -> Figure:
    """Draw the effective rank of the token mixing, as a share of its rows, without and with the convolution."""
    figure, (axes,) = _figure(layers, panels=1)
    series = (
        ('attention and convolution', GREEN, '^', [layer.rank.mixing_rows for layer in layers]),
        ('attention', BLUE, 'o', [layer.rank.attention_rows for layer in layers]),
    )
    for label, colour, marker, ranks in series:
        shares = [
            np.full(1, np.nan) if rank is None else rank.ravel() / layer.rank.rows
            for layer, rank in zip(layers, ranks, strict=True)
        ]
        _plot_heads(axes, shares, label, colour, f'-{marker}')
    axes.set_ylim(0, 1.05)
    axes.set_ylabel('effective rank / rows')
    figure.suptitle('Effective rank of the token mixing', fontsize=11)
    notes = [f'{layer.rank.rows} of {layer.grid[0] * layer.grid[1]} rows' for layer in layers]
    _label_layers(
        axes, [f'{_short(layer.name)}\n{note}' for layer, note in zip(layers, notes, strict=True)]
    )
    _legend(axes, 'single heads, each stream')
    return figure


def _figure(layers: Sequence[LayerAnalysis], panels: int) -> tuple[Figure, list[Axes]]:
    """Make a figure with panels side by side, whose width grows with the number of layers."""
    width = max(5.2 if panels > 1 else 7.6, 0.42 * len(layers) + 1.5)
    figure = Figure(figsize=(width * panels, 4.2), dpi=110, layout='constrained')
    return figure, list(np.atleast_1d(figure.subplots(1, panels)))


def _plot_heads(
    axes: Axes, values: Sequence[NDArray[Any]], label: str, colour: str, line: str, **style: Any
) -> None:
    """Draw a line through the mean of each layer's heads, of those that are numbers, and a dot for each head."""
    means = [np.nanmean(heads) if np.isfinite(heads).any() else np.nan for heads in values]
    axes.plot(means, line, color=colour, label=label, **{'linewidth': 1.6, **style})
    for position, heads in enumerate(values):
        axes.scatter(
            [position] * len(heads), heads, s=12, color=colour, alpha=0.4, linewidths=0, zorder=1
        )


def _legend(axes: Axes, dots: str = 'single heads', **place: Any) -> None:
    """Add a legend with an entry for what `_plot_heads` drew; `place` are arguments of `Axes.legend`."""
    axes.plot([], [], '.', color=GREY, alpha=0.6, label=dots)
    axes.legend(fontsize=9, frameon=False, **place)


def _label_layers(axes: Axes, names: Sequence[str]) -> None:
    """Write the names of layers below the axes."""
    axes.set_xticks(range(len(names)), names, rotation=35, ha='right', fontsize=9)
    axes.set_xlim(-0.6, len(names) - 0.4)
    axes.grid(axis='y', alpha=0.3)
    axes.spines[['top', 'right']].set_visible(False)


def _short(name: str) -> str:
    """Return a layer's name without the part that all have in common."""
    return name.removesuffix('.attn').replace('.blocks.', '.')
