"""The `triton` backend: the equations as fused kernels for NVIDIA GPUs.

The table of backends imports only `backend.py`; triton itself is imported when the kernels are
first called. mmpola/ops/README.md explains the design of the kernels.
"""

import os
from importlib.util import find_spec

import torch
from torch.torch_version import TorchVersion


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ImportError:  # raised by an import hook that blocks the module
        return False


# Read once at import, so that a compiler that traces `backend.missing` sees constants.
HAS_TRITON = _is_installed('triton')
IS_TOO_OLD = TorchVersion(torch.__version__) < '2.7'
"""Triton 3.2, of torch 2.6, aborts the process when it compiles ExpMap's kernels."""
IS_INTERPRETED = os.environ.get('TRITON_INTERPRET') == '1'
