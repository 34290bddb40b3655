"""Writes the tables of benchmarks/README.md from benchmarks/results/*/*.json.

python -m benchmarks.report [--check]        --check only says whether the page is up to date (exit status 1 if not)
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
BEGIN, END = '<!-- results: written by python -m benchmarks.report -->', '<!-- end of results -->'


def tables() -> str:
    """A heading per machine and a Markdown table per suite."""
    parts = []
    for machine in sorted(path for path in (FOLDER / 'results').iterdir() if path.is_dir()):
        for path in sorted(machine.glob('*.json')):
            record = json.loads(path.read_text())
            parts.append(f'### {path.stem}, {record["machine"]}, torch {record["torch"]}\n\n{_table(record["rows"])}')
    return '\n\n'.join(parts)


def _table(rows: list[dict[str, Any]]) -> str:
    columns = [name for name, value in rows[0].items() if not isinstance(value, dict)]
    lines = ['| ' + ' | '.join(columns) + ' |', '| ' + ' | '.join('---' for _ in columns) + ' |']
    lines += ['| ' + ' | '.join(_cell(row[name]) for name in columns) + ' |' for row in rows]
    return '\n'.join(lines)


def _cell(value: Any) -> str:
    return f'{value:.2f}' if isinstance(value, float) else f'{value:,}' if isinstance(value, int) else str(value)


def main() -> int:
    parser = argparse.ArgumentParser(description='Write the tables of benchmarks/README.md')
    parser.add_argument('--check', action='store_true', help='change nothing; fail if the page is out of date')
    check = parser.parse_args().check
    page = FOLDER / 'README.md'
    text = page.read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    written = f'{before}{BEGIN}\n\n{tables()}\n\n{END}{after}'
    if check:
        return int(written != text)
    page.write_text(written)
    return 0


if __name__ == '__main__':
    sys.exit(main())
