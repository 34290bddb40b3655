"""The public operator `mix_and_gate`, between attention and the output projection: its contract and its errors."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from mmpola.ops.backends import choose_backend
from mmpola.ops.inputs import MixAndGateInputs, validate_mix_and_gate


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
    """Compute y = (o + DWC(v)) * g (E14), where DWC is a depth-wise convolution over the tokens, zero-padded.

    The tokens are the cells of a map or the elements of a sequence.

    Source: PolaFormer (ICLR 2025); equation numbers are those of mmpola/ops/README.md. Differentiable with respect to
    every tensor.

    Args:
        attended: o [B, N, H, D], float16, bfloat16, float32 or float64, any strides.
        values: v [B, N, H, D], of a map in row-major order; dtype and device of `attended`.
        gate: g [B, N, C], C = H * D, dtype and device of `attended`.
        weight: [C, 1, k, k], or [D, 1, k, k] shared by all heads, of a sequence [C, 1, k] or [D, 1, k]; k odd; any of
            the dtypes above.
        bias: one entry per channel of `weight`, or None.
        grid: (h, w) with h * w = N for a map, (N,) for a sequence; N may be 0.
        backend: 'auto' or the name of a backend, see `available_backends()`.

    Returns:
        y [B, N, C] in the dtype of `attended`.

    Raises:
        TypeError: a tensor has an unsupported dtype, or values or gate has another dtype than `attended`.
        ValueError: a shape or device does not fit, or the backend's name is unknown.
        RuntimeError: the named backend cannot run; the message lists every reason.
    """
    inputs = MixAndGateInputs(attended, values, gate, weight, bias, grid)
    validate_mix_and_gate(inputs)
    inputs = inputs.as_map()
    return choose_backend(backend, inputs).mix_and_gate(inputs)
