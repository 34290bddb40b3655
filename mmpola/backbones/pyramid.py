"""Turn a backbone's arguments (`arch`, `attn_types`, `out_indices`, ...) into the specification of each stage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, cast

from timm.layers import calculate_drop_path_rates, to_2tuple

from mmpola.layers import Grid, ceil_div

STRIDES = (4, 8, 16, 32)
"""Pixels per token of the four stages of a pyramid."""

AttnTypes = Sequence[str]
"""Per stage 'L' (linear attention) or 'S' (softmax attention), or a string with one of these letters per block."""


@dataclass(frozen=True)
class StageSpec:
    """The specification of one stage of a pyramid."""

    index: int  # from 0
    dim: int  # channels C
    num_heads: int
    mlp_ratio: float  # hidden channels of the MLP, as a multiple of C
    grid: Grid  # token grid of the training images
    blocks: list[tuple[str, float]]  # attention type, 'L' or 'S', and drop path rate of each block


def stage_specs(
    settings: dict[str, Any],
    attn_types: AttnTypes,
    out_indices: Sequence[int],
    pretrain_img_size: int | tuple[int, int],
    drop_path_rate: float | None,
) -> list[StageSpec]:
    """Describe the stages to build: those up to the last of `out_indices`.

    Args:
        settings: `embed_dims`, `depths`, `num_heads` and `mlp_ratios`, four entries each; may hold
            `drop_path_rate`.
        attn_types: see `AttnTypes`.
        out_indices: stages that the backbone returns, from 0, in ascending order.
        pretrain_img_size: side of the training images in pixels, or (height, width).
        drop_path_rate: stochastic depth rate of the network's last block, rising linearly from 0 in
            its first; None: the one in `settings`, or 0.

    Raises:
        ValueError: an argument is invalid; the message names it.
    """
    embed_dims, depths, num_heads = (
        settings['embed_dims'],
        settings['depths'],
        settings['num_heads'],
    )
    check_heads(embed_dims, num_heads)
    built = stages_to_build(out_indices, len(embed_dims))
    letters = block_types(attn_types, depths)
    if drop_path_rate is None:
        drop_path_rate = settings.get('drop_path_rate', 0.0)
    rates = iter(drop_path_rates(drop_path_rate, sum(depths)))
    grids = [token_grid(pretrain_img_size, stride) for stride in STRIDES]
    return [
        StageSpec(
            index=stage,
            dim=embed_dims[stage],
            num_heads=num_heads[stage],
            mlp_ratio=settings['mlp_ratios'][stage],
            grid=grids[stage],
            blocks=list(zip(letters[stage], islice(rates, depths[stage]), strict=True)),
        )
        for stage in range(built)
    ]


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


def stages_to_build(out_indices: Sequence[int], available: int) -> int:
    """Return how many of the available stages must be built to return those of `out_indices`.

    Raises:
        ValueError: `out_indices` is empty, not ascending or names a stage that does not exist.
    """
    stages = list(range(available))
    if not out_indices or list(out_indices) != sorted(set(out_indices) & set(stages)):
        raise ValueError(
            f'out_indices: expected ascending stages out of {stages}, got {tuple(out_indices)}'
        )
    return out_indices[-1] + 1


def drop_path_rates(last: float, blocks: int) -> list[float]:
    """Return the stochastic depth rate of each block, rising linearly from 0 to `last`, the `drop_path_rate`.

    Raises:
        ValueError: `last` is not in [0, 1).
    """
    check_rate('drop_path_rate', last)
    return cast(
        'list[float]', calculate_drop_path_rates(last, blocks)
    )  # timm declares a union with nested lists


def token_grid(image_size: int | tuple[int, int], stride: int) -> Grid:
    """Return the token grid (h, w) of an image, given its side or (height, width) in pixels."""
    return ceil_div(to_2tuple(image_size), stride)


def block_types(attn_types: AttnTypes, depths: Sequence[int], known: str = 'LS') -> list[str]:
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
        letters = entry * depth if len(entry) == 1 else entry
        if len(letters) != depth or set(letters) - set(known):
            raise ValueError(
                f'attn_types: expected one letter of {known!r} or a string of {depth} of them per stage, got {entry!r}'
            )
        types.append(letters)
    return types


def check_rate(name: str, rate: float) -> None:
    """Raise ValueError unless `rate`, the argument called `name`, is a probability below 1."""
    if not isinstance(rate, (int, float)) or not 0 <= rate < 1:
        raise ValueError(f'{name}: expected a number in [0, 1), got {rate!r}')


def check_ratios(name: str, ratios: Sequence[int]) -> None:
    """Raise ValueError unless `ratios`, the argument called `name`, has a stride of at least 1 for each stage."""
    if len(ratios) != len(STRIDES) or any(
        not isinstance(ratio, int) or ratio < 1 for ratio in ratios
    ):
        raise ValueError(f'{name}: expected four positive integers, one per stage, got {ratios!r}')


def check_heads(embed_dims: Sequence[int], num_heads: Sequence[int]) -> None:
    """Raise ValueError unless the channels of every stage divide into heads of an even dimension."""
    for dim, heads in zip(embed_dims, num_heads, strict=True):
        if dim % heads:
            raise ValueError(
                f'embed_dims: expected multiples of num_heads, got {dim} channels and {heads} heads'
            )
        if dim // heads % 2:
            raise ValueError(
                f'num_heads: expected an even head dimension (values split into two streams), '
                f'got {dim} // {heads} = {dim // heads}'
            )
