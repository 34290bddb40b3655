"""Numerical rules of the operator: epsilon, accumulation dtype, supported dtypes.

fp16 cannot hold the features: |x|^p with p up to 5 overflows from |x| of about 9, exp(k) from k of about 11, and
1e-6 is sub-normal. So features, sums and the normaliser live in the accumulation dtype whatever comes in.
"""

import torch

EPS = 1e-6
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which features, sums and the normaliser are computed: float64 for float64, else float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32
