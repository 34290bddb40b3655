"""Draw charts of all layers of an image: entropy, gates, rank."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from mmpola.apps.analysis.layer_analysis import LayerAnalysis

BLUE = '#0072b2'
ORANGE = '#d55e00'
GREEN = '#009e73'
PINK = '#cc79a7'
GREY = '#666666'
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
"""Label, colour and marker of each stream."""

COMPONENT_COLUMNS = 4
"""Most panels side by side in the chart of the gates' principal components."""


def draw_entropy(layers: Sequence[LayerAnalysis]) -> Figure:
    """Draw the entropy of each kind of weights as a share of log M.

    Lines are the mean of the heads, dots single heads.
    """
    figure, axes = _figure(layers)
    for kind, (label, colour, line) in ENTROPY_STYLES.items():
        shares = [layer.entropy[kind] / layer.largest_entropy for layer in layers]
        if kind == 'linear':
            style = {'markersize': 10.0, 'linewidth': 4.0}  # shows behind softmax, often the same
        else:
            style = {'markersize': 6.0, 'linewidth': 1.6}
        _plot_heads(axes, shares, label, colour, line, **style)
    axes.axhline(1, color=GREY, linewidth=0.8, linestyle='--')
    axes.set_ylabel('entropy / log(number of keys)')
    figure.suptitle(
        'Entropy of the attention weights; 1: all keys have the same weight', fontsize=11
    )
    _label_layers(axes, [_layer_title(layer.name) for layer in layers])
    _legend(axes, loc='center left', bbox_to_anchor=(1, 0.5))
    return figure


def draw_gates(layers: Sequence[LayerAnalysis]) -> Figure:
    """Draw means and correlations of the gate's halves, and both on their principal components."""
    columns = min(len(layers), COMPONENT_COLUMNS)
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
        _plot_heads(means, values, label, colour, f'-{marker}')
    paired = [layer.gate.correlation for layer in layers]
    _plot_heads(correlations, paired, 'of paired channels', GREEN, '-^')
    of_tokens = [layer.gate.token_correlation for layer in layers]
    _plot_heads(correlations, of_tokens, "of the tokens' means", PINK, '-v')
    means.set_title('Mean of the gate', fontsize=11)
    correlations.set_title('Correlation of the two halves', fontsize=11)
    correlations.set_ylim(-1.05, 1.05)
    for axes in (means, correlations):
        axes.axhline(0, color=GREY, linewidth=0.8, linestyle='--')
        _legend(axes)
        _label_layers(axes, [_layer_title(layer.name) for layer in layers])
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
    """Draw the effective rank of the token mixing, without and with the convolution.

    It is drawn as a share of the rows.
    """
    figure, axes = _figure(layers)
    with_convolution = []
    without = []
    labels = []
    for layer in layers:
        rank = layer.rank
        if rank.mixing_rows is None:
            with_convolution.append(np.full(1, np.nan))
        else:
            with_convolution.append(rank.mixing_rows.ravel() / rank.rows)
        without.append(rank.attention_rows.ravel() / rank.rows)
        rows, columns = layer.grid
        labels.append(f'{_layer_title(layer.name)}\n{rank.rows} of {rows * columns} rows')
    _plot_heads(axes, with_convolution, 'attention and convolution', GREEN, '-^')
    _plot_heads(axes, without, 'attention', BLUE, '-o')
    axes.set_ylim(0, 1.05)
    axes.set_ylabel('effective rank / rows')
    figure.suptitle('Effective rank of the token mixing', fontsize=11)
    _label_layers(axes, labels)
    _legend(axes, 'single heads, each stream')
    return figure


def _figure(layers: Sequence[LayerAnalysis]) -> tuple[Figure, Axes]:
    """Make a figure with one panel, whose width grows with the number of layers."""
    width = max(7.6, 0.42 * len(layers) + 1.5)
    figure = Figure(figsize=(width, 4.2), dpi=110, layout='constrained')
    return figure, figure.subplots()


def _plot_heads(
    axes: Axes, values: Sequence[NDArray[Any]], label: str, colour: str, line: str, **style: Any
) -> None:
    """Draw a dot for each head of each layer, and a line through the means; NaN is left out."""
    means = []
    for position, heads in enumerate(values):
        numbers = heads[np.isfinite(heads)]
        means.append(numbers.mean() if len(numbers) else np.nan)
        positions = [position] * len(heads)
        axes.scatter(positions, heads, s=12, color=colour, alpha=0.4, linewidths=0, zorder=1)
    axes.plot(means, line, color=colour, label=label, **{'linewidth': 1.6, **style})


def _legend(axes: Axes, dots: str = 'single heads', **place: Any) -> None:
    """Add a legend, with an entry for the dots; `place` are arguments of `Axes.legend`."""
    axes.plot([], [], '.', color=GREY, alpha=0.6, label=dots)
    axes.legend(fontsize=9, frameon=False, **place)


def _label_layers(axes: Axes, names: Sequence[str]) -> None:
    """Write the names of layers below the axes."""
    axes.set_xticks(range(len(names)), names, rotation=35, ha='right', fontsize=9)
    axes.set_xlim(-0.6, len(names) - 0.4)
    axes.grid(axis='y', alpha=0.3)
    axes.spines[['top', 'right']].set_visible(False)


def _layer_title(name: str) -> str:
    """Return a layer's name without the part that all have in common."""
    return name.removesuffix('.attn').replace('.blocks.', '.')
