"""Layer-wise learning-rate decay for MMEngine's optimizers: layers closer to the input get smaller learning rates.

Usage in a config:

    optim_wrapper = dict(
        constructor='mmpola.LayerDecayOptimizerConstructor',
        paramwise_cfg=dict(decay_rate=0.8, norm_decay_mult=0.0, ...),
    )
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from mmengine.optim import DefaultOptimWrapperConstructor
from torch import nn

from mmpola.backbones.base import Backbone
from mmpola.messages import info
from mmpola.registry import OPTIM_WRAPPER_CONSTRUCTORS

STEM = re.compile(r'(patch_embed|pos_embed)1?(\.|$)')
BLOCK = (  # (stage from 0, block from 0)
    re.compile(r'layers\.(?P<stage>\d+)\.blocks\.(?P<block>\d+)\.'),
    re.compile(r'block(?P<number>\d+)\.(?P<block>\d+)\.'),
    re.compile(r'blocks\.(?P<block>\d+)\.'),
)
ENTRY = (  # down-sampling or patch embedding at the start of a stage
    re.compile(r'layers\.(?P<before>\d+)\.downsample\.'),
    re.compile(r'(patch_embed|pos_embed)(?P<number>\d+)(\.|$)'),
)
STAGE_NORM = re.compile(r'norm(?P<number>\d+)\.')


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
        """Return the layer of a parameter.

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


def _block(name: str) -> tuple[int, int] | None:
    """Return (stage, block), both from 0, of a parameter inside a block, None for others."""
    for pattern in BLOCK:
        if match := pattern.match(name):
            groups = match.groupdict()
            stage = int(groups['stage']) if 'stage' in groups else int(groups.get('number', 1)) - 1
            return stage, int(groups['block'])
    return None


@OPTIM_WRAPPER_CONSTRUCTORS.register_module()
class LayerDecayOptimizerConstructor(DefaultOptimWrapperConstructor):
    """MMEngine's constructor and its rules, with learning rates multiplied by decay_rate ** distance from the heads.

    The distance of layer i of a backbone with n blocks (see `BackboneLayers`) is n + 1 - i; everything outside the
    backbone has distance 0. An `lr_mult` in `paramwise_cfg` is multiplied too.

    Args:
        optim_wrapper_cfg: config of the optimizer wrapper; its optimizer needs `lr`.
        paramwise_cfg: `decay_rate` in (0, 1], and the settings of MMEngine's constructor.

    Raises:
        ValueError: a setting is missing or out of range, or the model's backbone is not one of mmpola's; the message
            names it.
    """

    def __init__(self, optim_wrapper_cfg: dict[str, Any], paramwise_cfg: dict[str, Any] | None = None) -> None:
        super().__init__(optim_wrapper_cfg, paramwise_cfg)
        rate = self.paramwise_cfg.get('decay_rate')
        if not isinstance(rate, (int, float)) or not 0 < rate <= 1:
            raise ValueError(f'paramwise_cfg: expected decay_rate in (0, 1], got {rate!r}')
        for key in ('num_layers', 'decay_type'):
            if key in self.paramwise_cfg:
                raise ValueError(
                    f'paramwise_cfg: expected no {key}, as every block of the backbone is a layer, got '
                    f'{self.paramwise_cfg[key]!r}'
                )
        if self.base_lr is None:
            raise ValueError('optim_wrapper: expected optimizer.lr, which layer-wise decay multiplies, got None')

    def add_params(
        self, params: list[dict[str, Any]], module: nn.Module, prefix: str = '', is_dcn_module: Any = None
    ) -> None:
        """Add MMEngine's parameter groups, one per parameter, then multiply the learning rates of the whole model."""
        super().add_params(params, module, prefix, is_dcn_module)
        if prefix:  # MMEngine calls this for every child too
            return
        backbone = getattr(module, 'backbone', None)
        if not isinstance(backbone, Backbone):
            raise ValueError(
                f'layer-wise decay: expected a model with a backbone of mmpola, got {type(backbone).__name__}'
            )
        names = {id(parameter): name for name, parameter in backbone.named_parameters()}
        layers = BackboneLayers(names.values(), backbone.fresh_prefixes())
        rate = self.paramwise_cfg['decay_rate']
        for group in params:
            name = names.get(id(group['params'][0]))
            distance = 0 if name is None else layers.number + 1 - layers.layer_of(name)
            group['lr'] = group.get('lr', self.base_lr) * rate**distance
        info(
            f'layer-wise decay {rate}: {layers.number} blocks, learning rates from x {rate ** (layers.number + 1):.3g}'
        )
