"""The convolutions that are fused with a gate (E14), as modules that are called.

Whatever works through the hooks of a module then sees them: pruning, weight norm, offloading,
gathering of sharded weights.
"""

from __future__ import annotations

from torch import Tensor, nn

from mmpola.layers.token_maps import Grid
from mmpola.ops import mix_and_gate


class MixAndGate(nn.Conv2d):
    """The depth-wise convolution of a map in (o + DWC(v)) * g, fused with the rest.

    Args:
        channels: channels of the kernels: C, or D = C / H for kernels that H heads share.
        kernel_size: side of a kernel, odd.
    """

    def __init__(self, channels: int, kernel_size: int) -> None:
        padding = kernel_size // 2
        super().__init__(channels, channels, kernel_size, padding=padding, groups=channels)

    def forward(  # type: ignore[override]  # the fused operator has more inputs
        self, attended: Tensor, values: Tensor, gate: Tensor, grid: Grid, backend: str = 'auto'
    ) -> Tensor:
        """Compute `mmpola.ops.mix_and_gate` -> [B, N, C].

        Args:
            attended: o [B, N, H, D].
            values: v [B, N, H, D].
            gate: g [B, N, C].
            grid: (h, w) of the tokens.
            backend: of the operator.
        """
        return mix_and_gate(attended, values, gate, self.weight, self.bias, grid, backend=backend)


class SequenceMixAndGate(nn.Conv1d):
    """`MixAndGate` for the tokens of a sequence.

    Args:
        channels: channels of the kernels: C, or D = C / H for kernels that H heads share.
        kernel_size: taps of a kernel, odd.
    """

    def __init__(self, channels: int, kernel_size: int) -> None:
        padding = kernel_size // 2
        super().__init__(channels, channels, kernel_size, padding=padding, groups=channels)

    def forward(  # type: ignore[override]  # the fused operator has more inputs
        self, attended: Tensor, values: Tensor, gate: Tensor, backend: str = 'auto'
    ) -> Tensor:
        """Compute `mmpola.ops.mix_and_gate` -> [B, N, C].

        Args:
            attended: o [B, N, H, D].
            values: v [B, N, H, D].
            gate: g [B, N, C].
            backend: of the operator.
        """
        grid = (attended.shape[1],)
        return mix_and_gate(attended, values, gate, self.weight, self.bias, grid, backend=backend)
