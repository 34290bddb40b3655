"""Where results come from, and the folder that they are written to."""

from __future__ import annotations

import subprocess
from pathlib import Path

from mmpola.cache import file_name

ROOT = Path(__file__).resolve().parent.parent
"""The repository."""


def commit() -> str:
    """Return the measured commit, followed by '+' if files differ from it; 'unknown' without git."""
    command = ['git', 'describe', '--always', '--dirty=+', '--abbrev=10']
    try:
        described = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return 'unknown'
    return described.stdout.strip() or 'unknown'


def results_folder(machine: str) -> Path:
    """Return the folder of a machine's results, which may not exist yet."""
    return ROOT / 'benchmarks' / 'results' / file_name(machine)
