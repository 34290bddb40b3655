"""Where mmpola keeps files that it can make again, and how it completes folders. Needs the standard library alone."""

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
    """Return the name of a GPU or another machine as file names contain it, without spaces and slashes."""
    return machine.replace(' ', '-').replace('/', '-')


@contextmanager
def complete_folder(path: Path) -> Iterator[Path]:
    """Yield an empty folder to fill, `path`.partial; it becomes `path` at the end, and is removed after an error.

    Raises:
        OSError: `path` is a file or holds files, or the disk refuses.
    """
    partial = path.with_name(f'{path.name}.partial')
    shutil.rmtree(partial, ignore_errors=True)  # of a process that was killed
    partial.mkdir(parents=True)
    try:
        yield partial
        partial.rename(path)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
