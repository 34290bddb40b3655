"""The grids of position tables in files: 256 tokens may be 16 x 16 or 8 x 32.

They travel in the metadata of a state dict (see `mmpola.layers.HasPositionTable`), which torch.save
writes; `safetensors_metadata` writes them into a .safetensors file. The authors' files have none,
but their config has the side of the images.
"""

from __future__ import annotations

import json
import math
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from mmpola.layers import SAVED_GRIDS, Grid, fitting_grid

SAFETENSORS_KEY = 'mmpola.position_tables'
"""Entry of a .safetensors file's metadata: a JSON object from the name of a table to its grid."""

IMG_SIZE = 'img_size'
"""Entry of a whole model in the metadata of a state dict: (height, width) of its images."""


def saved_grids(weights: Mapping[str, Any]) -> dict[str, Grid]:
    """Return the grids in the metadata of a state dict, by the names of the tables."""
    grids = {}
    for module, entries in metadata_of(weights).items():
        if not isinstance(entries, Mapping) or not isinstance(entries.get(SAVED_GRIDS), Mapping):
            continue
        for table, value in entries[SAVED_GRIDS].items():
            name = f'{module}.{table}'.removeprefix('.')
            if name in weights:
                grid = fitting_grid(value, weights[name])
                if grid is not None:
                    grids[name] = grid
    return grids


def saved_image_size(weights: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return (height, width) of the images in the metadata of a state dict, or None."""
    root = metadata_of(weights).get('', {})
    return root.get(IMG_SIZE) if isinstance(root, Mapping) else None


def metadata_of(weights: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the metadata of a state dict by the names of modules; empty if it has none."""
    metadata = getattr(weights, '_metadata', None)
    if not isinstance(metadata, Mapping):
        return {}
    return metadata


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
        if isinstance(entries, Mapping):
            metadata[module] = {key: x for key, x in entries.items() if key != SAVED_GRIDS}
    for name, grid in grids.items():
        if name in tensors:
            module, _, table = name.rpartition('.')
            metadata.setdefault(module, {}).setdefault(SAVED_GRIDS, {})[table] = grid
    state_dict = OrderedDict(tensors)
    if metadata:
        vars(state_dict)['_metadata'] = metadata
    return state_dict


def set_grids(weights: dict[str, Any], grids: Mapping[str, Grid]) -> None:
    """Set the grids of tables in the metadata of a state dict that `with_metadata` returned."""
    known = saved_grids(weights) | dict(grids)
    vars(weights).update(vars(with_metadata(weights, weights, known)))


def image_size_grids(model: nn.Module, img_size: tuple[int, int]) -> dict[str, Grid]:
    """Return the grids of the tables inside a model at an image size, by their names."""
    table_grids: Any = getattr(model, 'table_grids', None)
    if table_grids is None:
        return {}
    grids: dict[str, Grid] = table_grids(img_size)
    return grids


def may_be_square(grid: Grid) -> bool:
    """Whether a grid that is not square has as many tokens as a square one: 8 x 32, 16 x 16."""
    tokens = math.prod(grid)
    return grid[0] != grid[1] and math.isqrt(tokens) ** 2 == tokens


def shown_grid(grid: Grid) -> str:
    """Return a grid for messages: '8 x 32'."""
    return f'{grid[0]} x {grid[1]}'


def with_image_size(weights: Mapping[str, Any], img_size: tuple[int, int]) -> OrderedDict[str, Any]:
    """Return a state dict whose metadata has the size of the training images (height, width)."""
    state_dict = with_metadata(weights, weights)
    metadata = vars(state_dict).setdefault('_metadata', OrderedDict())
    metadata.setdefault('', {})[IMG_SIZE] = img_size
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
    named = json.loads((metadata or {}).get(SAFETENSORS_KEY, '{}'))
    grids = {}
    for name in named if isinstance(named, dict) else ():
        grid = fitting_grid(named[name], weights[name]) if name in weights else None
        if grid is not None:
            grids[name] = grid
    return with_metadata(weights, {}, grids)
