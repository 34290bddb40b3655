"""How optimizers group a backbone's parameters: without weight decay, and by layer."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable

from torch import nn

from mmpola.layers.attention import LearnedExpMap, LearnedPowerMap

NO_WEIGHT_DECAY = (
    'positional_encoding',
    'pos_embed',
    'relative_position_bias_table',
    'gamma_1',
    'gamma_2',
)
"""Substrings of the names of position tables and layer scales, also in networks of others."""

BLOCK = re.compile(r'stages\.(\d+)\.blocks\.(\d+)(?:\.|$)')
STAGE = re.compile(r'(stages|norms)\.(\d+)(?:\.|$)')


def without_weight_decay(model: nn.Module) -> set[str]:
    """Return the names of a model's parameters without weight decay, besides norms and biases.

    They are the exponents, scales and temperatures of attention, whatever the attention is called
    in the model, position tables and layer scales. Decay would pull exponents to the middle of
    their range and shrink tables and branches.
    """
    found: set[str] = set()
    for prefix, module in model.named_modules():
        if isinstance(module, (LearnedPowerMap, LearnedExpMap)):
            found.update(name for name, _ in module.named_parameters(prefix))
    for name, _ in model.named_parameters():
        if any(part in name for part in NO_WEIGHT_DECAY):
            found.add(name)
    return found


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
