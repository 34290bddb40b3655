"""The `triton` backend: the equations as fused kernels for NVIDIA GPUs.

The table of backends imports only `backend.py`; triton itself is imported when the kernels are first called.
mmpola/ops/README.md explains the design of the kernels.
"""

import os
from importlib.util import find_spec


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ImportError:  # raised by an import hook that blocks the module
        return False


# Read once at import, so that a compiler that traces `backend.missing` sees constants.
HAS_TRITON = _is_installed('triton')
INTERPRETED = os.environ.get('TRITON_INTERPRET') == '1'
