"""Draw the figures of an image: charts of all layers, and maps of the weights of chosen queries."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from textwrap import fill
from typing import Any, Literal

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize, PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, ScalarFormatter
from numpy.typing import NDArray
from PIL import Image

from mmpola.files import write_figure
from mmpola.papers.analysis.attention_weights import MAP_KINDS
from mmpola.papers.analysis.layer_analysis import LayerAnalysis
from mmpola.papers.analysis.scene import Point, Scene
from mmpola.papers.analysis.statistics import STREAMS, Array

FORMATS = ('png', 'pdf')
"""Every figure is written in both: one to look at, one for a paper."""

BLUE = '#0072b2'
ORANGE = '#d55e00'
GREEN = '#009e73'
PINK = '#cc79a7'
GREY = '#666666'
LIGHT_BLUE = '#56b4e9'
BLACK = '#000000'

WEIGHT_STYLES: dict[str, tuple[str, str, str]] = {
    'linear': ('linear, elu + 1', GREEN, '-^'),
    'relu': ('linear, ReLU only', PINK, '-v'),
    'focused': ('linear, FLatten', BLACK, '-P'),
    'both': ('polarity-aware, both streams', BLUE, '-o'),
    'same': ('same-signed stream', LIGHT_BLUE, '--'),
    'opposite': ('opposite-signed stream', LIGHT_BLUE, ':'),
    'softmax': ('softmax', ORANGE, '-s'),
}
"""Label, colour and format of the line of each kind of weights."""

PARAMETER_TITLES = {
    'exponent': 'Exponents',
    'scale': 'Scales',
    'same': 'Temperatures, same-signed',
    'opposite': 'Temperatures, opposite-signed',
}
"""Titles of the parameters of PolaFormer's and PolaFormer++'s feature maps."""

STREAM_STYLES = (('same-signed', BLUE, 'o'), ('opposite-signed', ORANGE, 's'))
"""Label, colour and marker of each stream."""

LAYER_COLUMNS = 4
"""Most panels side by side in a chart that has one for each layer."""

SORTED_RANKS = 200
"""Most keys of a row of sorted weights that are drawn, evenly spaced on a logarithmic axis."""

SMALLEST_SORTED = 1e-3
"""Lower end of the chart of sorted weights, as a multiple of the uniform weight."""

KIND_TITLES = {
    'same': 'same-signed',
    'opposite': 'opposite-signed',
    'both': 'both',
    'linear': 'elu + 1 of the same q, k',
    'focused': 'FLatten of the same q, k',
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


def save_figure(figure: Figure, folder: Path, name: str) -> None:
    """Write a figure in all `FORMATS`; texts of a PDF stay texts."""
    folder.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context({'pdf.fonttype': 42}):
        for suffix in FORMATS:
            write_figure(folder / f'{name}.{suffix}', figure, dpi=200)


def draw_parameters(layers: Sequence[LayerAnalysis]) -> Figure:
    """Draw the learned parameters of the feature maps: exponents and scales, or temperatures."""
    names = list(dict.fromkeys(name for layer in layers for name in layer.parameters))
    figure, panels = _figure(layers, len(names))
    for axes, name in zip(panels, names, strict=True):
        values = []
        for layer in layers:
            values.append(layer.parameters.get(name, np.full(1, np.nan)).ravel())
        _plot_values(axes, values, 'mean', BLUE, '-o')
        axes.set_title(PARAMETER_TITLES[name], fontsize=11)
        _label_layers(axes, layers)
    _legend(panels[-1], 'single channels', loc='center left', bbox_to_anchor=(1, 0.5))
    return figure


def draw_entropy(layers: Sequence[LayerAnalysis]) -> Figure:
    """Draw the entropy of each kind of weights as a share of log M.

    Lines are the mean of the heads, dots single heads.
    """
    figure, (axes,) = _figure(layers)
    for kind, (label, colour, line) in WEIGHT_STYLES.items():
        shares = [layer.entropy[kind] / layer.largest_entropy for layer in layers]
        if kind == 'linear':
            style = {'markersize': 10.0, 'linewidth': 4.0}  # shows behind softmax, often the same
        else:
            style = {'markersize': 6.0, 'linewidth': 1.6}
        _plot_values(axes, shares, label, colour, line, **style)
    axes.axhline(1, color=GREY, linewidth=0.8, linestyle='--')
    axes.set_ylabel('entropy / log(number of keys)')
    figure.suptitle(
        'Entropy of the attention weights; 1: all keys have the same weight', fontsize=11
    )
    _label_layers(axes, layers)
    _legend(axes, loc='center left', bbox_to_anchor=(1, 0.5))
    return figure


def draw_gates(layers: Sequence[LayerAnalysis]) -> Figure:
    """Draw means and correlations of the gate's halves, and both on their principal components."""
    columns = min(len(layers), LAYER_COLUMNS)
    rows = math.ceil(len(layers) / columns)
    upper_height = 3.6
    lower_height = 2.3 * rows
    width = max(9.0, 0.42 * len(layers) + 3)
    height = upper_height + lower_height
    figure = Figure(figsize=(width, height), dpi=110, layout='constrained')
    upper, lower = figure.subfigures(2, 1, height_ratios=[upper_height, lower_height])
    means, correlations = upper.subplots(1, 2)
    for stream, (label, colour, marker) in enumerate(STREAM_STYLES):
        values = [layer.gate.mean[stream] for layer in layers]
        _plot_values(means, values, label, colour, f'-{marker}')
    paired = [layer.gate.correlation for layer in layers]
    _plot_values(correlations, paired, 'of paired channels', GREEN, '-^')
    of_tokens = [layer.gate.token_correlation for layer in layers]
    _plot_values(correlations, of_tokens, "of the tokens' means", PINK, '-v')
    means.set_title('Mean of the gate', fontsize=11)
    correlations.set_title('Correlation of the two halves', fontsize=11)
    correlations.set_ylim(-1.05, 1.05)
    for axes in (means, correlations):
        axes.axhline(0, color=GREY, linewidth=0.8, linestyle='--')
        _legend(axes)
        _label_layers(axes, layers)
    _draw_components(lower, layers, rows, columns)
    return figure


def _draw_components(figure: Any, layers: Sequence[LayerAnalysis], rows: int, columns: int) -> None:
    """Draw the tokens' gates on two principal components, in a panel per layer."""
    figure.suptitle(
        'Gates of tokens on the first (across) and second (up) principal component of both halves,'
        '\nand the share of the variance that these have',
        fontsize=11,
    )
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes in panels[len(layers) :]:
        axes.axis('off')
    for axes, layer in zip(panels, layers, strict=False):
        for stream, (label, colour, marker) in enumerate(STREAM_STYLES):
            x, y = layer.gate.components[stream].T
            axes.scatter(
                x, y, s=5, color=colour, marker=marker, alpha=0.35, linewidths=0, label=label
            )
        axes.set_title(f'{_layer_title(layer.name)}: {layer.gate.explained.sum():.0%}', fontsize=9)
        axes.set(xticks=[], yticks=[])
    handles, labels = panels[0].get_legend_handles_labels()
    legend = figure.legend(
        handles,
        labels,
        fontsize=9,
        frameon=False,
        loc='outside lower center',
        ncols=2,
        markerscale=3,
    )
    for handle in legend.legend_handles:
        handle.set_alpha(1)


def draw_rank(layers: Sequence[LayerAnalysis]) -> Figure:
    """Draw the effective rank of each kind of weights, and of the layer's with the convolution."""
    figure, (axes,) = _figure(layers)
    mixing = []
    streams = []
    notes = []
    for layer in layers:
        rank = layer.rank
        if rank.mixing is None:
            mixing.append(np.full(1, np.nan))
        else:
            mixing.append(rank.mixing.ravel())
        streams.append(np.concatenate([rank.attention[kind] for kind in STREAMS]))
        notes.append(f'\n{rank.rows} of {math.prod(layer.grid)} rows')
    _plot_values(axes, mixing, 'polarity-aware, and convolution', GREY, '-D')
    for kind in ('softmax', 'relu', 'focused', 'linear'):
        label, colour, line = WEIGHT_STYLES[kind]
        values = [layer.rank.attention[kind] for layer in layers]
        _plot_values(axes, values, label, colour, line)
    _plot_values(axes, streams, 'polarity-aware, each stream', BLUE, '-o')
    axes.set_yscale('log', base=2)
    axes.yaxis.set_major_formatter(ScalarFormatter())
    axes.set_ylim(bottom=0.9)
    axes.set_ylabel('effective rank')
    figure.suptitle('Effective rank of the token mixing', fontsize=11)
    _label_layers(axes, layers, notes)
    _legend(axes, loc='center left', bbox_to_anchor=(1, 0.5))
    return figure


def _figure(layers: Sequence[LayerAnalysis], panels: int = 1) -> tuple[Figure, list[Axes]]:
    """Make a figure with panels side by side, whose widths grow with the number of layers."""
    width = max(4.5 if panels > 1 else 7.6, 0.42 * len(layers) + 1.5)
    figure = Figure(figsize=(width * panels, 4.2), dpi=110, layout='constrained')
    return figure, list(figure.subplots(1, panels, squeeze=False)[0])


def _plot_values(
    axes: Axes, values: Sequence[NDArray[Any]], label: str, colour: str, line: str, **style: Any
) -> None:
    """Draw a dot for each value of each layer, and a line through the means; NaN is left out."""
    means = []
    for position, of_layer in enumerate(values):
        numbers = of_layer[np.isfinite(of_layer)]
        means.append(numbers.mean() if len(numbers) else np.nan)
        positions = [position] * len(of_layer)
        axes.scatter(positions, of_layer, s=12, color=colour, alpha=0.4, linewidths=0, zorder=1)
    axes.plot(means, line, color=colour, label=label, **{'linewidth': 1.6, **style})


def _legend(axes: Axes, dots: str = 'single heads', **place: Any) -> None:
    """Add a legend, with an entry for the dots; `place` are arguments of `Axes.legend`."""
    axes.plot([], [], '.', color=GREY, alpha=0.6, label=dots)
    axes.legend(fontsize=9, frameon=False, **place)


def _label_layers(
    axes: Axes, layers: Sequence[LayerAnalysis], notes: Sequence[str] | None = None
) -> None:
    """Write the names of layers below the axes, each with its note."""
    names = []
    for number, layer in enumerate(layers):
        names.append(_layer_title(layer.name) + (notes[number] if notes else ''))
    axes.set_xticks(range(len(names)), names, rotation=35, ha='right', fontsize=9)
    axes.set_xlim(-0.6, len(names) - 0.4)
    axes.grid(axis='y', alpha=0.3)
    axes.spines[['top', 'right']].set_visible(False)


def _layer_title(name: str) -> str:
    """Return a layer's name without the part that all have in common."""
    return name.removesuffix('.attn').replace('.blocks.', '.')


CHARTS: dict[str, Callable[[Sequence[LayerAnalysis]], Figure]] = {
    'entropy': draw_entropy,
    'gates': draw_gates,
    'parameters': draw_parameters,
    'rank': draw_rank,
}
"""Charts of all layers of an image that need no chosen query, by the names of their files."""


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


def draw_sorted(layers: Sequence[LayerAnalysis]) -> Figure:
    """Draw the weights of a query from the largest to the smallest (PolaFormer, figure 5).

    A line is the mean over the chosen queries and the heads. Weights of 0 or less, which rotary
    positions make, are left out.

    Args:
        layers: each with at least one chosen query.
    """
    columns = min(len(layers), LAYER_COLUMNS)
    rows = math.ceil(len(layers) / columns)
    size = (2.3 * columns + 2.9, max(3.0, 2.2 * rows + 0.8))
    figure = Figure(figsize=size, dpi=110, layout='constrained')
    figure.suptitle('Weights of the chosen queries, sorted', fontsize=11)
    figure.supxlabel('keys, from the one with the largest weight', fontsize=9)
    figure.supylabel('weight (1: uniform)', fontsize=9)
    panels = figure.subplots(rows, columns, squeeze=False, sharey=True).ravel()
    for axes in panels[len(layers) :]:
        axes.axis('off')
    for axes, layer in zip(panels, layers, strict=False):
        keys = math.prod(layer.key_grid)
        ranks = np.unique(np.geomspace(1, keys, SORTED_RANKS).round().astype(int))
        for kind in MAP_KINDS:
            label, colour, line = WEIGHT_STYLES[kind]
            weights = layer.maps[kind].reshape(-1, keys)
            descending = -np.sort(-weights, axis=1)
            means = descending.mean(axis=0) * keys
            dashes = line.rstrip('^oPs')  # a marker at each key would hide the line
            width = 4.0 if kind == 'linear' else 1.6  # shows behind softmax, often the same
            axes.plot(ranks, means[ranks - 1], dashes, color=colour, label=label, linewidth=width)
        axes.axhline(1, color=GREY, linewidth=0.8, linestyle='--')
        axes.set(xscale='log', yscale='log')
        axes.set_title(_layer_title(layer.name), fontsize=9)
        axes.tick_params(labelsize=8)
        axes.spines[['top', 'right']].set_visible(False)
    panels[0].set_ylim(bottom=max(panels[0].get_ylim()[0], SMALLEST_SORTED))
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, fontsize=9, frameon=False, loc='outside right center')
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
