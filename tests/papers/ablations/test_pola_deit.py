"""Pola-DeiT: blocks that count as stages, numbers of parameters, ablations, softmax."""

import pytest
import torch
from timm.models.vision_transformer import VisionTransformer
from torch.testing import assert_close

from mmpola.backbones import PolaDeiT
from mmpola.backbones.classifier import Classifier
from mmpola.backbones.weight_names import to_released
from mmpola.layers import position_tables

SMALL = {'embed_dims': 16, 'depth': 4, 'num_heads': 2}


@pytest.mark.parametrize(
    ('arch', 'parameters', 'millions'),
    [('tiny', 6_637_864, 6.1), ('small', 24_756_328, None), ('base', 95_497_960, None)],
)
def test_number_of_parameters(arch, parameters, millions):
    """With a head of 1000 classes; the paper's 6.1 M do not count the position tables."""
    with torch.device('meta'):
        model = PolaDeiT(arch)  # its output norm is counted as the classifier's
    counted = sum(x.numel() for x in model.parameters()) + (model.embed_dims[-1] + 1) * 1000
    assert counted == parameters
    if millions:
        tables = sum(
            x.numel() for key, x in model.named_parameters() if key in position_tables(model)
        )
        assert round((counted - tables) / 1e6, 1) == millions


@pytest.mark.parametrize(
    ('ablation', 'parameters'),
    [
        ({'gate': False}, 12 * -(192 + 1) * 192),
        ({'mixing': None}, 12 * -(25 + 1) * 64),
        ({'mixing': 'dcn'}, 12 * (25 * 64 + 1) * 50),
        ({'polarity': False}, 0),
    ],
)
def test_an_ablation_changes_only_its_own_parameters(ablation, parameters):
    with torch.device('meta'):
        whole, ablated = PolaDeiT('tiny'), PolaDeiT('tiny', **ablation)
    assert (
        sum(x.numel() for x in ablated.parameters()) - sum(x.numel() for x in whole.parameters())
        == parameters
    )


def test_softmax_blocks_are_a_deit_without_class_token():
    arguments = {'arch': SMALL, 'attn_types': 'S', 'pretrain_img_size': 64}
    model = Classifier(PolaDeiT, 5, arguments=arguments).double().eval()
    deit = VisionTransformer(
        64,
        embed_dim=16,
        depth=4,
        num_heads=2,
        class_token=False,
        global_pool='avg',
        fc_norm=False,
        num_classes=5,
    )
    deit = deit.double().eval()
    weights = model.state_dict()
    for key in [key for key in weights if '.attn.q.' in key]:
        weights[key.replace('.q.', '.qkv.')] = torch.cat(
            [weights.pop(key), weights.pop(key.replace('.q.', '.kv.'))]
        )
    bare = {key.removeprefix('backbone.'): x for key, x in weights.items()}
    deit.load_state_dict(to_released(bare, PolaDeiT.released_names))
    x = torch.randn(2, 3, 64, 64, dtype=torch.float64)
    assert_close(model(x), deit(x), rtol=0, atol=1e-12)  # tells an epsilon of 1e-5 from one of 1e-6
