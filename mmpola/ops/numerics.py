"""Numerical rules of both operators: epsilon, dtypes, autocast, error budget.

float16 cannot hold the features: |x|^p with p up to 5 overflows from |x| of about 9, exp(k) from k
of about 11, and 1e-6 is subnormal. Features, sums and the normaliser therefore have the
accumulation dtype, whatever the dtype of the inputs. Exponential features would overflow even
float32 from 88 on, so they are shifted (E11-E13 in README.md).
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from mmpola.ops.tracing import is_traced


def default_eps() -> float:
    """Return the default epsilon of the normaliser (E3).

    With dynamic sizes torch.compile turns a constant of a module into an input of the graph, which
    recomputed blocks cannot share (torch 2.11); this number stays a number.
    """
    return 1e-6


DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
"""Dtypes that the operators take."""


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


# The budget is 1.3 to 2.5 times the largest excess that was measured on 9 shapes in Triton's
# interpreter, with tf32 products cut and bfloat16 results rounded as on the hardware (as in
# tests/ops/test_triton_values.py):
#
#                      o        gradient of q   of k and v   of a scale
#     float16          2.3e-4   6.5e-4          4.2e-4       2.2e-3
#     bfloat16         1e-4     2.1e-3          1e-4         5.2e-3
#     float32          0        all gradients up to 5.3e-7
#     float32 as tf32  4.0e-4   all gradients up to 5.0e-4; float16's budget
#
# The gradients of q, exponent and scale are less accurate because they need do·o (E15).
BACKEND_EXCESS = {
    torch.float16: (4e-4, 3e-3),
    torch.bfloat16: (2.5e-4, 7e-3),
    torch.float32: (1e-7, 1e-6),
}
"""How much larger than the reference's a backend's relative error may be (o, gradients).

Both errors are measured against float64; the reference computes in the backend's dtype.
"""
