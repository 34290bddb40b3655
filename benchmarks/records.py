"""Where results come from, the folder that they are written to, and how pages show them."""

from __future__ import annotations

import hashlib
import importlib.metadata
import platform
import re
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
"""The repository."""

Row = dict[str, Any]
"""One case of a suite: its columns, and dicts of raw measurements, which tables leave out."""


def commit() -> str:
    """Return the measured commit, with '+' if files differ from it; 'unknown' without git."""
    return _git('describe', '--always', '--dirty=+', '--abbrev=10') or 'unknown'


def version(package: str) -> str:
    """Return the version of an installed distribution, or ''."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ''


def source_hash() -> str:
    """Return a hash of the Python files of mmpola and of the benchmarks."""
    digest = hashlib.sha256()
    for folder in ('mmpola', 'benchmarks'):
        for path in sorted((ROOT / folder).rglob('*.py')):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def trees(folders: Sequence[str]) -> dict[str, str]:
    """Return the git tree ids of folders, which name their files also after a rebase.

    An id ends with '+' if files differ from the commit. {} without git.
    """
    found = {}
    for folder in folders:
        tree = _git('rev-parse', '--short=12', f'HEAD:{folder}')
        if not tree:
            return {}
        changed = _git('status', '--porcelain', '--', folder)
        found[folder] = tree + '+' * bool(changed)
    return found


def _git(*arguments: str) -> str:
    """Return what git prints in the repository; '' if it fails or is missing."""
    try:
        done = subprocess.run(
            ['git', *arguments], cwd=ROOT, capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        return ''
    return done.stdout.strip()


def processor() -> str:
    """Return the name of the CPU as Linux gives it."""
    for line in Path('/proc/cpuinfo').read_text().splitlines():
        if line.startswith('model name'):
            return line.partition(': ')[2]
    return platform.machine()


def results_folder(machine: str) -> Path:
    """Return the folder of a machine's results, which may not exist yet."""
    return ROOT / 'benchmarks' / 'results' / re.sub(r'[^\w.-]+', '-', machine)


def replace_block(text: str, key: str, block: str) -> str:
    """Return a page with what lies between the markers of `key` replaced by `block`.

    Raises:
        ValueError: the page has no such markers.
    """
    pattern = re.compile(rf'(<!-- {key}: [^>]* -->\n).*?(<!-- end of {key} -->)', re.DOTALL)
    if not pattern.search(text):
        raise ValueError(f'{key}: expected markers of its results in the page, got none')
    return pattern.sub(lambda match: f'{match[1]}\n{block}\n\n{match[2]}', text)


def table(rows: list[Row]) -> str:
    """Return a Markdown table of the columns of all rows, except those of dicts."""
    columns: list[str] = []
    for row in rows:
        for name, value in row.items():
            if not isinstance(value, dict) and name not in columns:
                columns.append(name)
    return markdown_table(columns, [[_cell(row.get(name, '')) for name in columns] for row in rows])


def markdown_table(heading: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table in Markdown."""
    lines = []
    for cells in (heading, ['---'] * len(heading), *rows):
        lines.append(f'| {" | ".join(str(cell) for cell in cells)} |')
    return '\n'.join(lines)


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f'{value:.2f}'
    if isinstance(value, int):
        return f'{value:,}'
    return str(value)
