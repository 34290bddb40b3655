"""The base class of every linear attention layer that runs `mmpola.ops.polarity_attention`."""

from __future__ import annotations

from torch import Tensor, nn

from mmpola.ops import ExpMap, PowerMap
from mmpola.ops.backends import check_backend_name


class PolarityAttention(nn.Module):
    """Polarity-aware linear attention: a subclass has the projections, a feature map and a forward.

    Args:
        num_heads: heads H.
        backend: of `mmpola.ops.polarity_attention` and `mix_and_gate`: 'auto', 'triton' or 'reference'.

    Raises:
        ValueError: `backend` has no such name.
    """

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
