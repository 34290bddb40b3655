"""The second public operator, after attention and before the output projection: contract and errors."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from mmpola.ops.backends import choose_backend
from mmpola.ops.epilogue_inputs import EpilogueInputs, validate_epilogue


def mix_and_gate(
    attended: Tensor,
    values: Tensor,
    gate: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    grid: Sequence[int],
    *,
    backend: str = 'auto',
) -> Tensor:
    """y = (o + DWC(v)) * g (E14), DWC a depth-wise convolution of the map that tokens form, zeros around it.

    Source: PolaFormer (ICLR 2025); numbered in mmpola/ops/README.md. Differentiable with respect to every tensor.

    Args:
        attended: o [B, N, H, D], float16, bfloat16, float32 or float64, any strides.
        values: v [B, N, H, D] on the token grid, row by row, dtype and device of `attended`.
        gate: g [B, N, C], C = H * D, dtype and device of `attended`.
        weight: [C, 1, k, k], or [D, 1, k, k] shared by all heads; k odd; any of the dtypes above.
        bias: one entry per channel of `weight`, or None.
        grid: (h, w) with h * w = N.
        backend: 'auto', or the name of a backend, see `available_backends()`.

    Returns:
        y [B, N, C] in the dtype of `attended`.

    Raises:
        TypeError: a tensor has an unsupported dtype, or another one than `attended`.
        ValueError: a shape or device does not fit, or the backend's name is unknown.
        RuntimeError: the named backend cannot run; lists every reason.
    """
    inputs = EpilogueInputs(attended, values, gate, weight, bias, grid)
    validate_epilogue(inputs)
    return choose_backend(backend, inputs).mix_and_gate(inputs)
