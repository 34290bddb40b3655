"""Numerical rules of the operator: epsilon, accumulation dtype, supported dtypes, and under what it runs.

fp16 cannot hold the features: |x|^p with p up to 5 overflows from |x| of about 9, exp(k) from k of about 11, and
1e-6 is sub-normal. So features, sums and the normaliser live in the accumulation dtype whatever comes in.
Exponential features leave float32 too, from 88: they are scaled before they are formed (E11-E13 in README.md).
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

EPS = 1e-6
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which features, sums and the normaliser are computed: float64 for float64, else float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def without_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """The operators decide on their dtypes themselves; the meta device knows no autocast."""
    return nullcontext() if device.type == 'meta' else torch.autocast(device.type, enabled=False)


def is_traced() -> bool:
    """Whether a compiler or an exporter is recording these lines."""
    compiler = torch.compiler if hasattr(torch.compiler, 'is_compiling') else torch._dynamo  # torch < 2.3
    return compiler.is_compiling() or torch.jit.is_tracing()


# Measured (tests/ops/triton_cases.py, MMPOLA_PRINT_ERRORS=1) on 9 shapes in Triton's interpreter, tf32 products cut as
# on the hardware, and allowed at 1.3 to 2.5 times the largest excess seen:
#   float16   o 2.5e-4, gradients 1.3e-3 (a parameter's, summed over 20 queries and 40 keys; those of q, k, v 4.1e-4)
#   bfloat16  o 1.6e-3, gradients 3.7e-3; the interpreter cuts to bfloat16 where a GPU rounds to nearest
#   float32   o none, gradients 2e-7, in full precision; with torch's tf32 switch on: o 4.0e-4, gradients 5.0e-4
BACKEND_EXCESS = {
    torch.float16: (4e-4, 2e-3),
    torch.bfloat16: (2.5e-3, 5e-3),
    torch.float32: (1e-7, 5e-7),
}
"""By how much a backend's relative error (to float64) may exceed the same-dtype reference's (o, gradients)."""
