"""The base class of every linear attention layer that runs `mmpola.ops.polarity_attention`."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from mmpola.layers.position import Grid
from mmpola.ops import ExpMap, PowerMap, mix_and_gate, polarity_attention
from mmpola.ops.backends import check_backend_name
from mmpola.ops.inputs import AttentionInputs, MixAndGateInputs
from mmpola.ops.numerics import EPS


class PolarityAttention(nn.Module):
    """Polarity-aware linear attention; a subclass adds projections, a feature map and `forward`.

    Args:
        num_heads: heads H.
        backend: backend of `mmpola.ops.polarity_attention` and `mix_and_gate`: 'auto', 'triton' or 'reference'.

    Attributes:
        observer: None, or a function that is called with the inputs of both operators, in the order in which they run;
            `mmpola.analysis` sets it.
        complete: whether `forward` runs both operators, as in the published layers; False in some ablations.

    Raises:
        ValueError: `backend` is not the name of a backend.
    """

    observer: Callable[[AttentionInputs | MixAndGateInputs], None] | None = None
    complete = True

    def __init__(self, num_heads: int, backend: str) -> None:
        check_backend_name(backend)
        super().__init__()
        self.num_heads = num_heads
        self.backend = backend

    def feature_map(self) -> PowerMap | ExpMap:
        """Return the feature map of queries and keys that the current parameters define."""
        raise NotImplementedError

    def split_heads(self, x: Tensor) -> Tensor:
        """Split the channels into heads: [..., C] -> [..., H, D] with D = C / H, a view."""
        return x.unflatten(-1, (self.num_heads, -1))

    def run_attention(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        key_position: Tensor | None = None,
        rotary: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        """Run `polarity_attention` with the layer's feature map and backend: [B, N, H, D]."""
        features = self.feature_map()
        if self.observer is not None:
            self.observer(AttentionInputs(q, k, v, features, key_position, rotary, EPS))
        return polarity_attention(q, k, v, features, key_position=key_position, rotary=rotary, backend=self.backend)

    def run_mix_and_gate(self, attended: Tensor, values: Tensor, gate: Tensor, conv: nn.Conv2d, grid: Grid) -> Tensor:
        """Run `mix_and_gate` with the weights of `conv` and the layer's backend: [B, N, C]."""
        if self.observer is not None:
            self.observer(MixAndGateInputs(attended, values, gate, conv.weight, conv.bias, grid))
        return mix_and_gate(attended, values, gate, conv.weight, conv.bias, grid, backend=self.backend)
