"""Files and folders that are written whole or not at all, and the folder of cached ones.

This module needs only the standard library.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

PARTIAL_SUFFIX = '.partial'
"""Suffix of a file that is being written, or was when its process was killed."""

LONGEST_NAME = 255
"""Bytes of a file's name that Linux's and macOS's file systems allow."""


def write_atomically(path: str | Path, content: str | bytes | memoryview) -> None:
    """Write a file beside its destination, flush it to disk, then rename it.

    Readers see the old or the new content, also after a full disk or the end of the process.

    Args:
        path: in an existing folder; until the file is complete it is called `path`.partial, where
            the name is cut if it would be too long.
        content: the whole content; text is written as UTF-8.

    Raises:
        OSError: the system refuses the write; the old file is unchanged and no partial file is
            left.
    """
    if isinstance(content, str):
        content = content.encode()
    name = os.fsencode(Path(path).name)[: LONGEST_NAME - len(PARTIAL_SUFFIX)]
    partial = Path(path).with_name(f'{os.fsdecode(name)}{PARTIAL_SUFFIX}')
    try:
        with partial.open('wb') as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:  # Ctrl-C too
        partial.unlink(missing_ok=True)
        raise


def write_figure(path: Path, figure: Any, **options: Any) -> None:
    """Write a figure of matplotlib by `write_atomically`.

    Args:
        path: of the file; its suffix names the format.
        figure: of matplotlib.
        options: of `Figure.savefig`.
    """
    content = io.BytesIO()
    figure.savefig(content, format=path.suffix.removeprefix('.'), **options)
    write_atomically(path, content.getbuffer())


def write_together(contents: Mapping[Path, bytes]) -> None:
    """Write files with names as long as the system allows, and their folders: all files or none.

    Raises:
        OSError: the disk is full, or a name is too long; what the files were before is lost.
    """
    try:
        for path, content in contents.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)  # do not write through a link
            path.write_bytes(content)
    except OSError:
        for path in contents:
            with contextlib.suppress(OSError):
                path.unlink()
        raise


def cache_folder() -> Path:
    """Return the folder `mmpola` in `$XDG_CACHE_HOME`, or in `~/.cache`; it may not exist yet."""
    caches = os.environ.get('XDG_CACHE_HOME') or Path.home() / '.cache'
    return Path(caches) / 'mmpola'


@contextlib.contextmanager
def complete_folder(path: Path) -> Iterator[Path]:
    """Yield an empty folder to fill; at the end it is renamed to `path`, on errors it is removed.

    Raises:
        OSError: `path` is a file or holds files, or the disk refuses.
    """
    partial = path.with_name(f'{path.name}{PARTIAL_SUFFIX}')
    shutil.rmtree(partial, ignore_errors=True)  # a killed process may have left it
    partial.mkdir(parents=True)
    try:
        yield partial
        partial.rename(path)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
