"""Pictures of the docs that show names of layers show names that today's models have."""

import pytest
import torch
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope

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
