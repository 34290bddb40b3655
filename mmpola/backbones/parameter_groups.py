"""How optimizers group a backbone's parameters: those without weight decay, and layers in order from image to head."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable

NO_WEIGHT_DECAY = (
    'attn.power',
    'attn.scale',
    'attn.s1',
    'attn.s2',
    'positional_encoding',
    'pos_embed',
    'relative_position_bias_table',
    'gamma_1',
    'gamma_2',
)
"""Substrings of the names of parameters that should have no weight decay, in addition to norms and biases.

Exponents, scales and temperatures of attention, position tables and layer scales: decay would pull exponents to the
middle of their range and shrink tables and branches. `configs/_base_/no_decay.py` lists the same names.
"""

STEM = re.compile(r'(patch_embed|pos_embed)1?(\.|$)')
BLOCK = (  # (stage from 0, block from 0)
    re.compile(r'layers\.(?P<stage>\d+)\.blocks\.(?P<block>\d+)(\.|$)'),
    re.compile(r'block(?P<number>\d+)\.(?P<block>\d+)(\.|$)'),
    re.compile(r'blocks\.(?P<block>\d+)(\.|$)'),
)
ENTRY = (  # down-sampling or patch embedding at the start of a stage
    re.compile(r'layers\.(?P<before>\d+)\.downsample\.'),
    re.compile(r'(patch_embed|pos_embed)(?P<number>\d+)(\.|$)'),
)
STAGE_NORM = re.compile(r'norm(?P<number>\d+)(\.|$)')


def without_weight_decay(names: Iterable[str]) -> set[str]:
    """Return those of the parameter names that contain an entry of `NO_WEIGHT_DECAY`."""
    return {name for name in names if any(part in name for part in NO_WEIGHT_DECAY)}


class BackboneLayers:
    """Numbers the layers of a backbone by its parameters' names: 0 is the stem, 1 ... `number` are the blocks in order.

    Down-sampling, patch embedding and position table at the start of a stage belong to its first block, a norm at the
    end of a stage to its last block. Output norms, which a pretrained file need not have, belong to the heads:
    `number` + 1.

    Args:
        names: names of all parameters of the backbone.
        fresh: prefixes of the output norms' names.
    """

    def __init__(self, names: Iterable[str], fresh: tuple[str, ...] = ()) -> None:
        depths: dict[int, int] = {}
        for name in names:
            place = _block(name)
            if place is not None:
                stage, block = place
                depths[stage] = max(depths.get(stage, 0), block + 1)
        self.starts = [sum(depths[before] for before in range(stage)) for stage in range(len(depths) + 1)]
        self.number = self.starts[-1]
        self.fresh = fresh

    def layer_of(self, name: str) -> int:
        """Return the layer of a parameter, or of a module, by its name.

        Raises:
            ValueError: no rule matches its name.
        """
        if name.startswith(self.fresh):
            return self.number + 1
        if STEM.match(name):
            return 0
        place = _block(name)
        if place is not None:
            stage, block = place
            return self.starts[stage] + block + 1
        for pattern in ENTRY:
            if match := pattern.match(name):
                groups = match.groupdict()
                stage = int(groups['before']) + 1 if 'before' in groups else int(groups['number']) - 1
                return self.starts[stage] + 1
        if match := STAGE_NORM.match(name):
            return self.starts[int(match['number'])]
        raise ValueError(f'layer-wise decay: expected the name of a known layer of the backbone, got {name!r}')

    def stage_of(self, layer: int) -> int:
        """Return a layer's group at one group per stage: 0 is the stem, then the stages, then the heads."""
        return bisect_left(self.starts, layer)


def _block(name: str) -> tuple[int, int] | None:
    """Return (stage, block), both from 0, of a parameter inside a block, None for others."""
    for pattern in BLOCK:
        if match := pattern.match(name):
            groups = match.groupdict()
            stage = int(groups['stage']) if 'stage' in groups else int(groups.get('number', 1)) - 1
            return stage, int(groups['block'])
    return None
