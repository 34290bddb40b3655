"""Draws benchmarks/results/*/*.json as plots next to them, and writes the tables of benchmarks/README.md.

python -m benchmarks.report [--check]      --check only tests whether the page is up to date (exit status 1 if not)
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import matplotlib.pyplot as plt

from benchmarks.plots import plot
from benchmarks.records import table

FOLDER = Path(__file__).resolve().parent
BEGIN, END = '<!-- results: written by python -m benchmarks.report -->', '<!-- end of results -->'

README_FIGURES = {'results/cpu-2-threads/image_size.json': FOLDER.parent / 'docs' / 'image_size.png'}
"""Result file -> its figure in the README of the repository."""

PNG_DPI = 200
"""Twice the resolution at which a README is usually displayed, for high-density screens."""


def section(path: Path) -> str:
    """Return heading, plot and table of one result file in Markdown."""
    record = json.loads(path.read_text())
    processor = f'{record["processor"]}, ' if 'processor' in record else ''
    made = f'{processor}torch {record["torch"]}, commit {record["commit"]}, {record["repeats"]} rounds'
    figure = path.with_suffix('.svg').relative_to(FOLDER)
    return '\n\n'.join(
        [f'## {path.stem}, {record["machine"]}', f'{made}.', f'![{path.stem}]({figure})', table(record['rows'])]
    )


def draw(path: Path, png: Path | None = None) -> None:
    """Write the plot of one result file as SVG next to it and, if `png` is given, also as PNG."""
    figure = plot(path.stem, json.loads(path.read_text()))
    figure.savefig(path.with_suffix('.svg'), metadata={'Date': None})
    if png is not None:
        figure.savefig(png, dpi=PNG_DPI, metadata={'Software': None})
    plt.close(figure)


def main() -> int:
    parser = argparse.ArgumentParser(description='Draw the plots and write the tables of benchmarks/README.md')
    parser.add_argument('--check', action='store_true', help='change nothing; fail if the page is out of date')
    check = parser.parse_args().check
    # A folder may also have the record and the launch table of benchmarks.gpu, which writes its own report.
    files = sorted((FOLDER / 'results').glob('*/*.json'))
    results = [path for path in files if 'rows' in json.loads(path.read_text())]
    page = FOLDER / 'README.md'
    text = page.read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    sections = '\n\n'.join(section(path) for path in results)
    written = f'{before}{BEGIN}\n\n{sections}\n\n{END}{after}'
    if check:
        return int(written != text)
    for path in results:
        draw(path, README_FIGURES.get(path.relative_to(FOLDER).as_posix()))
    page.write_text(written)
    return 0


if __name__ == '__main__':
    sys.exit(main())
