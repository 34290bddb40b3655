"""Check the arguments that the backbones share, and expand them to one value per stage or block."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from timm.layers import calculate_drop_path_rates, to_2tuple

from mmpola.layers import Grid, covering_grid

STRIDES = (4, 8, 16, 32)
"""Pixels per token of the four stages of a pyramid."""

AttnTypes = Sequence[str]
"""For each stage 'L' (linear attention) or 'S' (softmax), or a string with a letter per block."""


def resolve_arch(
    arch: str | dict[str, Any], known: dict[str, dict[str, Any]], keys: Sequence[str]
) -> dict[str, Any]:
    """Return the settings of a named `arch`, or a copy of a dict that has exactly the given keys.

    Raises:
        ValueError: the name is unknown or the keys differ.
    """
    if isinstance(arch, str):
        if arch not in known:
            raise ValueError(f'arch: expected one of {list(known)} or a dict, got {arch!r}')
        return known[arch]
    if not isinstance(arch, dict) or set(arch) != set(keys):
        given = list(arch) if isinstance(arch, dict) else arch
        raise ValueError(f'arch: expected a dict with the keys {list(keys)}, got {given}')
    return dict(arch)


def drop_path_rates(last: float, depths: Sequence[int]) -> list[list[float]]:
    """Return the stochastic depth rate of each block of each stage, from 0 linearly to `last`.

    Args:
        last: the argument `drop_path_rate`.
        depths: blocks of each stage.

    Raises:
        ValueError: `last` is not in [0, 1).
    """
    check_rate('drop_path_rate', last)
    rates: list[Any] = calculate_drop_path_rates(last, sum(depths))
    stages = []
    start = 0
    for depth in depths:
        stages.append(rates[start : start + depth])
        start += depth
    return stages


def token_grid(image_size: int | tuple[int, int], stride: int) -> Grid:
    """Return the token grid (h, w) of an image, given its side or (height, width) in pixels."""
    return covering_grid(to_2tuple(image_size), stride)


def block_types(attn_types: AttnTypes, depths: Sequence[int]) -> list[str]:
    """Expand `attn_types` to one string per stage with one letter per block.

    Raises:
        ValueError: the entries do not match the stages or the blocks, or a letter is unknown.
    """
    if len(attn_types) != len(depths):
        raise ValueError(
            f'attn_types: expected {len(depths)} entries, one per stage, got {attn_types!r}'
        )
    types = []
    for entry, depth in zip(attn_types, depths, strict=True):
        letters = entry
        if len(entry) == 1:
            letters = entry * depth
        if len(letters) != depth or set(letters) - set('LS'):
            raise ValueError(
                f"attn_types: expected one letter of 'LS' or a string of {depth} of them per "
                f'stage, got {entry!r}'
            )
        types.append(letters)
    return types


def check_out_indices(out_indices: Sequence[int], stages: int) -> None:
    """Raise ValueError unless `out_indices` are ascending numbers of stages."""
    known = list(range(stages))
    if not out_indices or list(out_indices) != sorted(set(out_indices) & set(known)):
        raise ValueError(
            f'out_indices: expected ascending stages out of {known}, got {tuple(out_indices)}'
        )


def check_rate(name: str, rate: float) -> None:
    """Raise ValueError unless `rate`, the argument called `name`, is a probability below 1."""
    if not isinstance(rate, (int, float)) or not 0 <= rate < 1:
        raise ValueError(f'{name}: expected a number in [0, 1), got {rate!r}')


def check_sr_ratios(name: str, ratios: Sequence[int]) -> None:
    """Raise ValueError unless `ratios`, the argument called `name`, has a stride per stage."""
    are_strides = all(isinstance(ratio, int) and ratio >= 1 for ratio in ratios)
    if len(ratios) != len(STRIDES) or not are_strides:
        raise ValueError(f'{name}: expected four positive integers, one per stage, got {ratios!r}')


def check_heads(embed_dims: Sequence[int], num_heads: Sequence[int], multiple: int = 2) -> None:
    """Raise ValueError unless the channels of every stage divide into heads.

    Args:
        embed_dims: channels of each stage.
        num_heads: heads of each stage.
        multiple: number that must divide the channels of a head: 2, because values split into two
            streams, or 4, because rotary positions are pairs, some for rows and some for columns.
    """
    for dim, heads in zip(embed_dims, num_heads, strict=True):
        if dim % heads:
            raise ValueError(
                f'embed_dims: expected multiples of num_heads, got {dim} channels and {heads} heads'
            )
        if dim // heads % multiple:
            raise ValueError(
                f'num_heads: expected a head dimension that is a multiple of {multiple}, '
                f'got {dim} // {heads} = {dim // heads}'
            )
