"""Layer-wise learning-rate decay in MMEngine's optimizers; its own rules still apply."""

import logging
import re

import pytest
import torch
from mmengine.config import Config
from mmengine.logging import MMLogger
from mmengine.optim import build_optim_wrapper
from torch import nn

from mmpola import PolaAttention
from mmpola.backbones import PolaPVT, PolaSwin
from tests.backbones.test_parameter_groups import DEEP, SWIN


class Model(nn.Module):
    def __init__(self, backbone):
        super().__init__()
        self.backbone = backbone
        self.head = nn.Linear(4, 2)


PARAMWISE = {'decay_rate': 0.5, 'norm_decay_mult': 0.0, 'bias_decay_mult': 0.0}


def wrap(model, paramwise=PARAMWISE, constructor='LayerDecayOptimizerConstructor', **optimizer):
    cfg = dict(
        type='OptimWrapper',
        constructor=f'mmpola.{constructor}',
        optimizer={'type': 'AdamW', 'lr': 1.0, 'weight_decay': 0.25, **optimizer},
        paramwise_cfg=paramwise,
    )
    return build_optim_wrapper(model, Config({'optim_wrapper': cfg}).optim_wrapper)


def groups_of(model, *arguments):
    """Parameter name -> (learning rate, weight decay)."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    groups = wrap(model, *arguments).optimizer.param_groups
    return {names[id(group['params'][0])]: (group['lr'], group['weight_decay']) for group in groups}


def test_no_decay_by_itself_and_with_rules_added():
    paramwise = {'custom_keys': {'head': {'lr_mult': 10.0}}, 'bias_decay_mult': 0.5}
    groups = groups_of(
        Model(PolaPVT(DEEP, out_norm=True)), paramwise, 'NoDecayOptimizerConstructor'
    )
    plain = groups_of(Model(PolaPVT(DEEP, out_norm=True)), {}, 'NoDecayOptimizerConstructor')
    assert groups['head.weight'] == (10.0, 0.25)
    block = 'backbone.stages.0.blocks.0.'
    for name in (
        'attn.feature_map.power',
        'attn.feature_map.scale',
        'attn.positional_encoding',
        'norm1.weight',
    ):
        assert groups[block + name] == plain[block + name] == (1.0, 0.0)
    assert groups['backbone.stages.0.pos_embed'] == plain['backbone.norms.3.weight'] == (1.0, 0.0)
    assert plain[f'{block}mlp.fc1.weight'] == (1.0, 0.25)
    assert (groups[f'{block}mlp.fc1.bias'], plain[f'{block}mlp.fc1.bias']) == (
        (1.0, 0.125),
        (1.0, 0.0),
    )


class OwnNetwork(nn.Module):
    """As in README.md: the attention has another name than in our backbones."""

    def __init__(self):
        super().__init__()
        self.attention = PolaAttention(8, num_heads=2, grid=(4, 4))
        self.decoder = nn.MultiheadAttention(8, 2)


@pytest.mark.parametrize('wrapper', ['none', 'compiled'])
def test_decay_follows_the_module_whatever_its_name(wrapper):
    model = OwnNetwork()
    if wrapper == 'compiled':
        model.attention = torch.compile(model.attention)
    groups = groups_of(model, {}, 'NoDecayOptimizerConstructor')
    without = {name.replace('_orig_mod.', '') for name, (_, decay) in groups.items() if decay == 0}
    assert {
        'attention.feature_map.power',
        'attention.feature_map.scale',
        'attention.positional_encoding',
        'decoder.in_proj_bias',
        'decoder.out_proj.bias',
    } <= without
    matrices = [name for name, x in model.named_parameters() if x.ndim > 1 and 'weight' in name]
    assert matrices
    assert all(groups[name][1] == 0.25 for name in matrices)


def test_rules_of_the_user_come_first():
    paramwise = {
        'custom_keys': {
            'attention': {'lr_mult': 0.1},  # keeps the rule for the power
            'feature_map.scale': {'decay_mult': 2.0},
            'in_proj': {'decay_mult': 1.0},
        }
    }
    groups = groups_of(OwnNetwork(), paramwise, 'NoDecayOptimizerConstructor')
    assert groups['attention.feature_map.power'] == (0.1, 0.0)
    assert groups['attention.feature_map.scale'] == (1.0, 0.5)
    assert groups['decoder.in_proj_bias'] == (1.0, 0.25)


def test_rates_fall_towards_the_image_and_decay_rules_stay():
    model = Model(PolaSwin(SWIN, frozen_stages=1))
    paramwise = {
        **PARAMWISE,
        'custom_keys': {'feature_map.power': {'decay_mult': 0.0}, 'head': {'lr_mult': 10.0}},
    }
    groups = groups_of(model, paramwise)
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert groups.keys() == trained
    assert groups['head.weight'] == (10.0, 0.25)
    assert groups['backbone.norms.3.weight'] == (1.0, 0.0)
    assert groups['backbone.stages.3.blocks.2.mlp.fc1.weight'] == (0.5, 0.25)
    assert groups['backbone.stages.3.blocks.0.mlp.fc1.bias'] == (0.125, 0.0)
    assert groups['backbone.stages.1.blocks.0.attn.feature_map.power'] == (0.5**6, 0.0)


def test_the_whole_backbone_at_a_tenth_keeps_its_decay_rules():
    paramwise = {**PARAMWISE, 'decay_rate': 1.0, 'backbone_lr_mult': 0.1}
    groups = groups_of(Model(PolaSwin(SWIN)), paramwise)
    assert groups['head.weight'] == (1.0, 0.25)
    assert groups['backbone.norms.3.weight'] == (
        1.0,
        0.0,
    )  # an output norm starts from random weights
    assert groups['backbone.stages.3.blocks.2.mlp.fc1.weight'] == (0.1, 0.25)
    assert groups['backbone.stem.norm.weight'] == (0.1, 0.0)


def test_the_log_has_one_line_on_rates_and_one_on_frozen_parameters(monkeypatch):
    logged = []
    handle = MMLogger.handle

    def record(logger, line):
        if line.levelno >= logging.INFO and all(keep(line) for keep in logger.filters):
            logged.append(line.getMessage())
        handle(logger, line)

    monkeypatch.setattr(MMLogger, 'handle', record)
    model = Model(PolaSwin(SWIN, frozen_stages=1))
    groups = groups_of(model)
    frozen = sum(not parameter.requires_grad for parameter in model.parameters())
    on_frozen, on_rates = logged
    assert on_frozen.startswith(f'{frozen} parameters')
    rates = re.findall(r'[\d.e-]*\d', on_rates.partition('optimizer.lr: ')[2])
    assert float(rates[0]) == pytest.approx(0.5 ** (len(rates) - 1), rel=0.01)
    assert float(rates[-2]) == groups['backbone.stages.3.blocks.2.mlp.fc1.weight'][0]
    assert float(rates[-1]) == 1


@pytest.mark.parametrize(
    ('paramwise', 'optimizer', 'named'),
    [
        ({'decay_rate': None}, {}, 'paramwise_cfg: expected decay_rate in .*got None'),
        ({'decay_rate': 0.0}, {}, 'paramwise_cfg: expected decay_rate in .*got 0.0'),
        ({'decay_rate': 1.5}, {}, 'paramwise_cfg: expected decay_rate in .*got 1.5'),
        ({'backbone_lr_mult': 0}, {}, 'paramwise_cfg: expected a positive backbone_lr_mult'),
        ({'num_layers': 12}, {}, 'paramwise_cfg: expected no num_layers'),  # a block is a layer
        ({}, {'lr': None}, 'optimizer: expected lr'),
        ({}, {'weight_decay': None}, 'optimizer: expected a weight_decay'),
    ],
)
def test_bad_arguments(paramwise, optimizer, named):
    with pytest.raises(ValueError, match=f'^{named}'):
        wrap(Model(PolaSwin(SWIN)), {**PARAMWISE, **paramwise}, **optimizer)


def test_a_backbone_of_another_package_has_no_layers_to_decay_by():
    with pytest.raises(ValueError, match='a backbone of mmpola, got ReLU'):
        wrap(Model(nn.ReLU()))
