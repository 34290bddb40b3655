"""Where mmpola keeps files that it can make again. Needs the standard library alone."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """Return `mmpola` in `$XDG_CACHE_HOME`, by default in `~/.cache`; it may not exist yet."""
    return Path(os.environ.get('XDG_CACHE_HOME') or Path.home() / '.cache') / 'mmpola'
