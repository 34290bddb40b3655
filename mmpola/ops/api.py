"""The two public operators, `polarity_attention` and `mix_and_gate`: contracts and errors."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from mmpola.ops.backends import choose_backend
from mmpola.ops.features import FeatureMap
from mmpola.ops.inputs import (
    AttentionInputs,
    MixAndGateInputs,
    validate_attention,
    validate_mix_and_gate,
)
from mmpola.ops.numerics import EPS, SMALLEST_EPS


def polarity_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    feature_map: FeatureMap,
    *,
    key_position: Tensor | None = None,
    rotary: tuple[Tensor, Tensor] | None = None,
    eps: float = EPS,
    backend: str = 'auto',
) -> Tensor:
    """Compute polarity-aware linear attention (E1-E3) with the features of a map (E4-E13).

    Its time is O((N + M) D^2) per head.

    Source: PolaFormer (ICLR 2025), eq. 3-9, and PolaFormer++; equation numbers are those of
    mmpola/ops/README.md. Differentiable with respect to every tensor except `rotary`. Features,
    sums and the normaliser are computed in float32 (float64 for float64 inputs).

    Args:
        q: queries [B, N, H, D], float16, bfloat16, float32 or float64, any strides; D even; N may
            be 0.
        k: keys [B, M, H, D], dtype and device of q, M >= 1.
        v: values [B, M, H, D]; channels [: D/2] are the same-signed stream, [D/2 :] the
            opposite-signed one.
        feature_map: PowerMap(exponent [H, D], scale [H, D] or None) or ExpMap(same [H, 2D],
            opposite [H, 2D]).
        key_position: [M, H, D] added to k, or None.
        rotary: (cos, sin), each [N, 2D], with equal angles for both channels of an interleaved
            pair; applied to the numerator only. Requires an ExpMap and M = N.
        eps: added to the normaliser, at least the smallest normal float32: a query of zeros gives 0
            even with eps = 0, but its gradient is then not finite.
        backend: 'auto' or the name of a backend, see `available_backends()`.

    Returns:
        o [B, N, H, D] in q's dtype.

    Raises:
        TypeError: a tensor has an unsupported dtype, or k or v has another dtype than q.
        ValueError: a shape or device does not fit, or the backend's name is unknown.
        RuntimeError: the named backend cannot run; the message lists every reason.
    """
    inputs = AttentionInputs(q, k, v, feature_map, key_position, rotary, max(eps, SMALLEST_EPS))
    validate_attention(inputs)
    chosen = choose_backend(backend, inputs, q.device)
    return chosen.polarity_attention(inputs)


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
    """Compute y = (o + DWC(v)) * g (E14) with a zero-padded depth-wise convolution DWC of tokens.

    The tokens are the cells of a map or the elements of a sequence.

    Source: PolaFormer (ICLR 2025); equation numbers are those of mmpola/ops/README.md.
    Differentiable with respect to every tensor.

    Args:
        attended: o [B, N, H, D], float16, bfloat16, float32 or float64, any strides.
        values: v [B, N, H, D], of a map in row-major order; dtype and device of `attended`.
        gate: g [B, N, C], C = H * D, dtype and device of `attended`.
        weight: [C, 1, k, k], or [D, 1, k, k] shared by all heads, of a sequence [C, 1, k] or [D, 1,
            k]; k odd; any of the dtypes above.
        bias: one entry per channel of `weight`, or None.
        grid: (h, w) with h * w = N for a map, (N,) for a sequence; N may be 0.
        backend: 'auto' or the name of a backend, see `available_backends()`.

    Returns:
        y [B, N, C] in the dtype of `attended`.

    Raises:
        TypeError: a tensor has an unsupported dtype, or values or gate has another dtype than
            `attended`.
        ValueError: a shape or device does not fit, or the backend's name is unknown.
        RuntimeError: the named backend cannot run; the message lists every reason.
    """
    inputs = MixAndGateInputs(attended, values, gate, weight, bias, grid)
    validate_mix_and_gate(inputs)
    if len(grid) == 1:
        inputs = inputs.as_map()
    chosen = choose_backend(backend, inputs, attended.device)
    return chosen.mix_and_gate(inputs)
