"""Draws benchmarks/results/*/*.json as plots next to them, and writes the tables of benchmarks/README.md.

python -m benchmarks.report [--check]        --check only says whether the page is up to date (exit status 1 if not)
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use('Agg')
import matplotlib.pyplot as plt

FOLDER = Path(__file__).parent
BEGIN, END = '<!-- results: written by python -m benchmarks.report -->', '<!-- end of results -->'

Row = dict[str, Any]


def section(path: Path) -> str:
    """Heading, plot and table of one result file."""
    record = json.loads(path.read_text())
    made = f'torch {record["torch"]}, commit {record["commit"]}, {record["repeats"]} rounds'
    picture = path.with_suffix('.svg').relative_to(FOLDER)
    return '\n\n'.join(
        [f'### {path.stem}, {record["machine"]}', f'{made}.', f'![{path.stem}]({picture})', table(record['rows'])]
    )


def draw(path: Path) -> None:
    """The plot of one result file as SVG: a bar per ratio, or the cost per token over the number of tokens."""
    record = json.loads(path.read_text())
    rows: list[Row] = record['rows']
    plt.rcParams.update({'svg.hashsalt': 'mmpola', 'svg.fonttype': 'none', 'font.size': 9})  # equal text for equal data
    if path.stem == 'scaling':
        figure, axes = plt.subplots(figsize=(6, 3), layout='constrained')
        name = 'cost per token over the shortest'
        axes.plot([row['tokens'] for row in rows], [row[name] for row in rows], marker='o')
        axes.set(xscale='log', ylim=(0, 1.5), xlabel='tokens', ylabel=name)
        axes.axhline(1, color='grey', linewidth=0.8)
    else:
        names = [name for name in rows[0] if not name.startswith('copy') and any(_is_ratio(row[name]) for row in rows)]
        height = 0.8 / len(names)
        figure, axes = plt.subplots(figsize=(8, 1 + 0.16 * len(rows) * len(names)), layout='constrained')
        for i, name in enumerate(names):
            places = [j + (i - (len(names) - 1) / 2) * height for j in range(len(rows))]
            axes.barh(places, [row[name] if _is_ratio(row[name]) else 0 for row in rows], height, label=name)
        axes.set(yticks=range(len(rows)), yticklabels=[row['case'] for row in rows], xlabel='ratio (1: no difference)')
        axes.margins(y=0.01)
        axes.invert_yaxis()
        axes.axvline(1, color='black', linewidth=0.8)
        axes.legend(loc='upper center', bbox_to_anchor=(0.4, -0.3 / len(rows) - 0.06), ncols=3, frameon=False)
    axes.set_title(f'{path.stem}, {record["machine"]}')
    figure.savefig(path.with_suffix('.svg'), metadata={'Date': None})
    plt.close(figure)


def table(rows: list[Row]) -> str:
    """The columns that are no dicts, in Markdown."""
    columns = [name for name, value in rows[0].items() if not isinstance(value, dict)]
    lines = ['| ' + ' | '.join(columns) + ' |', '| ' + ' | '.join('---' for _ in columns) + ' |']
    lines += ['| ' + ' | '.join(_cell(row[name]) for name in columns) + ' |' for row in rows]
    return '\n'.join(lines)


def _is_ratio(value: Any) -> bool:
    return isinstance(value, float)  # a peer that is absent has a word in its place


def _cell(value: Any) -> str:
    return f'{value:.2f}' if isinstance(value, float) else f'{value:,}' if isinstance(value, int) else str(value)


def main() -> int:
    parser = argparse.ArgumentParser(description='Draw the plots and write the tables of benchmarks/README.md')
    parser.add_argument('--check', action='store_true', help='change nothing; fail if the page is out of date')
    check = parser.parse_args().check
    results = sorted((FOLDER / 'results').glob('*/*.json'))
    page = FOLDER / 'README.md'
    text = page.read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    sections = '\n\n'.join(section(path) for path in results)
    written = f'{before}{BEGIN}\n\n{sections}\n\n{END}{after}'
    if check:
        return int(written != text)
    for path in results:
        draw(path)
    page.write_text(written)
    return 0


if __name__ == '__main__':
    sys.exit(main())
