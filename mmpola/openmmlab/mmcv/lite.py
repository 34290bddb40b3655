"""A file `_ext.py` in the folder of mmcv-lite, with which every program finds mmcv's operators.

mmcv-lite lacks the module `mmcv._ext`. `import mmpola` provides it in programs of ours; the file
provides it in all programs of the environment, also in those that import mmdet first. Python
prefers a compiled `_ext` in the same folder. pip does not know the file: it stays when mmcv-lite is
upgraded, and also, harmless in a folder without `__init__.py`, when mmcv-lite is uninstalled.
"""

from __future__ import annotations

from pathlib import Path

from mmpola.files import write_atomically
from mmpola.messages import UsageError
from mmpola.openmmlab.install import (
    INSTALL_OPENMMLAB,
    mmcv_extension,
    mmcv_folder,
    mmcv_problem,
)

NAME = '_ext.py'
MARK = '# Written by `mmpola operators`;'
"""How our file begins."""

CONTENT = f"""\
{MARK} `mmpola operators --remove` deletes it.
try:
    from mmpola import mmcv_operators
except ModuleNotFoundError as error:
    if error.name != 'mmpola':
        raise
    message = f"mmcv's operators need mmpola: install it again, or delete {{__file__}}"
    raise ModuleNotFoundError(message, name='mmpola') from None


def __getattr__(name):
    return getattr(mmcv_operators, name)
"""


def add_operators() -> Path:
    """Write the file, and return where it is.

    Raises:
        UsageError: there is no mmcv, mmcv is compiled, the folder is not writable, or it has a
            file of that name that is not ours; the message says what to do. Nothing is written.
    """
    problem = mmcv_problem()
    if problem is not None:
        raise UsageError(f'mmcv: {problem.found}: {problem.remedy}')
    path = _folder() / NAME
    found = mmcv_extension()
    if found is not None and found != path:
        raise UsageError(f'mmcv is compiled here ({found}): its own operators are used')
    _refuse_foreign(path)
    try:
        write_atomically(path, CONTENT)
    except OSError as error:
        raise _not_writable(path, error) from error
    return path


def remove_operators() -> Path:
    """Delete the file, and return where it was.

    Raises:
        UsageError: there is none, it is not ours, or it cannot be deleted.
    """
    path = _folder() / NAME
    if not path.exists():
        raise UsageError(f'{path}: no such file, nothing to remove')
    _refuse_foreign(path)
    try:
        path.unlink()
    except OSError as error:
        raise _not_writable(path, error) from error
    return path


def _folder() -> Path:
    """Return mmcv's folder."""
    folder = mmcv_folder()
    if folder is None:
        raise UsageError(f'mmcv is not installed: {INSTALL_OPENMMLAB}')
    return folder


def _refuse_foreign(path: Path) -> None:
    """Raise UsageError if `path` is a file of somebody else."""
    if path.exists() and not path.read_bytes().startswith(MARK.encode()):
        raise UsageError(f'{path}: expected a file of mmpola, got another; delete it yourself')


def _not_writable(path: Path, error: OSError) -> UsageError:
    """Return the error of a folder that may not be changed."""
    advice = "run this as its owner, or write 'import mmpola' before mmdet and mmseg"
    return UsageError(f'{path.parent}: {error.strerror}: {advice}')
