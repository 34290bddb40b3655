"""Pictures of the docs that show names of layers show names that today's models have."""

import re

import pytest
import torch
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope

from mmpola import PolaPVT

LAYERS_SHOWN = {'analysis_maps.jpg': ('mask_rcnn_pola_swin_shapes', ['stages.1.blocks.0.attn'])}
"""Picture of pixels -> the config of its model, and the layers that it names."""


def attention_layers(backbone):
    return [name for name, _ in backbone.named_modules() if name.endswith('.attn')]


@pytest.mark.parametrize('picture', LAYERS_SHOWN)
def test_layers_named_in_a_picture_exist(picture, root):
    assert (root / 'docs' / picture).exists()
    name, layers = LAYERS_SHOWN[picture]
    cfg = Config.fromfile(root / 'configs' / f'{name}.py')
    init_default_scope(cfg.default_scope)
    with torch.device('meta'):
        backbone = MODELS.build(cfg.model.backbone)
    assert set(layers) <= set(attention_layers(backbone))


def test_the_chart_of_entropies_names_all_layers(root):
    """Texts of an SVG are texts. Its labels leave out `blocks` and `attn`."""
    arch = {
        'embed_dims': (32, 64, 128, 256),
        'depths': (2, 2, 2, 2),
        'num_heads': (1, 2, 4, 8),
        'mlp_ratios': (4, 4, 4, 4),
    }
    with torch.device('meta'):
        backbone = PolaPVT(arch)
    expected = []
    for name in attention_layers(backbone):
        expected.append(name.replace('.blocks', '').removesuffix('.attn'))
    svg = (root / 'docs' / 'analysis_entropy.svg').read_text()
    labels = re.findall(r'>(\w+\.\d+\.\d+)</text>', svg)
    assert labels == expected
