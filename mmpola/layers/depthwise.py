"""Depth-wise convolutions of tokens, as modules that are called.

Whatever works through the hooks of a module then sees them: pruning, weight norm, offloading,
gathering of sharded weights.
"""

from __future__ import annotations

from torch import Tensor, nn

from mmpola.layers.token_maps import Grid
from mmpola.ops import mix_and_gate
from mmpola.ops.reference import convolve_tokens


class DepthwiseConv(nn.Conv2d):
    """Depth-wise convolution that keeps the size of a map.

    Args:
        channels: channels of the kernels: C, or D = C / H for kernels that H heads share.
        kernel_size: side of a kernel, odd.
    """

    def __init__(self, channels: int, kernel_size: int) -> None:
        padding = kernel_size // 2
        super().__init__(channels, channels, kernel_size, padding=padding, groups=channels)

    def forward(self, x: Tensor, grid: Grid | None = None) -> Tensor:
        """Convolve tokens [B, N, C] on `grid`, or a map [B, channels, h, w] without one."""
        if grid is None:
            return super().forward(x)
        return convolve_tokens(x, self.weight, self.bias, grid)


class MixAndGate(nn.Conv2d):
    """The depth-wise convolution of (E14), fused with what follows it: (o + DWC(v)) * g.

    Args:
        channels, kernel_size: see `DepthwiseConv`.
    """

    def __init__(self, channels: int, kernel_size: int) -> None:
        padding = kernel_size // 2
        super().__init__(channels, channels, kernel_size, padding=padding, groups=channels)

    def forward(
        self,
        attended: Tensor,
        values: Tensor | None = None,
        gate: Tensor | None = None,
        grid: Grid | None = None,
        backend: str = 'auto',
    ) -> Tensor:
        """Compute `mmpola.ops.mix_and_gate`; convolve a map [B, channels, h, w] without `values`.

        Args:
            attended: o [B, N, H, D].
            values: v [B, N, H, D].
            gate: g [B, N, C].
            grid: (h, w) of the tokens.
            backend: of the operator.

        Returns:
            [B, N, C].
        """
        if values is None or gate is None or grid is None:
            return super().forward(attended)
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
