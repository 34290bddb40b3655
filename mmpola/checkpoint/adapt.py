"""Adapt tensors to a model: other input channels, image sizes, windows and numbers of classes."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from mmpola.checkpoint.grids import (
    image_size_grids,
    may_be_square,
    saved_grids,
    saved_image_size,
    set_grids,
    shown_grid,
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

    One channel gets the sum over all, more of them repeat the first ones, scaled to the same sum of
    outputs for equal channels. timm 1.0.21 converts from three channels only.

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
        weights: by the model's names, as `rename` returns them; changed in place.

    Returns:
        The names of the resized tables, with both shapes, and both grids where they are known.
    """
    tables = position_tables(model)
    file_grids = FileGrids(model, weights)
    adapted = {}
    resized = []
    for key, target in model.state_dict().items():
        if key not in weights or not (key in tables or key.endswith(BIAS_TABLE)):
            continue
        x = weights[key]
        if not can_load(x, target) or x.ndim != target.ndim or x.shape[-1] != target.shape[-1]:
            continue
        if key.endswith(BIAS_TABLE):
            table = _resize_windows(x, target)
            grids = ''
        else:
            grid = file_grids.of(key, x, tables[key])
            if grid is None:
                continue
            table = resize_table(x, grid, tables[key], file_grids.mode(key))
            adapted[key] = tables[key]
            grids = f' ({shown_grid(grid)} -> {shown_grid(tables[key])} tokens)'
        if table is not x:
            resized.append(f'{key} {list(x.shape)} -> {list(table.shape)}{grids}')
            weights[key] = table
    set_grids(weights, adapted)
    return resized


def _resize_windows(table: Tensor, target: Tensor) -> Tensor:
    """Resize a table of biases [(2 s - 1)^2, H] to the windows of a model; return others as is."""
    side = math.isqrt(table.shape[0])
    if table.shape == target.shape or side % 2 == 0 or side**2 != table.shape[0]:
        return table
    window_size = (math.isqrt(target.shape[0]) + 1) // 2
    return resize_bias_table(table, window_size)


class FileGrids:
    """The grids of the position tables of a file, and how these are resized.

    Args:
        model: backbone or classifier.
        weights: by the model's names, as `rename` returns them.
    """

    def __init__(self, model: nn.Module, weights: dict[str, Tensor]) -> None:
        self.saved = saved_grids(weights)
        self.by_size: dict[str, Grid] = {}
        img_size = saved_image_size(weights)
        if img_size is not None:
            self.by_size = image_size_grids(model, img_size)

    def of(self, key: str, table: Tensor, own: Grid) -> Grid | None:
        """Return the grid of a table: as saved, by the images' size, or a guess; None if unknown.

        A file that says nothing is square if the model is: the authors train on square images
        only. It has a model's other grid if the number of tokens is equal and is no square.
        """
        if key in self.saved:
            return self.saved[key]
        grid = fitting_grid(self.by_size.get(key), table)
        if grid is not None:
            return grid
        if table.shape[1] == math.prod(own):
            return None if may_be_square(own) else own
        side = math.isqrt(table.shape[1])
        if own[0] != own[1]:
            return None
        return fitting_grid((side, side), table)

    def mode(self, key: str) -> str:
        """Return the mode of `resize_table` for a table."""
        if key.endswith('positional_encoding') and key not in self.saved:
            return 'bicubic'
        return 'bilinear'


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
