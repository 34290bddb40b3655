"""The plot of each kind of result: bars of ratios, cost per token, time and memory over the image size."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import matplotlib

matplotlib.use('Agg')
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from benchmarks.records import Row

Record = dict[str, Any]

LINES: dict[str, dict[str, Any]] = {
    'Pola-PVT-T': {'color': '#0072b2', 'marker': 'o', 'linewidth': 2.2},
    'PVT-T': {'color': '#0072b2', 'marker': 'o', 'linestyle': '--', 'markerfacecolor': 'white'},
    'Pola-Swin-T': {'color': '#d55e00', 'marker': 's', 'linewidth': 2.2},
    'Swin-T': {'color': '#d55e00', 'marker': 's', 'linestyle': '--', 'markerfacecolor': 'white'},
}
"""Blue and vermilion of Okabe and Ito's palette, for colour-blind readers; mmdet's lines are dashed."""

TICKS = ('512x512', '800x1344', '1280x1280', '1600x1600')
"""Image sizes labelled on the axis; labels below 512 pixels would overlap."""

LABEL_DISTANCE = 0.07
"""Smallest distance between two labels, as a share of the axis."""

LEGEND_WIDTH = 106
"""Characters of the labels in a row of a legend."""


def plot(name: str, record: Record) -> Figure:
    """Draw the figure of one suite's record. Equal records give equal SVG text."""
    plt.rcParams.update({'svg.hashsalt': 'mmpola', 'svg.fonttype': 'none', 'font.size': 9})
    if name == 'image_size':
        return image_size(record)
    figure = cost_per_token(record['rows']) if name == 'scaling' else ratios(record['rows'])
    figure.axes[0].set_title(f'{name}, {record["machine"]}')
    return figure


def ratios(rows: list[Row]) -> Figure:
    """Draw a bar per ratio, grouped by case; a peer that is absent has no bar."""
    names = [name for name in rows[0] if not name.startswith('copy') and any(_is_ratio(row[name]) for row in rows)]
    figure = bars(rows, names, 'ratio (1: no difference)')
    figure.axes[0].axvline(1, color='black', linewidth=0.8)
    return figure


def bars(rows: list[Row], names: list[str], label: str) -> Figure:
    """Draw a bar for each of the named columns, grouped by case; the axis has a label."""
    height = 0.8 / len(names)
    columns = min(3, LEGEND_WIDTH // max(map(len, names)))
    inches = 1.2 + 0.2 * -(-len(names) // columns) + 0.16 * len(rows) * len(names)
    figure, axes = plt.subplots(figsize=(8, inches), layout='constrained')
    axes.set_prop_cycle(color=[plt.get_cmap('tab10' if len(names) <= 10 else 'tab20')(i) for i in range(len(names))])
    for i, name in enumerate(names):
        places = [j + (i - (len(names) - 1) / 2) * height for j in range(len(rows))]
        axes.barh(places, [row[name] if _is_ratio(row[name]) else 0 for row in rows], height, label=name)
    axes.set(yticks=range(len(rows)), yticklabels=[row['case'] for row in rows], xlabel=label)
    axes.margins(y=0.01)
    axes.invert_yaxis()
    figure.legend(loc='outside lower center', ncols=columns, frameon=False)
    return figure


def cost_per_token(rows: list[Row]) -> Figure:
    """Draw the cost per token over the number of tokens; a flat line means linear cost."""
    figure, axes = plt.subplots(figsize=(6, 3), layout='constrained')
    name = 'cost per token over the shortest'
    axes.plot([row['tokens'] for row in rows], [row[name] for row in rows], marker='o')
    axes.set(xscale='log', ylim=(0, 1.5), xlabel='tokens', ylabel=name)
    axes.axhline(1, color='grey', linewidth=0.8)
    return figure


def image_size(record: Record) -> Figure:
    """Draw seconds and peak memory per image over its number of pixels, a labelled line per model."""
    rows = sorted(record['rows'], key=lambda row: row['pixels'])
    on_gpu = 'cpu' not in record['machine']
    figure, axes = plt.subplots(1, 2, figsize=(8.3, 3.4), layout='constrained')
    _lines(axes[0], rows, 'seconds', 1e3 if on_gpu else 1)
    axes[0].set_title('Milliseconds per image' if on_gpu else 'Seconds per image', loc='left', fontweight='bold')
    _lines(axes[1], rows, 'bytes', 1e-9)
    axes[1].set_title('Peak memory per image, GB', loc='left', fontweight='bold')
    return figure


def _lines(axes: Axes, rows: list[Row], quantity: str, unit: float) -> None:
    pixels = [row['pixels'] / 1e6 for row in rows]
    names = [name for name in LINES if name in rows[0][quantity]]
    ends = []
    for name in names:
        values = [row[quantity][name] * unit for row in rows]
        axes.plot(pixels, values, markersize=4, clip_on=False, **LINES[name])
        ends.append(values[-1])
    top = 1.04 * max(row[quantity][name] * unit for row in rows for name in names)
    axes.set(xlim=(0, pixels[-1]), ylim=(0, top), xlabel='image size in pixels (to scale)')
    ticks = [row for row in rows if row['case'] in TICKS] or rows
    axes.set_xticks([row['pixels'] / 1e6 for row in ticks], [row['case'].replace('x', ' x ') for row in ticks])
    plt.setp(axes.get_xticklabels(), rotation=30, ha='right', rotation_mode='anchor', fontsize=8)
    axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    axes.grid(axis='y', color='#e0e0e0', linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[['top', 'right']].set_visible(False)
    for name, end, height in zip(names, ends, spread(ends, LABEL_DISTANCE * top), strict=True):
        label = name if name.startswith('Pola') else f'mmdet {name}'
        axes.annotate(
            f'{label}  {end:.1f}' if end < 10 else f'{label}  {end:.0f}',
            (pixels[-1], height),
            xytext=(7, 0),
            textcoords='offset points',
            va='center',
            color=LINES[name]['color'],
            fontweight='bold' if name.startswith('Pola') else 'normal',
            annotation_clip=False,
        )


def spread(heights: Sequence[float], distance: float) -> list[float]:
    """Move heights apart as little as needed so that no two are nearer than `distance`; their order is kept."""
    moved = list(heights)
    order = sorted(range(len(moved)), key=moved.__getitem__)
    for _ in range(100):  # every pass halves what is left of an overlap
        for low, high in pairwise(order):
            overlap = distance - (moved[high] - moved[low])
            if overlap > 0:
                moved[low] -= overlap / 2
                moved[high] += overlap / 2
    return moved


def _is_ratio(value: Any) -> bool:
    return isinstance(value, float)  # an absent peer has a word instead
