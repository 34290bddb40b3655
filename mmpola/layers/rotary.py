"""The angles of PolaFormer++'s rotary position embedding on a token grid or along a sequence (E10)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mmpola.ops.numerics import accumulation_dtype, without_autocast

BASE = 10000.0


def rotary_tables(
    grid: Sequence[int], channels: int, device: torch.device | None, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Compute (cos, sin) of the rotation angles, each [N, channels], for interleaved channel pairs.

    On a map, the first half of the channels rotates with the row, the second half with the column; in a sequence, all
    channels rotate with the position. The angular frequencies are 10000^-linspace(0, 1, pairs), for the pairs of an
    axis; timm's rotary embeddings space theirs by arange(n) / n instead.

    Args:
        grid: (h, w) with h * w = N, or (N,) for a sequence.
        channels: channels to rotate, an even number per axis: 2D features in linear attention, D channels in softmax
            attention.
        device, dtype: device and dtype of the tables; the angles are computed in at least float32.
    """
    exact = accumulation_dtype(dtype)
    frequencies = BASE ** -torch.linspace(0, 1, channels // (2 * len(grid)), device=device, dtype=exact)
    angles = [torch.arange(side, device=device, dtype=exact)[:, None] * frequencies for side in grid]

    def table(parts: list[Tensor]) -> Tensor:
        """[h, pairs] and [w, pairs] -> [h * w, channels], each angle for both channels of its pair."""
        maps = []
        for axis, part in enumerate(parts):
            for other in range(len(grid)):
                part = part if other == axis else part.unsqueeze(other)
            maps.append(part.repeat_interleave(2, dim=-1).expand(*grid, -1))
        return torch.cat(maps, dim=-1).flatten(0, -2)

    with without_autocast(frequencies.device):  # in a region of bfloat16 it cannot concatenate float16 tables
        return table([x.cos().to(dtype) for x in angles]), table([x.sin().to(dtype) for x in angles])
