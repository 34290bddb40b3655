"""Rotary positions (E10): the angles of token maps and sequences, and their rotation."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from mmpola.ops.numerics import accumulation_dtype, without_autocast
from mmpola.ops.reference import rotate, rotate_by_complex
from mmpola.ops.tracing import CacheKey, cache_key, is_recorded


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

    The default dtype is that of x, but float16 for both half precisions: float32 tables would be
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


def rotate_queries_and_keys(qk: Tensor, grid: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Rotate the interleaved channel pairs of queries and keys by the angles of `rotary_tables`.

    Half-precision inputs are rotated in float32. Rotating them in half precision would save less
    than 2 percent of a training step's memory traffic, and make the error of the attended values
    1.4 times as large.

    Args:
        qk: [B, N, 2 * H, D], the heads of the queries before those of the keys.
        grid: (h, w) with h * w = N.

    Returns:
        q and k, each [B, N, H, D], in the dtype of `qk`.
    """
    dtype = accumulation_dtype(qk.dtype)
    if is_recorded():  # compilers and exporters support no complex numbers
        rotary = rotary_tables(grid, qk.shape[-1], qk.device, dtype)
        rotated = rotate(qk.transpose(1, 2), rotary).to(qk.dtype).transpose(1, 2)
        q, k = rotated.chunk(2, dim=2)
        return q, k
    key = cache_key(qk)
    if key is None:
        rotation, inverse = _complex_rotations(grid, qk.shape[-1], qk.device, dtype)
    else:
        rotation, inverse = _cached_complex_rotations(key, tuple(grid), qk.shape[-1], dtype)
    return _RotateQueriesAndKeys.apply(qk, rotation, inverse)


def _complex_rotations(
    grid: Sequence[int], channels: int, device: torch.device, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Compute exp(i angle) and exp(-i angle) of all tokens and pairs, each [N, 1, channels / 2]."""
    cos, sin = rotary_tables(grid, channels, device, dtype)
    cos = cos[:, None, ::2].contiguous()
    sin = sin[:, None, ::2].contiguous()
    return torch.complex(cos, sin), torch.complex(cos, -sin)


@lru_cache(maxsize=8)
def _cached_complex_rotations(
    key: CacheKey, grid: tuple[int, ...], channels: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Compute `_complex_rotations`; `key` is what `cache_key` returns."""
    device, _ = key
    with torch.inference_mode(False):  # else autograd could not save them later
        return _complex_rotations(grid, channels, device, dtype)


class _RotateQueriesAndKeys(Function):
    """One complex product per pass; recorded by autograd, the rotation would launch six kernels."""

    @staticmethod
    def forward(ctx: Any, qk: Tensor, rotation: Tensor, inverse: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(inverse)
        rotated = rotate_by_complex(qk.to(rotation.real.dtype), rotation).to(qk.dtype)
        q, k = rotated.chunk(2, dim=2)
        return q, k

    @staticmethod
    def backward(ctx: Any, dq: Tensor, dk: Tensor) -> tuple[Tensor, None, None]:
        (inverse,) = ctx.saved_tensors
        batch, tokens, heads, dim = dq.shape
        dtype = inverse.real.dtype
        grad = torch.empty(batch, tokens, 2 * heads, dim, device=dq.device, dtype=dtype)
        grad[:, :, :heads] = dq
        grad[:, :, heads:] = dk
        return rotate_by_complex(grad, inverse).to(dq.dtype), None, None
