"""Say what is beside a path that does not exist."""

from __future__ import annotations

from pathlib import Path

from mmpola.messages import listed, suggestion


def existing_folder(path: Path, root: str | None = None) -> Path | None:
    """Return the innermost existing folder around a missing path, inside its data set's folder.

    Args:
        path: path of a file or folder.
        root: folder of the data set; None: the one that the path is in.

    Returns:
        None if the folder of the data set does not exist either.
    """
    if root and path == Path(root):
        return None
    top = path.parent
    if root and Path(root) in path.parents:
        top = Path(root)
    for folder in path.parents:
        if folder.is_dir():
            return folder
        if folder == top:
            return None
    return None


def beside(path: Path, root: str | None = None) -> str:
    """Return the end of a message that says what there is where a path is missing.

    '' if the folder of the data set, `root`, is missing too.
    """
    folder = existing_folder(path, root)
    if folder is None:
        return ''
    names = sorted(entry.name for entry in folder.iterdir())
    missing = path.relative_to(folder).parts[0]
    return f'; {folder} has {listed(names) or "no files"}{suggestion(missing, names)}'
