"""The public operator: contract and errors."""

from __future__ import annotations

from torch import Tensor

from mmpola.ops.backends import choose_backend
from mmpola.ops.feature_map import FeatureMap
from mmpola.ops.inputs import AttentionInputs, validate
from mmpola.ops.numerics import EPS


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
    """Polarity-aware linear attention, O((N + M) D^2): E1-E8 with a PowerMap, E9-E13 with an ExpMap.

    Source: PolaFormer (ICLR 2025), eq. 3-9, and PolaFormer++; numbered in mmpola/ops/README.md. Differentiable with
    respect to every tensor but `rotary`. Features, sums and the normaliser are float32 (float64 for float64 input).

    Args:
        q: queries [B, N, H, D], float16, bfloat16, float32 or float64, any strides; D even.
        k: keys [B, M, H, D], dtype and device of q, M >= 1.
        v: values [B, M, H, D]; channels [: D/2] are the same-signed stream, [D/2 :] the opposite-signed one.
        feature_map: PowerMap(exponent [H, D], scale [H, D] or None) or ExpMap(same [H, 2D], opposite [H, 2D]).
        key_position: [M, H, D] added to k, or None.
        rotary: (cos, sin), each [N, 2D], interleaved pairs of one angle; ExpMap only, for the numerator; needs M = N.
        eps: added to the normaliser.
        backend: 'auto', or the name of a backend, see `available_backends()`.

    Returns:
        o [B, N, H, D] in q's dtype.

    Raises:
        TypeError: a tensor has an unsupported dtype, or another one than q.
        ValueError: a shape or device does not fit, or the backend's name is unknown.
        RuntimeError: the named backend cannot run; lists every reason.
    """
    inputs = AttentionInputs(q, k, v, feature_map, key_position, rotary, eps)
    validate(inputs)
    return choose_backend(backend, inputs).attend(inputs)
