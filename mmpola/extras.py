"""What the extras of mmpola require, as pyproject.toml says; read from the installed package."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, requires

REQUIREMENT = re.compile(r'([\w.-]+)([^;]*)(?:; extra == "(\w+)")?')
"""The name of a package, which versions of it, and the extra that requires it, if one does."""

WITH_OPENMMLAB = ('cv2', 'matplotlib', 'mmcv', 'mmseg', 'pycocotools', 'rich')
"""Modules that come with the extra `openmmlab`, where packages of other names bring them."""


def install_command(extra: str = '') -> str:
    """Return the command that installs mmpola with an extra."""
    if extra:
        return f"pip install -e '.[{extra}]'"
    return 'pip install -e .'


def versions_of(package: str) -> str:
    """Return which versions of a package mmpola or an extra requires: '==2.1.0'; '' for any."""
    _, versions = _requirement(package)
    return versions


def extra_of(module: str) -> str:
    """Return the extra that brings a module; '' if none does."""
    if module in WITH_OPENMMLAB:
        return 'openmmlab'
    extra, _ = _requirement(module)
    return extra


def _requirement(package: str) -> tuple[str, str]:
    """Return (extra, versions) of the first requirement of a package, both '' if there is none."""
    try:
        lines = requires('mmpola') or []
    except PackageNotFoundError:  # a checkout that is imported without having been installed
        lines = []
    for line in lines:
        found = REQUIREMENT.match(line)
        if found and found[1] == package:
            return found[3] or '', found[2]
    return '', ''
