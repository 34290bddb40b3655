"""Let Python find `mmcv._ext` for mmcv-lite; needs only the standard library."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from typing import Any

OPERATORS = Path(__file__).with_name('operators.py')


class MmcvOperators:
    """Finds `mmcv._ext` for mmcv-lite, if neither a compiled one nor `mmpola operators` has."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Return where `mmpola.openmmlab.mmcv.operators` is, for `mmcv._ext`."""
        if name != 'mmcv._ext':
            return None
        return spec_from_file_location(name, OPERATORS)


def find_mmcv_operators() -> None:
    """Let Python find `mmcv._ext` last of all."""
    sys.meta_path.append(MmcvOperators)
