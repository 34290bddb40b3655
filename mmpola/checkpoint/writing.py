"""Write a file so that a full disk or a killed process cannot damage the one that it replaces."""

from __future__ import annotations

import os
from pathlib import Path

PARTIAL = '.partial'
"""Suffix of a file that is being written, or was when its process was killed."""


def write_atomically(path: str | Path, content: bytes | memoryview) -> None:
    """Write a file next to its destination, flush it to disk, then rename it: readers see the old or the new content.

    Args:
        path: in an existing folder; until the file is complete it is called `path`.partial.
        content: the whole content.

    Raises:
        OSError: the system refuses the write; the old file is unchanged and no partial file is left.
    """
    path, partial = Path(path), Path(f'{path}{PARTIAL}')
    try:
        with partial.open('wb') as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:  # Ctrl-C too
        partial.unlink(missing_ok=True)
        raise
