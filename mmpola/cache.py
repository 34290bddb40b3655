"""Where mmpola keeps files that it can make again, and how it names them. Needs the standard library alone."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """Return `mmpola` in `$XDG_CACHE_HOME`, by default in `~/.cache`; it may not exist yet."""
    return Path(os.environ.get('XDG_CACHE_HOME') or Path.home() / '.cache') / 'mmpola'


def file_name(machine: str) -> str:
    """Return the name of a GPU or another machine as file names contain it, without spaces and slashes."""
    return machine.replace(' ', '-').replace('/', '-')
