"""Writes the tables of benchmarks/results/*/*.json into benchmarks/README.md, and draws the README's figure.

python -m benchmarks.report [--check]      --check only tests whether the page is up to date (exit status 1 if not)
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from benchmarks.records import ROOT, table

FOLDER = Path(__file__).resolve().parent
BEGIN, END = '<!-- results: written by python -m benchmarks.report -->', '<!-- end of results -->'

FIGURE = FOLDER / 'results' / 'cpu-2-threads' / 'image_size.json', ROOT / 'docs' / 'image_size.png'
"""The result file that the README shows, and its figure."""

PNG_DPI = 200
"""Twice the resolution at which a README is usually displayed, for high-density screens."""


LINES: dict[str, dict[str, Any]] = {
    'Pola-PVT-T': {'color': '#0072b2', 'marker': 'o', 'linewidth': 2.2},
    'PVT-T': {'color': '#0072b2', 'marker': 'o', 'linestyle': '--', 'markerfacecolor': 'white'},
    'Pola-Swin-T': {'color': '#d55e00', 'marker': 's', 'linewidth': 2.2},
    'Swin-T': {'color': '#d55e00', 'marker': 's', 'linestyle': '--', 'markerfacecolor': 'white'},
}
"""Blue and vermilion of Okabe and Ito's palette, for colour-blind readers; mmdet's lines are dashed."""

TICKS = ('512x512', '800x1344', '1280x1280', '1600x1600')
"""Image sizes labelled on the axis; labels below 512 pixels would overlap."""


def section(path: Path) -> str:
    """Return heading and table of one result file in Markdown."""
    record = json.loads(path.read_text())
    processor = f'{record["processor"]}, ' if 'processor' in record else ''
    made = f'{processor}torch {record["torch"]}, commit {record["commit"]}, {record["repeats"]} rounds'
    return '\n\n'.join([f'## {path.stem}, {record["machine"]}', f'{made}.', table(record['rows'])])


def draw(path: Path, png: Path) -> None:
    """Draw seconds and peak memory per image, of a result file of `image_size`, over the number of pixels."""
    record = json.loads(path.read_text())
    rows = sorted(record['rows'], key=lambda row: row['pixels'])
    time, unit = ('Seconds', 1) if 'cpu' in record['machine'] else ('Milliseconds', 1e3)
    figure, axes = plt.subplots(1, 2, figsize=(8.3, 3.4), layout='constrained')
    _lines(axes[0], rows, 'seconds', unit, f'{time} per image')
    _lines(axes[1], rows, 'bytes', 1e-9, 'Peak memory per image, GB')
    axes[0].legend(frameon=False)
    figure.savefig(png, dpi=PNG_DPI, metadata={'Software': None})
    plt.close(figure)


def _lines(axes: Axes, rows: list[dict[str, Any]], quantity: str, unit: float, title: str) -> None:
    pixels = [row['pixels'] / 1e6 for row in rows]
    for name in (name for name in LINES if name in rows[0][quantity]):
        label = name if name.startswith('Pola') else f'mmdet {name}'
        axes.plot(pixels, [row[quantity][name] * unit for row in rows], markersize=4, label=label, **LINES[name])
    axes.set(xlim=(0, None), ylim=(0, None), xlabel='image size in pixels (to scale)')
    axes.set_title(title, loc='left', fontweight='bold')
    ticks = [row for row in rows if row['case'] in TICKS] or rows
    axes.set_xticks([row['pixels'] / 1e6 for row in ticks], [row['case'].replace('x', ' x ') for row in ticks])
    plt.setp(axes.get_xticklabels(), rotation=30, ha='right', rotation_mode='anchor')
    axes.grid(axis='y', color='#e0e0e0', linewidth=0.7)
    axes.spines[['top', 'right']].set_visible(False)


def main() -> int:
    parser = argparse.ArgumentParser(description='Write the tables of benchmarks/README.md and draw its figure')
    parser.add_argument('--check', action='store_true', help='change nothing; fail if the page is out of date')
    check = parser.parse_args().check
    # A folder may also have the record and the launch table of benchmarks.gpu, which writes its own report.
    files = sorted((FOLDER / 'results').glob('*/*.json'))
    sections = '\n\n'.join(section(path) for path in files if 'rows' in json.loads(path.read_text()))
    page = FOLDER / 'README.md'
    text = page.read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    written = f'{before}{BEGIN}\n\n{sections}\n\n{END}{after}'
    if check:
        return int(written != text)
    draw(*FIGURE)
    page.write_text(written)
    return 0


if __name__ == '__main__':
    sys.exit(main())
