"""How optimizers group a backbone's parameters: the layer of each, and one list of those without
weight decay.
"""

import pytest

from mmpola.backbones import PolaDeiT, PolaFormerPP, PolaPVT, PolaPVTv2, PolaSwin
from mmpola.backbones.parameter_groups import BackboneLayers, without_weight_decay

DEEP = {
    'embed_dims': (8, 8, 8, 8),
    'depths': (1, 2, 1, 3),
    'num_heads': (1, 1, 1, 1),
    'mlp_ratios': (1, 1, 1, 1),
}
SWIN = {'embed_dims': 8, 'depths': (1, 2, 1, 3), 'num_heads': (1, 1, 1, 1)}
PLUS = {**DEEP, 'layer_scale': (True,) * 4, 'layer_scale_init': (1.0,) * 4}
BACKBONES = {
    'PolaSwin': lambda: PolaSwin(SWIN),
    'PolaFormerPP': lambda: PolaFormerPP(PLUS),
    'PolaPVT': lambda: PolaPVT(DEEP, out_norm=True),
    'PolaPVTv2': lambda: PolaPVTv2(DEEP),
}
OUTSIDE = {'stem.': 0, 'stages.0.': 0, 'stages.1.': 2, 'stages.2.': 4, 'stages.3.': 5, 'norms.': 8}
"""Layer of every kind of parameter outside the blocks; 1 + 2 + 1 + 3 blocks."""
BETWEEN = {'norms.0.': 1, 'norms.1.': 3, 'norms.2.': 4, 'norms.3.': 7}
"""The same of norms that the next stage reads (PolaPVTv2)."""
BLOCKS = [(0, 0, 1), (1, 0, 2), (1, 1, 3), (2, 0, 4), (3, 0, 5), (3, 1, 6), (3, 2, 7)]
"""(stage, block, layer), the first two from 0."""


@pytest.mark.parametrize('name', BACKBONES)
def test_layers_of_every_parameter(name):
    backbone = BACKBONES[name]()
    names = [name for name, _ in backbone.named_parameters()]
    layers = BackboneLayers(names, backbone.optional_prefixes())
    assert layers.number == 7
    blocks = {f'stages.{stage}.blocks.{block}.': layer for stage, block, layer in BLOCKS}
    expected = blocks | (BETWEEN if name == 'PolaPVTv2' else {}) | OUTSIDE
    for name in names:
        assert layers.layer_of(name) == next(
            layer for prefix, layer in expected.items() if name.startswith(prefix)
        )


def test_layer_depths_as_mmpretrain_asks_for_them():
    """Its constructor multiplies the rate of a parameter by decay ** (number - layer - 1)."""
    backbone = PolaSwin(SWIN, out_norm=True)
    expected = {
        'backbone.stem.proj.weight': 0,
        'backbone.stages.0.blocks.0.attn.proj.weight': 1,
        'backbone.stages.1.downsample.norm.weight': 2,
        'backbone.stages.3.blocks.2.mlp.fc2.bias': 7,
        'backbone.norms.1.weight': 8,
        'neck.conv.weight': 8,
    }
    for name, layer in expected.items():
        assert backbone.get_layer_depth(name, 'backbone.') == (layer, 9)
    assert backbone.get_layer_depth('stages.2.blocks.0.norm1.bias') == (4, 9)


def test_layers_of_deit():
    backbone = PolaDeiT({'embed_dims': 8, 'depth': 3, 'num_heads': 1}, pretrain_img_size=32)
    layers = BackboneLayers(
        [name for name, _ in backbone.named_parameters()], backbone.optional_prefixes()
    )
    found = {
        name.rpartition('.')[0]: layers.layer_of(name) for name, _ in backbone.named_parameters()
    }
    assert found['stem'] == found['stem.proj'] == 0
    assert found['stages.1.blocks.0.norm1'] == 2
    assert found['norms.2'] == 4


def test_an_unknown_parameter():
    with pytest.raises(
        ValueError, match='layer-wise decay: expected the name of a known layer of the backbone'
    ):
        BackboneLayers(['stages.0.blocks.0.attn.q']).layer_of('gate.weight')


def test_stages_of_layers():
    """1 + 2 + 1 + 3 blocks."""
    layers = BackboneLayers([name for name, _ in PolaSwin(SWIN).named_parameters()])
    assert [layers.stage_of(layer) for layer in range(9)] == [0, 1, 2, 2, 3, 4, 4, 4, 5]


@pytest.mark.parametrize('name', BACKBONES)
def test_learned_shapes_of_attention_tables_and_layer_scales_have_no_decay(name):
    backbone = BACKBONES[name]()
    exempt = without_weight_decay(backbone)
    assert exempt
    for key, parameter in backbone.named_parameters():
        is_weight = key.endswith('.weight') and parameter.ndim > 1
        is_vector = parameter.ndim == 1 and 'gamma' not in key
        assert (key in exempt) != (is_weight or is_vector), key
