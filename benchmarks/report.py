"""Write the tables of all results into benchmarks/README.md, and draw the figures of the docs.

    python -m benchmarks.report [--check]

With --check, nothing is written; the exit status is 1 unless the page is up to date.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from benchmarks.records import ROOT, replace_block, table
from mmpola.files import write_atomically, write_figure

FOLDER = Path(__file__).resolve().parent

ON_OTHER_PAGES = ('zoo', 'layer')
"""Suites whose results docs/choose.md and docs/in_your_own_network.md show."""

RESULTS_OF_FIGURES = FOLDER / 'results' / 'cpu-2-threads'
"""The results that the docs show."""

BLUE = '#0072b2'
VERMILION = '#d55e00'
GREEN = '#009e73'
"""Colours of Okabe and Ito's palette, for colour-blind readers."""

FIGURE_DPI = 200
"""Twice a page's resolution, for high-density screens."""

Style = dict[str, Any]
Points = tuple[list[float], list[float]]

SIBLING: Style = {'linestyle': '--', 'markerfacecolor': 'white'}

BACKBONES: dict[str, Style] = {
    'PVT-T': {'label': 'mmdet PVT-T (softmax)', 'color': BLUE, 'marker': 'o', **SIBLING},
    'Pola-PVT-T': {'label': 'Pola-PVT-T', 'color': BLUE, 'marker': 'o', 'linewidth': 2.2},
    'Swin-T': {'label': 'mmdet Swin-T (windows)', 'color': VERMILION, 'marker': 's', **SIBLING},
    'Pola-Swin-T': {'label': 'Pola-Swin-T', 'color': VERMILION, 'marker': 's', 'linewidth': 2.2},
    'PolaFormer++ b1': {
        'label': 'PolaFormer++ b1',
        'color': GREEN,
        'marker': '^',
        'linewidth': 2.2,
    },
}

LAYERS: dict[str, Style] = {
    'softmax': {
        'label': 'nn.MultiheadAttention',
        'color': '#555555',
        'marker': 'o',
        'linewidth': 2.2,
    },
    'PolaMultiheadAttention': {'label': 'PolaMultiheadAttention', 'color': BLUE, 'marker': 'o'},
    'PolaAttention': {'label': 'PolaAttention', 'color': VERMILION, 'marker': 's'},
    'literal': {
        'label': 'PolaAttention, literal equations',
        'color': VERMILION,
        'marker': 's',
        'linestyle': '--',
    },
    'PolaFormerPPAttention': {'label': 'PolaFormerPPAttention', 'color': GREEN, 'marker': '^'},
}

LABELLED_SIZES = {'224x224': '224²', '512x512': '512²', '2048x2048': '2048²', '4096x4096': '4096²'}
"""Image sizes labelled on the axis: others would overlap."""

MEMORY_OF_MACHINE = 24
"""GB; drawn as a line."""

COMPUTED = 'bytes that would be needed'
"""The key of a row for the memory of what was not run."""


def section(path: Path) -> str:
    """Return heading and table of one result file in Markdown.

    Of the operator's many cases, the page shows those of the largest image.
    """
    record = json.loads(path.read_text())
    rows = record['rows']
    if path.stem == 'attention':
        rows = [row for row in rows if '800x1333' in row['case']]
    made = f'torch {record["torch"]}, commit {record["commit"]}, {record["repeats"]} rounds'
    if 'processor' in record:
        made = f'{record["processor"]}, {made}'
    heading = f'## {path.stem}, {record["machine"]}'
    return f'{heading}\n\n{made}.\n\n{table(rows)}'


def draw_image_size(path: Path, png: Path) -> None:
    """Draw seconds and peak memory of inference, and memory of a training step, over the pixels.

    Both axes are logarithmic: what grows in proportion to the pixels is parallel to the grey line.
    Dotted lines lead to memory that was computed, because it did not fit.

    Args:
        path: result file of the suite `image_size`.
        png: written.
    """
    rows = sorted(json.loads(path.read_text())['rows'], key=lambda row: row['pixels'])
    figure, axes = plt.subplots(1, 3, figsize=(10.5, 3.9), layout='constrained')
    panels = [
        ('Inference, seconds', 'seconds', 'inference', 1.0),
        ('Inference, peak memory, GB', 'bytes', 'inference', 1e9),
        ('Training step, peak memory, GB', 'bytes', 'training step', 1e9),
    ]
    for axis, (title, quantity, what, unit) in zip(axes, panels, strict=True):
        for name, style in BACKBONES.items():
            measured = points(rows, quantity, what, name, unit)
            axis.plot(*measured, markersize=4, **style)
            if quantity == 'bytes':
                draw_computed(axis, measured, points(rows, COMPUTED, what, name, unit), style)
        axis.set(xscale='log', yscale='log', xlabel='image size in pixels')
        draw_slope(axis)
        if quantity == 'bytes' and axis.get_ylim()[1] > MEMORY_OF_MACHINE:
            axis.axhline(MEMORY_OF_MACHINE, color='#999999', linewidth=0.8)
            axis.annotate(
                f'{MEMORY_OF_MACHINE} GB',
                (0.02, MEMORY_OF_MACHINE * 1.1),
                xycoords=('axes fraction', 'data'),
                color='#777777',
                fontsize=8,
            )
        ticks = {row['case']: row['pixels'] for row in rows if row['case'] in LABELLED_SIZES}
        axis.set_xticks(list(ticks.values()), [LABELLED_SIZES[case] for case in ticks])
        axis.yaxis.set_major_formatter('{x:g}')
        axis.minorticks_off()
        style_axis(axis, title)
    handles, labels = axes[0].get_legend_handles_labels()
    handles.append(Line2D([], [], color='#555555', marker='x', linestyle=':', linewidth=1))
    labels.append('computed: does not fit')
    figure.legend(handles, labels, loc='outside lower center', ncols=6, frameon=False, fontsize=8)
    _save(figure, png)


def draw_computed(axis: Axes, measured: Points, computed: Points, style: Style) -> None:
    """Draw computed memory as crosses, joined to what was measured, and print the largest."""
    pixels, gigabytes = computed
    if not pixels:
        return
    axis.plot(
        [*measured[0][-1:], *pixels],
        [*measured[1][-1:], *gigabytes],
        color=style['color'],
        linestyle=':',
        linewidth=1,
    )
    axis.plot(pixels, gigabytes, color=style['color'], marker='x', linestyle='')
    if gigabytes[-1] > 2 * MEMORY_OF_MACHINE:
        axis.annotate(f'{gigabytes[-1]:.0f} GB ', (pixels[-1], gigabytes[-1]), ha='right')


def points(rows: list[dict[str, Any]], quantity: str, what: str, name: str, unit: float) -> Points:
    """Return pixels and values of a backbone, where a row has it."""
    pixels = []
    values = []
    for row in rows:
        value = row.get(quantity, {}).get(what, {}).get(name)
        if value is not None:
            pixels.append(row['pixels'])
            values.append(value / unit)
    return pixels, values


def draw_slope(axis: Axes) -> None:
    """Draw a line in proportion to the pixels below all others."""
    left, right = axis.get_xlim()
    bottom, top = axis.get_ylim()
    axis.plot(
        [left, right], [bottom, bottom * right / left], color='#bbbbbb', linewidth=4, zorder=0
    )
    axis.set(xlim=(left, right), ylim=(bottom, top))
    axis.annotate(
        'grey: in proportion to the pixels',
        (0.98, 0.03),
        xycoords='axes fraction',
        ha='right',
        color='#777777',
        fontsize=8,
    )


def draw_layers(path: Path, png: Path) -> None:
    """Draw time and peak memory of a step of each layer over the number of tokens.

    Args:
        path: result file of the suite `layer`.
        png: written.
    """
    row_of_length = {}  # each row of a length has the measurements of all layers
    for row in json.loads(path.read_text())['rows']:
        row_of_length[row['tokens']] = row
    tokens = sorted(row_of_length)
    rows = [row_of_length[length] for length in tokens]

    milliseconds = {}
    megabytes = {}
    for name in LAYERS:
        milliseconds[name] = [1e3 * row['seconds']['step'][name] for row in rows]
        megabytes[name] = [row['bytes'][name] / 1e6 for row in rows]

    figure, (time_axis, memory_axis) = plt.subplots(1, 2, figsize=(8.3, 3.8), layout='constrained')
    _plot(time_axis, 'Milliseconds per step', tokens, milliseconds)
    _plot(memory_axis, 'Peak memory per step, MB', tokens, megabytes)
    for axis in (time_axis, memory_axis):
        axis.set(xscale='log', yscale='log', xlabel='tokens')
        axis.set_xticks(tokens, [f'{length:,}' for length in tokens])
        axis.yaxis.set_major_formatter('{x:,.0f}')
        axis.minorticks_off()
    handles, labels = time_axis.get_legend_handles_labels()
    figure.legend(handles, labels, loc='outside lower center', ncols=2, frameon=False, fontsize=8)
    _save(figure, png)


def _plot(axis: Axes, title: str, x: list[float], lines: dict[str, list[float]]) -> None:
    for name, values in lines.items():
        axis.plot(x, values, markersize=4, **LAYERS[name])
    style_axis(axis, title)


def style_axis(axis: Axes, title: str) -> None:
    axis.set_title(title, loc='left', fontweight='bold', fontsize=10)
    axis.grid(axis='y', color='#e0e0e0', linewidth=0.7)
    axis.spines[['top', 'right']].set_visible(False)


def _save(figure: Figure, png: Path) -> None:
    # Without the version of matplotlib, equal figures are equal files.
    write_figure(png, figure, dpi=FIGURE_DPI, metadata={'Software': None})
    plt.close(figure)


def main() -> int:
    parser = argparse.ArgumentParser(
        description='Write the tables of benchmarks/README.md and the figures of the docs'
    )
    parser.add_argument(
        '--check', action='store_true', help='change nothing; fail if the page is out of date'
    )
    args = parser.parse_args()

    sections = []
    for path in sorted((FOLDER / 'results').glob('*/*.json')):
        # Files without rows are from benchmarks.gpu, which writes its own report.
        if 'rows' in json.loads(path.read_text()) and path.stem not in ON_OTHER_PAGES:
            sections.append(section(path))
    tables = '\n\n'.join(sections)
    page = FOLDER / 'README.md'
    text = page.read_text()
    new_text = replace_block(text, 'results', tables)
    if args.check:
        return int(new_text != text)

    docs = ROOT / 'docs'
    draw_image_size(RESULTS_OF_FIGURES / 'image_size.json', docs / 'image_size.png')
    draw_layers(RESULTS_OF_FIGURES / 'layer.json', docs / 'layer.png')
    write_atomically(page, new_text)
    return 0


if __name__ == '__main__':
    sys.exit(main())
