"""What a GPU must be able to do. Apart from `support.py`, since torch.compiler brings torch._dynamo, slow to import."""

from __future__ import annotations

from functools import cache

import torch

LOWEST = (8, 0)
"""Ampere: the first with tf32 products and bfloat16."""


@torch.compiler.assume_constant_result
def too_low(device: torch.device | None) -> str:
    """The compute capability of a CUDA device, of the best one for None, where the kernels need more; else ''."""
    return _too_low(device)


@cache  # asked at every call, and the driver takes its time
def _too_low(device: torch.device | None) -> str:
    devices = range(torch.cuda.device_count()) if device is None else [device]
    found = max(torch.cuda.get_device_capability(i) for i in devices)
    return '' if found >= LOWEST else '{}.{}'.format(*found)
