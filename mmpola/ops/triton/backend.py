"""The `triton` backend as the table of backends sees it; does not import triton."""

from __future__ import annotations

import torch
from torch import Tensor

from mmpola.ops.exp_map import ExpMap
from mmpola.ops.inputs import AttentionInputs, MixAndGateInputs
from mmpola.ops.power_map import PowerMap
from mmpola.ops.tracing import is_forward_mode
from mmpola.ops.triton import HAS_TRITON, IS_INTERPRETED, IS_TOO_OLD

LARGEST_HEAD_DIM = 64
"""No published model has a larger one; states of 128 do not fit most GPUs' shared memory."""

MAPS = (PowerMap, ExpMap)
"""The feature maps that have kernels."""

LOWEST_CAPABILITY = (8, 0)
"""Ampere, the first generation with tf32 products and bfloat16."""


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
    from mmpola.ops import kernel_record  # imports torch._dynamo: slow

    return kernel_record.distrusted(inputs)


def _too_low_capability(device: torch.device | None) -> str:
    from mmpola.ops.kernel_record import too_low_capability  # imports torch._dynamo: slow

    return too_low_capability(device, LOWEST_CAPABILITY)


def polarity_attention_triton(inputs: AttentionInputs) -> Tensor:
    """Compute o [B, N, H, D] in q's dtype. The first call imports triton."""
    from mmpola.ops.triton.attention import attend

    return attend(inputs)


def mix_and_gate_triton(inputs: MixAndGateInputs) -> Tensor:
    """Compute y [B, N, C] in the dtype of `attended`. The first call imports triton."""
    from mmpola.ops.triton.mix_and_gate import mix

    return mix(inputs)
