"""Charts of all analysed layers: entropy, learned parameters, gates and effective rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from mmpola.analysis.layer import LayerAnalysis

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

NAMES = {
    'exponent': 'exponent p',
    'scale': 'scale s',
    'same': 'temperature, same-signed',
    'opposite': 'temperature, opposite-signed',
}
"""Labels of the parameters of both feature maps."""

PCA_COLUMNS = 4


def draw_entropy(layers: Sequence[LayerAnalysis]) -> Figure:
    """Draw the entropy of each kind of weights as a share of log M: lines for the mean of the heads, dots for each."""
    figure, (axes,) = _figure(layers, panels=1)
    for kind, (label, colour, line) in ENTROPY_STYLES.items():
        shares = [layer.entropy[kind] / layer.largest_entropy for layer in layers]
        # Softmax often coincides with elu + 1, whose wide line then shows behind it.
        size, width = (10, 4) if kind == 'linear' else (6, 1.6)
        axes.plot([x.mean() for x in shares], line, color=colour, markersize=size, linewidth=width, label=label)
        _dots(axes, shares, colour)
    axes.axhline(1, color=GREY, linewidth=0.8, linestyle='--')
    axes.set_ylabel('entropy / log(number of keys)')
    axes.set_title('Entropy of the attention weights; 1: all keys have the same weight', fontsize=11)
    _label_layers(axes, layers)
    _legend(axes, loc='center left', bbox_to_anchor=(1, 0.5))
    return figure


def draw_query_entropy(
    names: Sequence[str], shares: Sequence[dict[str, NDArray[Any]]], chosen: int, head: int | None
) -> Figure:
    """Draw the entropy of one query's weights in each layer, next to that of softmax: bars for the mean of the heads.

    Args:
        names: of the layers.
        shares: entropy of each head as a share of log M, [H] for 'both' and 'softmax', for each layer.
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
                position, heads.mean(), width=0.38, color=colour, alpha=opacity, label=label if index == chosen else ''
            )
            axes.scatter([position] * len(heads), heads, s=12, color='black', alpha=0.5, linewidths=0)
            if index == chosen and head is not None:
                axes.scatter(position, heads[head], s=60, facecolor='white', edgecolor='black', zorder=3)
    axes.axhline(1, color=GREY, linewidth=0.8, linestyle='--')
    axes.set_ylabel('entropy / log(number of keys)', fontsize=9)
    _label_positions(axes, [_short(name) for name in names])
    axes.get_xticklabels()[chosen].set_fontweight('bold')
    figure.legend(fontsize=9, frameon=False, loc='outside upper center', ncols=2)
    return figure


def draw_parameters(layers: Sequence[LayerAnalysis]) -> Figure:
    """Draw the distribution over heads and channels of each learned parameter."""
    names = [name for name in NAMES if any(name in layer.parameters for layer in layers)]
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
        axes.set_title(NAMES[name], fontsize=11)
        axes.set_ylabel('median, quartiles, 5 to 95 %', fontsize=9)
        axes.ticklabel_format(axis='y', useOffset=False)
        _label_layers(axes, layers)
    return figure


def draw_gates(layers: Sequence[LayerAnalysis]) -> Figure:
    """Draw means and correlations of the gate's two halves, and both halves on their principal components."""
    rows = -(-len(layers) // PCA_COLUMNS)
    figure = Figure(figsize=(max(9.0, 0.42 * len(layers) + 3), 3.6 + 2.3 * rows), dpi=110, layout='constrained')
    upper, lower = figure.subfigures(2, 1, height_ratios=[3.6, 2.3 * rows])
    means, correlations = upper.subplots(1, 2)
    for stream, (label, colour, marker) in enumerate(STREAM_STYLES):
        values = [layer.gate.mean[stream] for layer in layers]
        means.plot([x.mean() for x in values], color=colour, marker=marker, linewidth=1.6, label=label)
        _dots(means, values, colour)
    for name, label, colour, marker in (
        ('correlation', 'of paired channels', GREEN, '^'),
        ('token_correlation', "of the tokens' means", PINK, 'v'),
    ):
        values = [getattr(layer.gate, name) for layer in layers]
        correlations.plot([np.nanmean(x) for x in values], color=colour, marker=marker, linewidth=1.6, label=label)
        _dots(correlations, values, colour)
    means.set_title('Mean of the gate', fontsize=11)
    correlations.set_title('Correlation of the two halves', fontsize=11)
    correlations.set_ylim(-1.05, 1.05)
    for axes in (means, correlations):
        axes.axhline(0, color=GREY, linewidth=0.8, linestyle='--')
        _legend(axes)
        _label_layers(axes, layers)
    _draw_components(lower, layers, rows)
    return figure


def _draw_components(figure: Any, layers: Sequence[LayerAnalysis], rows: int) -> None:
    """Draw a panel per layer with the tokens' gates, same-signed and opposite-signed, on two principal components."""
    figure.suptitle(
        'Gates of tokens on the first (across) and second (up) principal component of both halves', fontsize=11
    )
    panels = figure.subplots(rows, PCA_COLUMNS, squeeze=False).ravel()
    for axes, layer in zip(panels, layers, strict=False):
        for points, (label, colour, marker) in zip(layer.gate.components, STREAM_STYLES, strict=True):
            axes.scatter(*points.T, s=5, color=colour, marker=marker, alpha=0.35, linewidths=0, label=label)
        axes.set_title(f'{_short(layer.name)}: {layer.gate.explained.sum():.0%} of the variance', fontsize=9)
        axes.set(xticks=[], yticks=[])
    for axes in panels[len(layers) :]:
        axes.axis('off')
    entries = panels[0].get_legend_handles_labels()
    legend = figure.legend(*entries, fontsize=9, frameon=False, loc='outside lower center', ncols=2, markerscale=3)
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
        axes.plot([x.mean() for x in shares], color=colour, marker=marker, linewidth=1.6, label=label)
        _dots(axes, shares, colour)
    axes.set_ylim(0, 1.05)
    axes.set_ylabel('effective rank / rows')
    axes.set_title('Effective rank of the token mixing', fontsize=11)
    _label_layers(axes, layers, [f'{layer.rank.rows} of {layer.grid[0] * layer.grid[1]} rows' for layer in layers])
    _legend(axes, 'single heads, each stream')
    return figure


def _figure(layers: Sequence[LayerAnalysis], panels: int) -> tuple[Figure, list[Axes]]:
    """Make a figure with panels side by side, whose width grows with the number of layers."""
    width = max(5.2 if panels > 1 else 7.6, 0.42 * len(layers) + 1.5)
    figure = Figure(figsize=(width * panels, 4.2), dpi=110, layout='constrained')
    return figure, list(np.atleast_1d(figure.subplots(1, panels)))


def _dots(axes: Axes, values: Sequence[NDArray[Any]], colour: str) -> None:
    """Draw a dot for each head of each layer."""
    for position, heads in enumerate(values):
        axes.scatter([position] * len(heads), heads, s=12, color=colour, alpha=0.4, linewidths=0, zorder=1)


def _legend(axes: Axes, dots: str = 'single heads', **place: Any) -> None:
    """Add a legend with an entry for what `_dots` drew; `place` are arguments of `Axes.legend`."""
    axes.plot([], [], '.', color=GREY, alpha=0.6, label=dots)
    axes.legend(fontsize=9, frameon=False, **place)


def _label_layers(axes: Axes, layers: Sequence[LayerAnalysis], notes: Sequence[str] | None = None) -> None:
    names = [_short(layer.name) for layer in layers]
    if notes is not None:
        names = [f'{name}\n{note}' for name, note in zip(names, notes, strict=True)]
    _label_positions(axes, names)


def _label_positions(axes: Axes, names: Sequence[str]) -> None:
    axes.set_xticks(range(len(names)), names, rotation=35, ha='right', fontsize=9)
    axes.set_xlim(-0.6, len(names) - 0.4)
    axes.grid(axis='y', alpha=0.3)
    axes.spines[['top', 'right']].set_visible(False)


def _short(name: str) -> str:
    """Return a layer's name without the part that all have in common."""
    return name.removesuffix('.attn').replace('.blocks.', '.')
