"""Optimizer constructors without weight decay where it would do harm, and bfloat16 on a CPU.

    optim_wrapper = dict(
        constructor='mmpola.NoDecayOptimizerConstructor',
        optimizer=dict(type='AdamW', lr=1e-4, weight_decay=1e-4),
    )
    optim_wrapper = dict(
        constructor='mmpola.LayerDecayOptimizerConstructor',
        optimizer=dict(type='AdamW', lr=1e-4, weight_decay=0.05),
        paramwise_cfg=dict(decay_rate=0.8),
    )

With `decay_rate=1.0, backbone_lr_mult=0.1` the pretrained layers train at a tenth of the learning
rate, as in DETR-like detectors, and norms and biases stay without weight decay. An entry `backbone`
in MMEngine's `custom_keys` would replace their rules.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from mmengine.logging import MMLogger
from mmengine.optim import DefaultOptimWrapperConstructor, OptimWrapper
from mmengine.runner.amp import autocast
from torch import nn

from mmpola.backbones.base import Backbone
from mmpola.backbones.parameter_groups import BackboneLayers, without_weight_decay
from mmpola.messages import counted, info


def _concerns_all_parameters(record: logging.LogRecord) -> bool:
    """Whether a line of MMEngine's constructor is about more than one parameter.

    Its lines on learning rates are written before layer-wise decay multiplies these.
    """
    line = record.getMessage()
    return 'paramwise_options -- ' not in line and 'is skipped since its requires_grad' not in line


class NoDecayOptimizerConstructor(DefaultOptimWrapperConstructor):
    """MMEngine's constructor, without weight decay on norms, biases and `without_weight_decay`.

    The last are the learned exponents, scales and temperatures of attention, position tables and
    layer scales. A bias is any vector whose name ends so, such as `in_proj_bias`.

    Args:
        optim_wrapper_cfg: config of the optimizer wrapper; its optimizer needs `weight_decay`.
        paramwise_cfg: settings of MMEngine's constructor; they are added to these rules, or replace
            them, as the `decay_mult` of an entry of `custom_keys` does.

    Raises:
        ValueError: the optimizer has no `weight_decay`.
    """

    def __init__(
        self, optim_wrapper_cfg: dict[str, Any], paramwise_cfg: dict[str, Any] | None = None
    ) -> None:
        if optim_wrapper_cfg['optimizer'].get('weight_decay') is None:
            raise ValueError(
                'optimizer: expected a weight_decay, from which norms are exempt, got None'
            )
        rules: dict[str, Any] = {'norm_decay_mult': 0.0, 'bias_decay_mult': 0.0}
        rules.update(paramwise_cfg or {})
        super().__init__(optim_wrapper_cfg, rules)

    def add_params(
        self,
        params: list[dict[str, Any]],
        module: nn.Module,
        prefix: str = '',
        is_dcn_module: Any = None,
    ) -> None:
        """Add MMEngine's groups, one per parameter, without a log line for each of them."""
        if prefix:  # MMEngine calls this for every child too
            super().add_params(params, module, prefix, is_dcn_module)
            return
        logger = MMLogger.get_current_instance()
        logger.addFilter(_concerns_all_parameters)
        try:
            super().add_params(params, module, prefix, is_dcn_module)
        finally:
            logger.removeFilter(_concerns_all_parameters)
        self._exempt(params, module)
        frozen = sum(not parameter.requires_grad for parameter in module.parameters())
        if frozen:
            info(f'{counted(frozen, "parameter")} of the model are frozen')

    def _exempt(self, groups: list[dict[str, Any]], model: nn.Module) -> None:
        """Take the weight decay off what MMEngine does not recognise by itself."""
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        exempt = without_weight_decay(model)
        custom_keys = self.paramwise_cfg.get('custom_keys', {})
        for group in groups:
            (parameter,) = group['params']
            name = names[id(parameter)]
            custom = [entry for key, entry in custom_keys.items() if key in name]
            if any('decay_mult' in entry for entry in custom):
                continue
            if name in exempt:
                group['weight_decay'] = 0.0
            elif not custom and parameter.ndim == 1 and name.endswith('_bias'):
                group['weight_decay'] = self.base_wd * self.paramwise_cfg['bias_decay_mult']


class LayerDecayOptimizerConstructor(NoDecayOptimizerConstructor):
    """NoDecayOptimizerConstructor with lower learning rates for layers far from the heads.

    The rates are multiplied by decay_rate ** distance.

    The distance of layer i of a backbone with n blocks (see `BackboneLayers`) is n + 1 - i;
    everything outside the backbone, and its output norms, have distance 0. An `lr_mult` in
    `paramwise_cfg` is an additional factor.

    Args:
        optim_wrapper_cfg: config of the optimizer wrapper; its optimizer needs `lr`.
        paramwise_cfg: `decay_rate` in (0, 1], optionally `backbone_lr_mult`, a positive factor for
            all layers whose distance is not 0 (default 1), and the settings of MMEngine's
            constructor.

    Raises:
        ValueError: a setting is missing or out of range, or the model's backbone is not one of
            mmpola's; the message names it.
    """

    def __init__(
        self, optim_wrapper_cfg: dict[str, Any], paramwise_cfg: dict[str, Any] | None = None
    ) -> None:
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
                    f'paramwise_cfg: expected no {key}, as every block of the backbone is a layer, '
                    f'got {self.paramwise_cfg[key]!r}'
                )
        if self.base_lr is None:
            raise ValueError('optimizer: expected lr, which layer-wise decay multiplies, got None')

    def add_params(
        self,
        params: list[dict[str, Any]],
        module: nn.Module,
        prefix: str = '',
        is_dcn_module: Any = None,
    ) -> None:
        """Add MMEngine's groups, one per parameter, then multiply their learning rates."""
        super().add_params(params, module, prefix, is_dcn_module)
        if prefix:  # MMEngine calls this for every child too
            return
        backbone = getattr(module, 'backbone', None)
        if not isinstance(backbone, Backbone):
            raise ValueError(
                'layer-wise decay: expected a model with a backbone of mmpola, got '
                f'{type(backbone).__name__}'
            )
        names = {id(parameter): name for name, parameter in backbone.named_parameters()}
        layers = BackboneLayers(names.values(), backbone.optional_prefixes())
        rate = self.paramwise_cfg['decay_rate']
        factor = self.paramwise_cfg.get('backbone_lr_mult', 1.0)
        for group in params:
            group.setdefault('lr', self.base_lr)
            name = names.get(id(group['params'][0]))
            if name is None:  # outside the backbone
                continue
            distance = layers.number + 1 - layers.layer_of(name)
            if distance > 0:
                group['lr'] = group['lr'] * rate**distance * factor
        factors = [rate**distance * factor for distance in range(layers.number + 1, 0, -1)]
        blocks = ', '.join(f'{block:.3g}' for block in factors[1:])
        info(
            'layer-wise decay: learning rates as parts of optimizer.lr: '
            f'stem {factors[0]:.3g}; blocks {blocks}; output norms and heads 1'
        )


class BFloat16OptimWrapper(OptimWrapper):
    """MMEngine's OptimWrapper, with the forward pass in bfloat16 (autocast), also on a CPU.

    MMEngine's AmpOptimWrapper needs a GPU. Weights, gradients and the optimizer stay in float32,
    and gradients need no scale: bfloat16 has the range of float32.

    Args:
        kwargs: as in OptimWrapper.

    Attributes:
        dtype: name of the forward pass's dtype.
    """

    dtype = 'bfloat16'

    @contextmanager
    def optim_context(self, model: nn.Module) -> Iterator[None]:
        """Run the forward pass of a step in bfloat16."""
        with super().optim_context(model), autocast(dtype=torch.bfloat16):
            yield
