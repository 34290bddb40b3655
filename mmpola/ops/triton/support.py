"""Where the `triton` backend can run, said without importing triton."""

from __future__ import annotations

import os
from importlib.util import find_spec

import torch
from torch import Tensor

from mmpola.ops.epilogue_inputs import EpilogueInputs
from mmpola.ops.inputs import AttentionInputs

LARGEST_HEAD_DIM = 128


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ImportError:  # an import hook that refuses the module
        return False


# Read once, here: a compiler that traces `missing` then meets constants.
HAS_TRITON = _is_installed('triton')
HAS_CUSTOM_OP = hasattr(torch.library, 'custom_op')
INTERPRETED = os.environ.get('TRITON_INTERPRET') == '1'


def missing() -> list[str]:
    """Reasons why the kernels cannot run on this machine."""
    reasons = []
    if not HAS_TRITON:
        reasons.append('triton is not installed')
    if not HAS_CUSTOM_OP:
        reasons.append(f'torch >= 2.4 is needed (torch.library.custom_op), this is {torch.__version__}')
    if not INTERPRETED:
        if not torch.cuda.is_available():
            reasons.append("no CUDA device (TRITON_INTERPRET=1 runs the kernels in Triton's interpreter)")
        elif found := _too_low(None):
            reasons.append(f'a GPU of compute capability 8.0 or more is needed, the best here has {found}')
    if torch.version.hip is not None:
        reasons.append('written for NVIDIA GPUs, this torch is built for AMD')
    return reasons


def unsupported(inputs: AttentionInputs | EpilogueInputs) -> list[str]:
    """Reasons why the kernels cannot serve these inputs."""
    name, x = ('q', inputs.q) if isinstance(inputs, AttentionInputs) else ('attended', inputs.attended)
    device = 'cpu' if INTERPRETED else 'cuda'
    reasons = []
    if x.device.type != device:
        reasons.append(f'{name}: expected a {device} tensor, got {x.device.type}')
    elif x.is_cuda and (found := _too_low(x.device)):
        reasons.append(f'{name}: expected a GPU of compute capability 8.0 or more, got {found}')
    if x.dtype == torch.float64:
        reasons.append(f'{name}: expected float16, bfloat16 or float32, got float64')
    if isinstance(inputs, AttentionInputs) and x.shape[3] > LARGEST_HEAD_DIM:
        reasons.append(f'{name}: expected a head dimension D <= {LARGEST_HEAD_DIM}, got D={x.shape[3]}')
    if torch.jit.is_tracing() or torch.onnx.is_in_onnx_export():
        reasons.append('a tracer or exporter records plain operators only')
    return reasons


def _too_low(device: torch.device | None) -> str:
    from mmpola.ops.triton.capability import too_low

    return too_low(device)


def attend(inputs: AttentionInputs) -> Tensor:
    """o [B, N, H, D] in q's dtype. The first call imports triton."""
    from mmpola.ops.triton.operator import attention

    return attention(inputs)


def mix_and_gate(inputs: EpilogueInputs) -> Tensor:
    """y [B, N, C] in the dtype of `attended`. The first call imports triton."""
    from mmpola.ops.triton.epilogue_operator import epilogue

    return epilogue(inputs)
