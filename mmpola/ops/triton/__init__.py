"""The `triton` backend: the equations as fused kernels for NVIDIA GPUs.

The table of backends imports only `backend.py`; triton itself is imported when the kernels are
first called. mmpola/ops/README.md explains the design of the kernels.
"""

import os
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

LOWEST_VERSION = (3, 3)
"""Triton 3.2 (torch 2.6) aborts the process when it compiles ExpMap's kernels."""

DISTRIBUTIONS = ('triton', 'pytorch-triton', 'triton-windows')
"""Distributions of Triton: its releases, PyTorch's nightly builds, the port to Windows."""


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ImportError:  # raised by an import hook that blocks the module
        return False


def _installed_version() -> str:
    """Return Triton's version without importing it, as '3.6'; '' if it is unknown."""
    for distribution in DISTRIBUTIONS:
        try:
            return '.'.join(version(distribution).split('.')[:2])
        except PackageNotFoundError:
            continue
    return ''


def _is_too_old(installed: str) -> bool:
    """Whether a version such as '3.2' is below LOWEST_VERSION; an unknown one ('') is not."""
    if installed == '':
        return False
    numbers = tuple(int(number) for number in installed.split('.'))
    return numbers < LOWEST_VERSION


# Read once at import, so that a compiler that traces `backend.missing` sees constants.
HAS_TRITON = _is_installed('triton')
VERSION = _installed_version()
IS_TOO_OLD = _is_too_old(VERSION)
IS_INTERPRETED = os.environ.get('TRITON_INTERPRET') == '1'
