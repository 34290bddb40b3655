"""The folder for cached files, and folders that are written whole or not at all.

This module needs only the standard library.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def cache_folder() -> Path:
    """Return the folder `mmpola` in `$XDG_CACHE_HOME`, or in `~/.cache`; it may not exist yet."""
    caches = os.environ.get('XDG_CACHE_HOME') or Path.home() / '.cache'
    return Path(caches) / 'mmpola'


@contextmanager
def complete_folder(path: Path) -> Iterator[Path]:
    """Yield an empty folder to fill; at the end it is renamed to `path`, on errors it is removed.

    Raises:
        OSError: `path` is a file or holds files, or the disk refuses.
    """
    partial = path.with_name(f'{path.name}.partial')
    shutil.rmtree(partial, ignore_errors=True)  # a killed process may have left it
    partial.mkdir(parents=True)
    try:
        yield partial
        partial.rename(path)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
