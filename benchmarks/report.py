"""Writes the tables of benchmarks/results/*/*.json into benchmarks/README.md, and draws the figures
of the docs.

python -m benchmarks.report [--check]      --check: exit status 1 unless the page is up to date
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.records import ROOT, table

FOLDER = Path(__file__).resolve().parent
BEGIN, END = '<!-- results: written by python -m benchmarks.report -->', '<!-- end of results -->'

SHOWN = FOLDER / 'results' / 'cpu-2-threads'
"""The results that the docs show."""

BLUE, VERMILION, GREEN = '#0072b2', '#d55e00', '#009e73'
"""Of Okabe and Ito's palette, for colour-blind readers."""

Style = dict[str, Any]

THEIRS: Style = {'linestyle': '--', 'markerfacecolor': 'white'}

BACKBONES: dict[str, Style] = {
    'Pola-PVT-T': {'label': 'Pola-PVT-T', 'color': BLUE, 'marker': 'o', 'linewidth': 2.2},
    'PVT-T': {'label': 'mmdet PVT-T (softmax)', 'color': BLUE, 'marker': 'o', **THEIRS},
    'Pola-Swin-T': {'label': 'Pola-Swin-T', 'color': VERMILION, 'marker': 's', 'linewidth': 2.2},
    'Swin-T': {'label': 'mmdet Swin-T (softmax)', 'color': VERMILION, 'marker': 's', **THEIRS},
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

TICKS = ('512x512', '800x1344', '1280x1280', '1600x1600')
"""Image sizes labelled on the axis; labels below 512 pixels would overlap."""


def section(path: Path) -> str:
    """Return heading and table of one result file in Markdown."""
    record = json.loads(path.read_text())
    processor = f'{record["processor"]}, ' if 'processor' in record else ''
    made = (
        f'{processor}torch {record["torch"]}, commit {record["commit"]}, {record["repeats"]} rounds'
    )
    return '\n\n'.join([f'## {path.stem}, {record["machine"]}', f'{made}.', table(record['rows'])])


def draw(path: Path, png: Path) -> None:
    """Draw seconds and peak memory per image, of a result file of `image_size`, over the number of
    pixels.
    """
    rows = sorted(json.loads(path.read_text())['rows'], key=lambda row: row['pixels'])
    figure, axes = plt.subplots(1, 2, figsize=(8.3, 3.4), layout='constrained')
    panels = ('seconds', 1, 'Seconds per image'), ('bytes', 1e-9, 'Peak memory per image, GB')
    for axis, (quantity, unit, title) in zip(axes, panels, strict=True):
        lines = {name: [row[quantity][name] * unit for row in rows] for name in BACKBONES}
        _plot(axis, title, [row['pixels'] / 1e6 for row in rows], lines, BACKBONES)
        axis.set(xlim=(0, None), ylim=(0, None), xlabel='image size in pixels (to scale)')
        ticks = [row for row in rows if row['case'] in TICKS]
        axis.set_xticks(
            [row['pixels'] / 1e6 for row in ticks],
            [row['case'].replace('x', ' x ') for row in ticks],
        )
        plt.setp(axis.get_xticklabels(), rotation=30, ha='right', rotation_mode='anchor')
    axes[0].legend(frameon=False)
    _save(figure, png)


def crossing(rows: list[dict[str, Any]], name: str) -> float | None:
    """Return the number of tokens from which on a layer's step is faster than softmax attention's;
    None if it never is.

    Between two measured lengths, logarithms of the times' ratio are interpolated over the logarithm
    of the length.
    """
    ratios = [row['seconds']['step'][name] / row['seconds']['step']['softmax'] for row in rows]
    if ratios[-1] >= 1:
        return None
    last = max(
        (i for i, ratio in enumerate(ratios) if ratio >= 1), default=-1
    )  # the last length at which it is not
    if last < 0:
        return float(rows[0]['tokens'])
    share = math.log(ratios[last]) / math.log(ratios[last] / ratios[last + 1])
    return float(rows[last]['tokens'] * (rows[last + 1]['tokens'] / rows[last]['tokens']) ** share)


def draw_layers(path: Path, png: Path) -> None:
    """Draw time and peak memory of a step of each layer, of a result file of `layer`, over the
    number of tokens.
    """
    by_length = {
        row['tokens']: row for row in json.loads(path.read_text())['rows']
    }  # one of each length has all layers
    tokens, rows = sorted(by_length), [by_length[n] for n in sorted(by_length)]
    styles = {name: dict(style) for name, style in LAYERS.items()}
    for name in ('PolaMultiheadAttention', 'PolaAttention', 'PolaFormerPPAttention'):
        if (start := crossing(rows, name)) is not None:
            styles[name]['label'] += f', faster from {start:,.0f} tokens'
    figure, axes = plt.subplots(1, 2, figsize=(8.3, 3.8), layout='constrained')
    times = {name: [1e3 * row['seconds']['step'][name] for row in rows] for name in LAYERS}
    memory = {name: [row['bytes'][name] / 1e6 for row in rows] for name in LAYERS}
    _plot(axes[0], 'Milliseconds per step', tokens, times, styles)
    _plot(axes[1], 'Peak memory per step, MB', tokens, memory, styles)
    for axis in axes:
        axis.set(xscale='log', yscale='log', xlabel='tokens')
        axis.set_xticks(tokens, [f'{n:,}' for n in tokens])
        axis.yaxis.set_major_formatter('{x:,.0f}')
        axis.minorticks_off()
    figure.legend(
        *axes[0].get_legend_handles_labels(),
        loc='outside lower center',
        ncols=2,
        frameon=False,
        fontsize=8,
    )
    _save(figure, png)


def _plot(
    axis: Axes, title: str, x: list[float], lines: dict[str, list[float]], styles: dict[str, Style]
) -> None:
    for name, values in lines.items():
        axis.plot(x, values, markersize=4, **styles[name])
    axis.set_title(title, loc='left', fontweight='bold')
    axis.grid(axis='y', color='#e0e0e0', linewidth=0.7)
    axis.spines[['top', 'right']].set_visible(False)


def _save(figure: Figure, png: Path) -> None:
    figure.savefig(
        png, dpi=200, metadata={'Software': None}
    )  # twice a page's resolution, for high-density screens
    plt.close(figure)


def main() -> int:
    parser = argparse.ArgumentParser(
        description='Write the tables of benchmarks/README.md and the figures of the docs'
    )
    parser.add_argument(
        '--check', action='store_true', help='change nothing; fail if the page is out of date'
    )
    check = parser.parse_args().check
    # A folder may also have the record and the launch table of benchmarks.gpu, which writes its own
    # report.
    files = sorted((FOLDER / 'results').glob('*/*.json'))
    sections = '\n\n'.join(
        section(path) for path in files if 'rows' in json.loads(path.read_text())
    )
    page = FOLDER / 'README.md'
    text = page.read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    written = f'{before}{BEGIN}\n\n{sections}\n\n{END}{after}'
    if check:
        return int(written != text)
    for name, function in (('image_size', draw), ('layer', draw_layers)):
        function(SHOWN / f'{name}.json', ROOT / 'docs' / f'{name}.png')
    page.write_text(written)
    return 0


if __name__ == '__main__':
    sys.exit(main())
