"""The folder of files that mmpola can make again, and folders that are complete or absent.

This module needs only the standard library.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def cache_folder() -> Path:
    """Return `mmpola` in `$XDG_CACHE_HOME`, by default in `~/.cache`; it may not exist yet."""
    return Path(os.environ.get('XDG_CACHE_HOME') or Path.home() / '.cache') / 'mmpola'


def file_name(machine: str) -> str:
    """Return the name of a GPU or another machine for a file name, without spaces and slashes."""
    return machine.replace(' ', '-').replace('/', '-')


@contextmanager
def complete_folder(path: Path) -> Iterator[Path]:
    """Yield an empty folder to fill, which becomes `path` at the end, and is removed on errors.

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
