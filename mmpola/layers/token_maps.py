"""Token maps of any size: patches of images, padding, reduction, and learned position tables."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from mmpola.ops.numerics import accumulation_dtype
from mmpola.ops.tracing import is_traced

Grid = tuple[int, int]
"""(rows, columns) of a token map."""

SAVED_GRIDS = 'position_tables'
"""Entry of a module in the metadata of a state dict: a dict from the name of a table to (h, w)."""


def covering_grid(grid: Grid, size: int) -> Grid:
    """Return how many cells of `size` x `size` cover a map: (ceil(h / size), ceil(w / size))."""
    return (grid[0] + size - 1) // size, (grid[1] + size - 1) // size


def pad_to_cells(
    x: Tensor, grid: Grid, size: int, *, channels_last: bool, mode: str = 'constant'
) -> Tensor:
    """Pad a map below and on the right so that cells of `size` x `size` divide it.

    Compilers and exporters record the padding even where it is 0, so that their graph serves every
    image size. The amounts are written so that the padded sides simplify to multiples of `size`:
    nested remainders would make symbolic shapes grow with every layer.

    Args:
        x: [B, C, h, w], or [B, h, w, C] with `channels_last`.
        grid: (h, w).
        size: side of a cell.
        channels_last: whether x is [B, h, w, C].
        mode: of torch.nn.functional.pad: 'constant' pads with zeros, 'replicate' (not with
            `channels_last`) with the last row and column.
    """
    if not is_traced() and grid[0] % size == 0 and grid[1] % size == 0:
        return x
    cell_rows, cell_columns = covering_grid(grid, size)
    below = cell_rows * size - grid[0]
    right = cell_columns * size - grid[1]
    if channels_last:
        return F.pad(x, (0, 0, 0, right, 0, below), mode=mode)
    return F.pad(x, (0, right, 0, below), mode=mode)


class PatchEmbed(nn.Module):
    """Embed patches of s x s pixels: [B, in_channels, H, W] -> a map [B, h, w, C] of tokens.

    Sides that s does not divide are padded with zeros below and on the right. timm's PatchEmbed has
    the same parameters.

    Args:
        in_channels: channels of the image or map.
        dim: channels C of a token.
        patch_size: s.
        norm: whether to end with a LayerNorm.
    """

    def __init__(
        self, in_channels: int, dim: int, patch_size: int = 4, *, norm: bool = True
    ) -> None:
        super().__init__()
        self.patch_size = patch_size
        self.proj = nn.Conv2d(in_channels, dim, kernel_size=patch_size, stride=patch_size)
        self.norm = nn.LayerNorm(dim) if norm else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """x [B, in_channels, H, W] -> [B, ceil(H / s), ceil(W / s), C]."""
        grid = (x.shape[2], x.shape[3])
        maps = self.proj(pad_to_cells(x, grid, self.patch_size, channels_last=False))
        return self.norm(maps.permute(0, 2, 3, 1))


def convolve_on_grid(x: Tensor, grid: Grid, conv: nn.Module) -> Tensor:
    """Apply a convolution of maps that keeps their size to tokens [B, N, C] on `grid`."""
    maps = x.unflatten(1, grid).permute(0, 3, 1, 2)  # channels last: a view
    return conv(maps).flatten(2).transpose(1, 2)


def reduce_tokens(
    x: Tensor, grid: Grid, conv: nn.Conv2d, norm: nn.LayerNorm
) -> tuple[Tensor, Grid]:
    """Reduce tokens [B, N, C] on `grid` to [B, M, C] and their grid by a strided convolution.

    The kernel of the convolution is as large as its stride. If the stride does not divide the map,
    the last row and column are repeated: the convolution then reads every token and no zeros, even
    if the map is smaller than its kernel.
    """
    ratio = conv.stride[0]
    maps = x.unflatten(1, grid).permute(0, 3, 1, 2)
    maps = pad_to_cells(maps, grid, ratio, channels_last=False, mode='replicate')
    tokens = norm(conv(maps).flatten(2).transpose(1, 2))
    return tokens, covering_grid(grid, ratio)


class HasPositionTable(nn.Module):
    """A module with a learned position table [1, h*w, C] for the tokens of `grid`, or None.

    The grid of the table travels in the metadata of a state dict, where torch keeps the versions of
    modules: the number of tokens does not tell 8 x 32 from 16 x 16.

    Attributes:
        table_name: name of the table's parameter.
        grid: (h, w) of the table.
    """

    table_name: ClassVar[str]
    grid: Grid

    def table_grid(self, tokens: Grid) -> Grid:
        """Return the grid of the table that fits the tokens of a grid: by default, the same."""
        return tokens

    def set_token_grid(self, tokens: Grid) -> None:
        """Replace the table by one for the tokens of another grid; keep one that fits."""
        grid = self.table_grid(tokens)
        table = getattr(self, self.table_name)
        if table is not None and grid != self.grid:
            resized = resize_table(table.detach(), self.grid, grid).contiguous()
            parameter = nn.Parameter(resized, requires_grad=table.requires_grad)
            setattr(self, self.table_name, parameter)
        self.grid = grid

    def _save_to_state_dict(
        self, destination: dict[str, Any], prefix: str, keep_vars: bool
    ) -> None:
        """Save the grid of the table too; the functions of torch and of MMEngine call this."""
        super()._save_to_state_dict(destination, prefix, keep_vars)
        metadata = getattr(destination, '_metadata', None)
        if metadata is not None and getattr(self, self.table_name) is not None:
            metadata[prefix[:-1]][SAVED_GRIDS] = {self.table_name: self.grid}

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, local_metadata: Any, *arguments: Any
    ) -> None:
        """Resize a table of another grid with as many tokens; its shape does not show the grid."""
        key = prefix + self.table_name
        own = getattr(self, self.table_name)
        given = state_dict.get(key)
        if own is not None and isinstance(given, Tensor) and given.shape == own.shape:
            grids = local_metadata.get(SAVED_GRIDS, {})
            grid = fitting_grid(grids.get(self.table_name), given)
            if grid not in (None, self.grid):
                state_dict[key] = resize_table(given, grid, self.grid)
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *arguments)


def fitting_grid(grid: Any, table: Tensor) -> Grid | None:
    """Return the (rows, columns) that a file gives for a table if they fit it, else None."""
    if grid is None or table.ndim != 3 or math.prod(grid) != table.shape[1]:
        return None
    return grid[0], grid[1]


def position_tables(model: nn.Module) -> dict[str, Grid]:
    """Return the grid of each learned position table inside a model, by the parameter's name."""
    grids = {}
    for name, module in model.named_modules():
        if not isinstance(module, HasPositionTable):
            continue
        if getattr(module, module.table_name) is not None:
            parameter_name = f'{name}.{module.table_name}'.removeprefix('.')
            grids[parameter_name] = module.grid
    return grids


def resize_table(table: Tensor, source: Grid, target: Grid, mode: str = 'bilinear') -> Tensor:
    """Resize a position table [1, h*w, C] of grid `source` to [1, h'*w', C] of grid `target`.

    Half-precision tables are interpolated in float32; the dtype is kept. With equal grids the table
    itself is returned, except while tracing, where comparing would fix the image size.

    Args:
        table: the table.
        source: its grid.
        target: the grid to resize it to.
        mode: 'bilinear' or 'bicubic', of `torch.nn.functional.interpolate` without aligned corners.
    """
    if not is_traced() and source == target:
        return table
    maps = table.unflatten(1, source).permute(0, 3, 1, 2)
    wide = maps.to(accumulation_dtype(table.dtype))
    resized = F.interpolate(wide, size=target, mode=mode, align_corners=False)
    return resized.to(table.dtype).flatten(2).transpose(1, 2)
