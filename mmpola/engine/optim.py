"""Layer-wise learning-rate decay for MMEngine's optimizers: layers closer to the input get smaller learning rates.

Usage in a config:

    optim_wrapper = dict(
        constructor='mmpola.LayerDecayOptimizerConstructor',
        paramwise_cfg=dict(decay_rate=0.8, norm_decay_mult=0.0, ...),
    )

With `decay_rate=1.0, backbone_lr_mult=0.1` the pretrained layers train at a tenth of the learning rate, as DETR-like
detectors do, and keep their rules for weight decay: in MMEngine's `custom_keys`, an entry `backbone` replaces those of
norms and biases.
"""

from __future__ import annotations

from typing import Any

from mmengine.optim import DefaultOptimWrapperConstructor
from torch import nn

from mmpola.backbones.base import Backbone
from mmpola.backbones.parameter_groups import BackboneLayers
from mmpola.messages import info
from mmpola.registry import OPTIM_WRAPPER_CONSTRUCTORS


@OPTIM_WRAPPER_CONSTRUCTORS.register_module()
class LayerDecayOptimizerConstructor(DefaultOptimWrapperConstructor):
    """MMEngine's constructor and its rules, with learning rates multiplied by decay_rate ** distance from the heads.

    The distance of layer i of a backbone with n blocks (see `BackboneLayers`) is n + 1 - i; everything outside the
    backbone, and its output norms, have distance 0. An `lr_mult` in `paramwise_cfg` is an additional factor.

    Args:
        optim_wrapper_cfg: config of the optimizer wrapper; its optimizer needs `lr`.
        paramwise_cfg: `decay_rate` in (0, 1], optionally `backbone_lr_mult`, a positive factor for all layers whose
            distance is not 0 (default 1), and the settings of MMEngine's constructor.

    Raises:
        ValueError: a setting is missing or out of range, or the model's backbone is not one of mmpola's; the message
            names it.
    """

    def __init__(self, optim_wrapper_cfg: dict[str, Any], paramwise_cfg: dict[str, Any] | None = None) -> None:
        super().__init__(optim_wrapper_cfg, paramwise_cfg)
        rate = self.paramwise_cfg.get('decay_rate')
        if not isinstance(rate, (int, float)) or not 0 < rate <= 1:
            raise ValueError(f'paramwise_cfg: expected decay_rate in (0, 1], got {rate!r}')
        factor = self.paramwise_cfg.get('backbone_lr_mult', 1.0)
        if not isinstance(factor, (int, float)) or factor <= 0:
            raise ValueError(f'paramwise_cfg: expected a positive backbone_lr_mult, got {factor!r}')
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
        layers = BackboneLayers(names.values(), backbone.optional_prefixes())
        rate, factor = self.paramwise_cfg['decay_rate'], self.paramwise_cfg.get('backbone_lr_mult', 1.0)
        for group in params:
            name = names.get(id(group['params'][0]))
            distance = 0 if name is None else layers.number + 1 - layers.layer_of(name)
            group['lr'] = group.get('lr', self.base_lr) * rate**distance * (factor if distance else 1.0)
        lowest = factor * rate ** (layers.number + 1)
        info(f'layer-wise decay {rate}: {layers.number} blocks, learning rates from x {lowest:.3g}')
