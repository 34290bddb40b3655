"""How optimizers group a backbone's parameters: without weight decay, and by layer."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable

NO_WEIGHT_DECAY = (
    'attn.feature_map',
    'positional_encoding',
    'pos_embed',
    'relative_position_bias_table',
    'gamma_1',
    'gamma_2',
)
"""Substrings of names of parameters without weight decay, in addition to norms and biases.

They are the exponents, scales and temperatures of attention, position tables and layer scales.
Decay would pull exponents to the middle of their range and shrink tables and branches.
"""

BLOCK = re.compile(r'stages\.(\d+)\.blocks\.(\d+)(?:\.|$)')
STAGE = re.compile(r'(stages|norms)\.(\d+)(?:\.|$)')


def without_weight_decay(names: Iterable[str]) -> set[str]:
    """Return the parameter names that contain an entry of `NO_WEIGHT_DECAY`."""
    return {name for name in names if any(part in name for part in NO_WEIGHT_DECAY)}


class BackboneLayers:
    """Numbers the layers of a backbone by name: 0 is the stem, 1 ... `number` are the blocks.

    The down-sampling and the position table at the start of a stage belong to its first block; the
    first stage's belong to the stem. A norm between stages belongs to the block before it. Output
    norms, which a pretrained file may lack, belong to the layer `number` + 1, like the heads.

    Args:
        names: names of all parameters of the backbone.
        optional: prefixes of the output norms' names.
    """

    def __init__(self, names: Iterable[str], optional: tuple[str, ...] = ()) -> None:
        depths: dict[int, int] = {}
        for name in names:
            match = BLOCK.match(name)
            if match:
                stage = int(match[1])
                block = int(match[2])
                depths[stage] = max(depths.get(stage, 0), block + 1)
        self.starts = [0]  # blocks before each stage, and of all stages
        for stage in range(len(depths)):
            self.starts.append(self.starts[-1] + depths[stage])
        self.number = self.starts[-1]
        self.optional = optional

    def layer_of(self, name: str) -> int:
        """Return the layer of a parameter, or of a module, by its name.

        Raises:
            ValueError: it is no name of a backbone.
        """
        if name.startswith(self.optional):
            return self.number + 1
        if name.partition('.')[0] == 'stem':
            return 0
        match = BLOCK.match(name)
        if match:
            return self.starts[int(match[1])] + int(match[2]) + 1
        match = STAGE.match(name)
        if match:
            stage = int(match[2])
            if match[1] == 'norms':
                return self.starts[stage + 1]
            if stage == 0:
                return 0
            return self.starts[stage] + 1
        raise ValueError(
            f'layer-wise decay: expected the name of a known layer of the backbone, got {name!r}'
        )

    def stage_of(self, layer: int) -> int:
        """Return a layer's group with one group per stage: the stem, the stages, the heads."""
        return bisect_left(self.starts, layer)
