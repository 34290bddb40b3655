"""Numerical rules of both operators: epsilon, dtypes, autocast, error budget.

float16 cannot hold the features: |x|^p with p up to 5 overflows from |x| of about 9, exp(k) from k
of about 11, and 1e-6 is subnormal. Features, sums and the normaliser are therefore kept in the
accumulation dtype for every input dtype. Exponential features would overflow even float32 from 88
on, so they are shifted (E11-E13 in README.md).
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from mmpola.ops.tracing import is_traced

EPS = 1e-6
SMALLEST_EPS = torch.finfo(torch.float32).tiny
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of features, sums and normaliser: float64 for float64, else float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def without_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """Return a context without autocast: the operators choose their dtypes themselves."""
    if device.type == 'meta' or not (is_traced() or torch.is_autocast_enabled(device.type)):
        return nullcontext()
    return torch.autocast(device.type, enabled=False)


def autocast_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype to which autocast converts x for a linear layer; x's own while tracing."""
    device = x.device.type
    if device == 'meta' or not torch.is_autocast_enabled(device):
        return x.dtype
    if x.dtype == torch.float64 or is_traced():
        return x.dtype
    return torch.get_autocast_dtype(device)


# Measured (tests/ops/test_triton_values.py with MMPOLA_PRINT_ERRORS=1) on 9 shapes in Triton's
# interpreter, with tf32 products cut and bfloat16 results rounded as on the hardware. The budget is
# 1.3 to 2.5 times the largest excess:   float16   o 2.3e-4, gradients 2.2e-3 (of a scale, summed
# over 20 queries; of q 6.5e-4, of k and v 4.2e-4)   bfloat16  o 1e-4, gradients 5.2e-3 (of a scale;
# of q 2.1e-3, of k and v 1e-4)   float32   o 0, gradients 5.3e-7, in full precision; with torch's
# tf32 switch on: o 4.0e-4, gradients 5.0e-4 Gradients of q, exponent and scale need do·o of (E15),
# for which a PowerMap's kernel reads o as it was rounded.
BACKEND_EXCESS = {
    torch.float16: (4e-4, 3e-3),
    torch.bfloat16: (2.5e-4, 7e-3),
    torch.float32: (1e-7, 1e-6),
}
"""How much larger than the reference's a backend's relative error may be (o, gradients).

Both errors are measured against float64; the reference computes in the backend's dtype.
"""
