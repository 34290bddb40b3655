"""Draws benchmarks/results/*/*.json as plots next to them, and writes the tables of benchmarks/README.md.

python -m benchmarks.report [--check]        --check only says whether the page is up to date (exit status 1 if not)
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt

from benchmarks.plots import plot

FOLDER = Path(__file__).resolve().parent
BEGIN, END = '<!-- results: written by python -m benchmarks.report -->', '<!-- end of results -->'

README_PICTURES = {'results/cpu-2-threads/image_size.json': FOLDER.parent / 'docs' / 'image_size.png'}
"""Result file -> the picture of it that the repository's README shows."""

PNG_DPI = 200
"""Twice the width at which a README is read, for dense screens."""

Row = dict[str, Any]


def section(path: Path) -> str:
    """Heading, plot and table of one result file."""
    record = json.loads(path.read_text())
    processor = f'{record["processor"]}, ' if 'processor' in record else ''
    made = f'{processor}torch {record["torch"]}, commit {record["commit"]}, {record["repeats"]} rounds'
    picture = path.with_suffix('.svg').relative_to(FOLDER)
    return '\n\n'.join(
        [f'## {path.stem}, {record["machine"]}', f'{made}.', f'![{path.stem}]({picture})', table(record['rows'])]
    )


def draw(path: Path, png: Path | None = None) -> None:
    """Write the plot of one result file as SVG next to it and, if asked for, as PNG."""
    figure = plot(path.stem, json.loads(path.read_text()))
    figure.savefig(path.with_suffix('.svg'), metadata={'Date': None})
    if png is not None:
        figure.savefig(png, dpi=PNG_DPI, metadata={'Software': None})
    plt.close(figure)


def table(rows: list[Row]) -> str:
    """The columns that are no dicts, in Markdown."""
    columns = [name for name, value in rows[0].items() if not isinstance(value, dict)]
    lines = ['| ' + ' | '.join(columns) + ' |', '| ' + ' | '.join('---' for _ in columns) + ' |']
    lines += ['| ' + ' | '.join(_cell(row[name]) for name in columns) + ' |' for row in rows]
    return '\n'.join(lines)


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
        draw(path, README_PICTURES.get(path.relative_to(FOLDER).as_posix()))
    page.write_text(written)
    return 0


if __name__ == '__main__':
    sys.exit(main())
