"""The arguments of both operators: what a feature map brings, and one bundle for each operator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from torch import Tensor

Gradients = list[Tensor | None]
"""Gradients of q, k, v, key position and the map's two parameters; None where not needed."""

Features = tuple[Tensor, Tensor | float]
"""Features of the queries of one stream [B, H, N, 2D] and their epsilon, a number or [B, H, N, 1].
"""


class FeatureMap:
    """How queries and keys become non-negative features (E4-E9), and what depends on it.

    A map is a frozen dataclass of two tensors; the second may be None. The backend `torch` calls
    its methods, in which tensors are [B, H, N, D], heads before tokens. The backend `triton` has
    kernels whose names contain `KIND`.
    """

    KIND: ClassVar[str]
    AXES: ClassVar[dict[str, tuple[str, ...]]]
    """Names of the parameters, and the axes of each: 'H', 'D' or '2D'."""
    OPTIONAL: ClassVar[tuple[str, ...]] = ()
    """Names of the parameters that may be None."""
    TAKES_ROTARY: ClassVar[bool]

    def parameters(self) -> dict[str, Tensor | None]:
        """Return the map's two tensors by name."""
        raise NotImplementedError

    def features(
        self, q: Tensor, k: Tensor, eps: float, paired: bool
    ) -> tuple[Tensor, Features, Features]:
        """Compute the features of keys, and of queries for the same- and opposite-signed stream.

        In plain PyTorch, for autograd, compilers and exporters.

        Args:
            q: [B, H, N, D].
            k: [B, H, M, D], with the key position.
            eps: epsilon of the normaliser.
            paired: whether rotary tables will mix the two channels of an interleaved pair.

        Returns:
            psi [B, H, M, 2D], (phi_same, its epsilon), (phi_opposite, its epsilon).
        """
        raise NotImplementedError

    def attention(self, inputs: AttentionInputs) -> Tensor:
        """Compute o [B, N, H, D] (E1-E13) in plain PyTorch, in the dtype of the inputs."""
        raise NotImplementedError

    def chunked_forward(
        self, inputs: AttentionInputs, chunk: int
    ) -> tuple[Tensor, tuple[Tensor | None, ...]]:
        """Compute `attention` in chunks of tokens, in place, unseen by autograd.

        Args:
            inputs: arguments of the operator.
            chunk: number of tokens in a chunk.

        Returns:
            o [B, N, H, D], contiguous, and what else `chunked_backward` needs.
        """
        raise NotImplementedError

    def chunked_backward(
        self,
        inputs: AttentionInputs,
        output: Tensor,
        saved: Sequence[Any],
        grad: Tensor,
        needed: Sequence[bool],
        chunk: int,
    ) -> Gradients:
        """Compute the gradients of the six tensors (E15-E18) in chunks of tokens.

        Args:
            inputs: arguments of the operator.
            output, saved: results of `chunked_forward`.
            grad: gradient of the output, [B, N, H, D].
            needed: which of the six gradients are needed; the others are None.
            chunk: number of tokens in a chunk.
        """
        raise NotImplementedError


Rotary = tuple[Tensor, Tensor] | None


@dataclass(frozen=True, eq=False)
class AttentionInputs:
    """Arguments of `polarity_attention` that fit each other, as `validate_attention` checks."""

    q: Tensor  # [B, N, H, D]
    k: Tensor  # [B, M, H, D]
    v: Tensor  # [B, M, H, D]
    feature_map: FeatureMap
    key_position: Tensor | None  # [M, H, D]
    rotary: Rotary  # (cos, sin), each [N, 2D]
    eps: float

    def tensors(self) -> tuple[Any, ...]:
        """Return the differentiable tensors: q, k, v, key position, two of the feature map."""
        first, second = self.feature_map.parameters().values()
        return self.q, self.k, self.v, self.key_position, first, second


@dataclass(frozen=True, eq=False)
class MixAndGateInputs:
    """Arguments of `mix_and_gate` that fit each other, as `validate_mix_and_gate` checks."""

    attended: Tensor  # [B, N, H, D]
    values: Tensor  # [B, N, H, D]
    gate: Tensor  # [B, N, C], C = H * D
    weight: Tensor  # [D or C, 1, k, k], k odd; for a sequence [D or C, 1, k]
    bias: Tensor | None  # [D or C]
    grid: Sequence[int]  # (h, w), h * w = N; for a sequence (N,)

    def tensors(self) -> tuple[Any, ...]:
        """Return the differentiable tensors: all but the grid."""
        return self.attended, self.values, self.gate, self.weight, self.bias

    def as_map(self) -> MixAndGateInputs:
        """Return a sequence as a map of one row: grid (1, N), weight [D or C, 1, 1, k]."""
        return replace(self, weight=self.weight.unsqueeze(2), grid=(1, *self.grid))
