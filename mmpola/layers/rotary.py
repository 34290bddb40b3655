"""Rotary positions (E10): the angles of token maps and sequences."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from mmpola.ops.numerics import accumulation_dtype, without_autocast
from mmpola.ops.tracing import CacheKey, cache_key


def rotary_tables(
    grid: Sequence[int], channels: int, device: torch.device | None, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Compute (cos, sin) of the rotation angles, each [N, channels], for interleaved channel pairs.

    On a map, the first half of the channels rotates with the row, the second half with the column;
    in a sequence, all channels rotate with the position. The angular frequencies are
    10000^-linspace(0, 1, pairs), where `pairs` is the number of pairs per axis; timm's rotary
    embeddings have arange(pairs) / pairs instead of linspace.

    Args:
        grid: (h, w), or (n,) for a sequence.
        channels: channels to rotate, an even number per axis: 2D features in linear attention, D
            channels in softmax attention.
        device, dtype: device and dtype of the tables; the angles are computed in at least float32.
    """
    exact = accumulation_dtype(dtype)
    pairs = channels // (2 * len(grid))
    frequencies = 10000.0 ** -torch.linspace(0, 1, pairs, device=device, dtype=exact)
    cosines = []
    sines = []
    for side in grid:
        positions = torch.arange(side, device=device, dtype=exact)
        angles = positions[:, None] * frequencies
        cosines.append(angles.cos().to(dtype))
        sines.append(angles.sin().to(dtype))
    return _spread_over_tokens(cosines), _spread_over_tokens(sines)


def _spread_over_tokens(axes: list[Tensor]) -> Tensor:
    """Expand one table [side, pairs] per axis to [N, channels], equal for both of a pair."""
    doubled = [axis.repeat_interleave(2, dim=-1) for axis in axes]
    if len(axes) == 1:
        return doubled[0]
    height = axes[0].shape[0]
    width = axes[1].shape[0]
    rows = doubled[0].unsqueeze(1).expand(height, width, -1)
    columns = doubled[1].unsqueeze(0).expand(height, width, -1)
    with without_autocast(rows.device):  # bfloat16 autocast cannot concatenate float16 tables
        return torch.cat([rows, columns], dim=-1).flatten(0, 1)


def cached_rotary_tables(
    x: Tensor, grid: Sequence[int], channels: int, dtype: torch.dtype | None = None
) -> tuple[Tensor, Tensor]:
    """Return `rotary_tables` for x and on its device, from a cache that all layers share.

    The default is the dtype of x, but float16 for both half precisions: float32 tables would be
    most of what the kernels of linear attention read, and float16 is as accurate as their products.
    Where nothing may be cached (`cache_key`), the tables are computed.
    """
    if dtype is None:
        dtype = torch.float16 if x.dtype.itemsize == 2 else x.dtype
    key = cache_key(x)
    if key is None:
        return rotary_tables(grid, channels, x.device, dtype)
    return _cached_rotary_tables(key, tuple(grid), channels, dtype)


@lru_cache(maxsize=8)  # the stages of a pyramid need four
def _cached_rotary_tables(
    key: CacheKey, grid: tuple[int, ...], channels: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Compute `rotary_tables`; `key` is what `cache_key` returns."""
    device, _ = key
    with torch.inference_mode(False):  # else autograd could not save them later
        return rotary_tables(grid, channels, device, dtype)
