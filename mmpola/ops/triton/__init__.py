"""The `triton` backend: the equations as fused kernels for NVIDIA GPUs.

This file answers whether the kernels can run, without importing triton; they are imported when they
are first called. mmpola/ops/README.md explains their design.

blocks.py has the device functions of all kernels; power.py, exp.py and mix_and_gate.py a feature
map or operator each, kernels first; passes.py what both maps share; functions.py autograd.
"""

from __future__ import annotations

import os
from importlib.util import find_spec

import torch
from torch import Tensor
from torch.torch_version import TorchVersion

from mmpola.ops.exp_map import ExpMap
from mmpola.ops.inputs import AttentionInputs, MixAndGateInputs
from mmpola.ops.power_map import PowerMap
from mmpola.ops.tracing import is_forward_mode


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ImportError:  # raised by an import hook that blocks the module
        return False


# Read once at import, so that a compiler that traces `missing` sees constants.
HAS_TRITON = _is_installed('triton')
IS_TOO_OLD = TorchVersion(torch.__version__) < '2.7'
"""Triton 3.2, of torch 2.6, aborts the process when it compiles ExpMap's kernels."""
IS_INTERPRETED = os.environ.get('TRITON_INTERPRET') == '1'

LARGEST_HEAD_DIM = 64
"""No published model has a larger one; states of 128 do not fit most GPUs' shared memory."""

MAPS = (PowerMap, ExpMap)
"""The feature maps that have kernels."""

LOWEST_CAPABILITY = (8, 0)
"""Ampere, the first generation with tf32 products and bfloat16."""

INTERPRETED_PROCESSORS = 2
"""Number of multiprocessors in Triton's interpreter, so that tests cover the split of tokens."""


def missing() -> list[str]:
    """Return the reasons why the kernels cannot run on this machine."""
    reasons = []
    if not HAS_TRITON:
        reasons.append('triton is not installed')
    elif IS_TOO_OLD:
        reasons.append(
            f'torch: expected 2.7 or newer, which has Triton 3.3, got {torch.__version__}'
        )
    if not IS_INTERPRETED and not torch.cuda.is_available():
        reasons.append(
            "no CUDA device (TRITON_INTERPRET=1 runs the kernels in Triton's interpreter)"
        )
    elif not IS_INTERPRETED:
        too_low = _too_low_capability(None)
        if too_low:
            reasons.append(
                f'a GPU of compute capability 8.0 or more is needed, the best here has {too_low}'
            )
    if torch.version.hip is not None:
        reasons.append('written for NVIDIA GPUs, this torch is built for AMD')
    return reasons


def unsupported(inputs: AttentionInputs | MixAndGateInputs) -> list[str]:
    """Return the reasons why the kernels cannot handle these inputs."""
    if isinstance(inputs, AttentionInputs):
        name = 'q'
        x = inputs.q
    else:
        name = 'attended'
        x = inputs.attended
    device = 'cpu' if IS_INTERPRETED else 'cuda'
    reasons = []
    if x.device.type != device:
        reasons.append(f'{name}: expected a {device} tensor, got {x.device.type}')
    elif x.is_cuda:
        too_low = _too_low_capability(x.device)
        if too_low:
            reasons.append(
                f'{name}: expected a GPU of compute capability 8.0 or more, got {too_low}'
            )
    if x.dtype == torch.float64:
        reasons.append(f'{name}: expected float16, bfloat16 or float32, got float64')
    if isinstance(inputs, AttentionInputs) and x.shape[3] > LARGEST_HEAD_DIM:
        reasons.append(
            f'{name}: expected a head dimension D <= {LARGEST_HEAD_DIM}, got D={x.shape[3]}'
        )
    if isinstance(inputs, AttentionInputs) and type(inputs.feature_map) not in MAPS:
        name = type(inputs.feature_map).__name__
        reasons.append(f'feature_map: expected PowerMap or ExpMap, got {name}')
    if is_forward_mode():
        reasons.append("forward-mode differentiation: choose backend='torch'")
    if torch.jit.is_tracing() or torch.onnx.is_in_onnx_export():
        reasons.append('tracers and exporters can record plain PyTorch operators only')
    return reasons


def distrusted(inputs: AttentionInputs | MixAndGateInputs) -> list[str]:
    """Return why `backend='auto'` does not use the kernels: what `mmpola gpu` has found."""
    from mmpola.kernels import record  # imports torch._dynamo: slow

    return record.distrusted(inputs)


def _too_low_capability(device: torch.device | None) -> str:
    from mmpola.kernels.record import too_low_capability  # imports torch._dynamo: slow

    return too_low_capability(device, LOWEST_CAPABILITY)


def polarity_attention_triton(inputs: AttentionInputs) -> Tensor:
    """Compute o [B, N, H, D] in q's dtype. The first call imports triton."""
    from mmpola.ops.triton.functions import attend

    return attend(inputs)


def mix_and_gate_triton(inputs: MixAndGateInputs) -> Tensor:
    """Compute y [B, N, C] in the dtype of `attended`. The first call imports triton."""
    from mmpola.ops.triton.functions import mix

    return mix(inputs)


def product_precision(dtype: torch.dtype) -> str:
    """Return 'tf32' for half inputs, which it holds exactly; float32 follows torch's switch."""
    if dtype != torch.float32:
        return 'tf32'
    matmul = torch.backends.cuda.matmul
    if hasattr(matmul, 'fp32_precision'):  # torch >= 2.9, where reading the old switch may raise
        allowed = matmul.fp32_precision == 'tf32'
    else:
        allowed = matmul.allow_tf32
    return 'tf32' if allowed else 'ieee'


def processors_of(device: torch.device) -> int:
    """Return the number of multiprocessors of a device."""
    if device.type != 'cuda':
        return INTERPRETED_PROCESSORS
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def block_of(dim: int) -> int:
    """Return the smallest power of two >= dim, but at least 16, which products need."""
    return max(16, 1 << (dim - 1).bit_length())
