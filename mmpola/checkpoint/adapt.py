"""Adapt tensors to a model: other input channels, image sizes, windows and numbers of classes."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from mmpola.checkpoint.grids import (
    may_be_square,
    metadata_of,
    names_square_images,
    saved_grids,
    shown_grid,
    with_metadata,
)
from mmpola.layers import (
    Grid,
    fitting_grid,
    position_tables,
    resize_bias_table,
    resize_table,
)

STEM_WEIGHT = 'stem.proj.weight'
"""The first convolution of every backbone."""

BIAS_TABLE = 'relative_position_bias_table'
"""End of the name of a table of biases for the positions in a window."""

FLOAT_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
"""Dtypes from which parameters are loaded; torch would also cast integers and complex numbers."""


def drop_other_head(model: nn.Module, weights: dict[str, Tensor]) -> str:
    """Drop the head of a file if it is for another number of classes than a model's.

    Args:
        model: a classifier; any other model has no head, and keeps everything.
        weights: by the model's names; changed in place.

    Returns:
        What happened, for the log; '' if nothing was dropped.
    """
    own = model.state_dict().get('head.weight')
    given = weights.get('head.weight')
    if own is None or given is None or own.shape == given.shape:
        return ''
    del weights['head.weight']
    weights.pop('head.bias', None)
    return f'the head is new, the file has {len(given)} classes and the model {len(own)}'


def adapt_stem(model: nn.Module, weights: dict[str, Tensor]) -> str:
    """Convert the first convolution of a file to the number of input channels of a model.

    Args:
        model: backbone or classifier.
        weights: by the model's names; changed in place.

    Returns:
        What happened, for the log; '' if the numbers of channels are equal.
    """
    own = model.state_dict()
    for key in (STEM_WEIGHT, f'backbone.{STEM_WEIGHT}'):
        if key not in own or key not in weights or weights[key].ndim != 4:
            continue
        given = weights[key].shape[1]
        channels = own[key].shape[1]
        if given != channels:
            weights[key] = convert_channels(weights[key], channels)
            name = key.removesuffix('.weight')
            return f'{name} converted from {given} to {channels} input channels'
    return ''


def convert_channels(weight: Tensor, channels: int) -> Tensor:
    """Convert a convolution [O, I, k, k] to another number of input channels, as timm does.

    A single channel gets the sum over all channels. Several channels repeat the given ones, scaled
    so that an image with equal channels gives the same output. timm 1.0.21 converts from three
    channels only.

    Args:
        weight: any floating point dtype; the sum is taken in float32.
        channels: of the images.
    """
    given = weight.shape[1]
    values = weight.float()
    if channels == 1:
        return values.sum(dim=1, keepdim=True).to(weight.dtype)
    repeated = values.repeat(1, math.ceil(channels / given), 1, 1)[:, :channels]
    return (repeated * (given / channels)).to(weight.dtype)


def adapt_tables(model: nn.Module, weights: dict[str, Tensor]) -> list[str]:
    """Resize the position tables of a file to the grids and windows of a model.

    Tables are resized bilinearly, as in a forward pass. Files without grids are the authors': their
    `load_pretrained` resizes tables of keys and of windows bicubically; it does not resize
    `pos_embed`, which their forward pass resizes bilinearly.

    Args:
        model: backbone or classifier.
        weights: by the model's names, as `rename` returns them; changed in place. A table whose
            grid cannot be known stays as it is, and `compare` refuses it.

    Returns:
        The names of the resized tables, with both shapes, and both grids where they are known.
    """
    saved = saved_grids(weights)
    targets = model.state_dict()
    adapted = dict(saved)
    resized = []
    for key, own in position_tables(model).items():
        if not _can_resize(weights.get(key), targets.get(key)):
            continue
        x = weights[key]
        grid = saved.get(key) or _guessed_grid(x, own, names_square_images(weights))
        if grid is None:
            continue
        mode = 'bilinear'
        if key.endswith('positional_encoding') and key not in saved:
            mode = 'bicubic'
        weights[key] = resize_table(x, grid, own, mode)
        adapted[key] = own
        if grid != own:
            shapes = f'{list(x.shape)} -> {list(weights[key].shape)}'
            resized.append(f'{key} {shapes} ({shown_grid(grid)} -> {shown_grid(own)} tokens)')
    vars(weights)['_metadata'] = metadata_of(with_metadata(weights, weights, adapted))
    for key, target in targets.items():
        if key.endswith(BIAS_TABLE) and _can_resize(weights.get(key), target):
            x = weights[key]
            weights[key] = _resize_windows(x, target)
            if weights[key] is not x:
                resized.append(f'{key} {list(x.shape)} -> {list(weights[key].shape)}')
    return resized


def _can_resize(x: Any, target: Tensor | None) -> bool:
    """Whether an entry of a file is a table with the channels of a model's."""
    if target is None or not is_plain(x) or not can_load(x, target):
        return False
    return x.ndim == target.ndim and x.shape[-1] == target.shape[-1]


def _guessed_grid(table: Tensor, own: Grid, square: bool) -> Grid | None:
    """Return the grid of a table whose file does not name it; None if it cannot be known.

    If the file has square images, or else the model's grid is square, assume a square one: the
    authors train on square images only. Otherwise it is the model's grid if the number of tokens is
    equal and is no square.

    Args:
        table: [1, h*w, C].
        own: the model's grid.
        square: whether the file says that its images are square.
    """
    if square or own[0] == own[1]:
        side = math.isqrt(table.shape[1])
        return fitting_grid((side, side), table)
    if may_be_square(own):
        return None
    return fitting_grid(own, table)


def _resize_windows(table: Tensor, target: Tensor) -> Tensor:
    """Resize a table of biases [(2 s - 1)^2, H] to the windows of a model; return others as is."""
    side = math.isqrt(table.shape[0])
    if table.shape == target.shape or side % 2 == 0 or side**2 != table.shape[0]:
        return table
    window_size = (math.isqrt(target.shape[0]) + 1) // 2
    return resize_bias_table(table, window_size)


def is_plain(x: Any) -> bool:
    """Whether an entry of a state dict is an ordinary tensor, which can be compared with another.

    Quantised models also have tensors of other classes, tuples and dtypes; torch loads those.
    """
    if not isinstance(x, Tensor) or x.is_quantized:
        return False
    return x.is_nested or type(x) in (Tensor, nn.Parameter)


def can_load(x: Tensor, target: Tensor) -> bool:
    """Whether a tensor is dense and has a dtype that can be loaded into a target."""
    return x.layout == torch.strided and not x.is_nested and x.dtype in loadable_dtypes(target)


def loadable_dtypes(target: Tensor) -> tuple[torch.dtype, ...]:
    """Return the dtypes that can be loaded into a target."""
    if target.is_floating_point():
        return FLOAT_DTYPES
    return (target.dtype,)
