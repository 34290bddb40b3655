"""The grids of position tables in files: 256 tokens may be 16 x 16 or 8 x 32.

Every module with a table writes its grid into the metadata of a state dict (see
`mmpola.layers.HasPositionTable`), which torch.save keeps. A .safetensors file has the grids that
`safetensors_metadata` returns. The authors' files name none, but their config has the side of the
images.
"""

from __future__ import annotations

import json
import math
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from mmpola.layers import SAVED_GRIDS, Grid, fitting_grid

SAFETENSORS_KEY = 'mmpola.position_tables'
"""Entry of a .safetensors file's metadata: a JSON object from the name of a table to its grid."""

IMG_SIZE = 'img_size'
"""Entry of a whole model in the metadata of a state dict: (height, width) of the authors' images,
which are square."""


def metadata_of(weights: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the metadata of a state dict by the names of modules; empty if it has none."""
    return getattr(weights, '_metadata', None) or {}


def saved_grids(weights: Mapping[str, Any]) -> dict[str, Grid]:
    """Return the grids in the metadata of a state dict, by the names of the tables."""
    grids = {}
    for module, entries in metadata_of(weights).items():
        for table, value in entries.get(SAVED_GRIDS, {}).items():
            name = f'{module}.{table}'.removeprefix('.')
            if name in weights:
                grid = fitting_grid(value, weights[name])
                if grid is not None:
                    grids[name] = grid
    return grids


def names_square_images(weights: Mapping[str, Any]) -> bool:
    """Whether the metadata of a state dict says that it was trained on square images."""
    return IMG_SIZE in metadata_of(weights).get('', {})


def with_metadata(
    tensors: Mapping[str, Any], source: Mapping[str, Any], grids: Mapping[str, Grid] | None = None
) -> OrderedDict[str, Any]:
    """Return a state dict with the metadata of the one that its tensors are from.

    Load hooks tell by the versions of modules which names a file uses.

    Args:
        tensors: by name.
        source: the state dict.
        grids: of the tables by the names in `tensors`; None for the same names as in `source`.
    """
    if grids is None:
        grids = saved_grids(source)
    metadata: OrderedDict[str, Any] = OrderedDict()
    for module, entries in metadata_of(source).items():
        metadata[module] = {key: x for key, x in entries.items() if key != SAVED_GRIDS}
    for name, grid in grids.items():
        if name in tensors:
            module, _, table = name.rpartition('.')
            metadata.setdefault(module, {}).setdefault(SAVED_GRIDS, {})[table] = grid
    state_dict = OrderedDict(tensors)
    vars(state_dict)['_metadata'] = metadata
    return state_dict


def with_image_size(weights: Mapping[str, Any], img_size: tuple[int, int]) -> OrderedDict[str, Any]:
    """Return a state dict whose metadata has the size of the training images (height, width)."""
    state_dict = with_metadata(weights, weights)
    vars(state_dict)['_metadata'].setdefault('', {})[IMG_SIZE] = img_size
    return state_dict


def authors_image_size(content: Mapping[Any, Any]) -> tuple[int, int] | None:
    """Return the size of the images in the config of an authors' file, which are square, or None.

    Args:
        content: what `read_checkpoint` returned.
    """
    config = content.get('config')
    data = config.get('DATA') if isinstance(config, Mapping) else None
    side = data.get('IMG_SIZE') if isinstance(data, Mapping) else None
    if type(side) is not int or side < 1:
        return None
    return side, side


def may_be_square(grid: Grid) -> bool:
    """Whether a grid that is not square has as many tokens as a square one: 8 x 32, 16 x 16."""
    tokens = math.prod(grid)
    return grid[0] != grid[1] and math.isqrt(tokens) ** 2 == tokens


def shown_grid(grid: Grid) -> str:
    """Return a grid for messages: '8 x 32'."""
    return f'{grid[0]} x {grid[1]}'


def safetensors_metadata(state_dict: Mapping[str, Any]) -> dict[str, str]:
    """Return the grids of a state dict for the `metadata` of `safetensors.torch.save_file`.

    `read_checkpoint` reads them again. Without them a file does not tell 8 x 32 tokens from
    16 x 16.
    """
    return {SAFETENSORS_KEY: json.dumps(saved_grids(state_dict))}


def read_safetensors_metadata(
    weights: Mapping[str, Tensor], metadata: Mapping[str, str] | None
) -> Mapping[str, Tensor]:
    """Return the tensors of a .safetensors file with the grids that its metadata names.

    Raises:
        ValueError: the entry is no JSON.
    """
    grids = json.loads((metadata or {}).get(SAFETENSORS_KEY, '{}'))
    return with_metadata(weights, {}, grids)
