"""Pola-PVTv2: stage norms, overlapping patches, the feed-forward network, the published number of
parameters.
"""

import pytest
import timm
import torch
from torch.testing import assert_close

from mmpola.backbones import PolaPVTv2
from mmpola.backbones.pola_pvt_v2 import DepthwiseMlp, OverlapPatchEmbed
from mmpola.checkpoint import CheckpointError
from mmpola.checkpoint.load import load_weights
from mmpola.layers import position_tables
from tests.helpers.configs import WIDTHS

SMALL = {**WIDTHS, 'depths': (1, 2, 1, 1)}


def build(**arguments):
    return PolaPVTv2(SMALL, **{'pretrain_img_size': 64, 'drop_path_rate': 0.0, **arguments})


@pytest.mark.parametrize(
    ('arch', 'parameters', 'millions'),
    [
        ('b0', 3_789_384, 3.4),
        ('b1', 13_705_384, 12.9),
        ('b2', 24_035_240, None),
        ('b5', 72_085_160, None),
    ],
)
def test_number_of_parameters(arch, parameters, millions):
    """With a head of 1000 classes; the paper's 3.4 M and 13 M do not count the key tables."""
    with torch.device('meta'):
        model = PolaPVTv2(arch)
    head = (model.embed_dims[-1] + 1) * 1000
    counted = sum(x.numel() for x in model.parameters()) + head
    assert counted == parameters
    if millions:
        tables = sum(
            x.numel() for key, x in model.named_parameters() if key in position_tables(model)
        )
        assert round((counted - tables) / 1e6, 1) == millions


def test_softmax_blocks_have_the_shapes_of_pvt_v2():
    with torch.device('meta'):
        model = PolaPVTv2('b0', attn_types='SSSS')
        published = timm.create_model('pvt_v2_b0', num_classes=0)
    shapes = sorted(tuple(parameter.shape) for parameter in model.parameters())
    assert shapes == sorted(tuple(parameter.shape) for parameter in published.parameters())


def test_the_next_stage_reads_the_normed_map_whatever_is_returned():
    normed, plain = build().eval(), build(out_norm=False).eval()
    assert set(normed.state_dict()) - set(plain.state_dict()) == {'norms.3.weight', 'norms.3.bias'}
    with torch.no_grad():
        for norm in normed.norms.values():
            norm.bias.normal_()
    plain.load_state_dict(normed.state_dict(), strict=False)
    x = torch.randn(1, 3, 40, 56)
    with torch.no_grad():
        for norm, a, b in zip(normed.norms.values(), normed(x), plain(x), strict=True):
            assert_close(a, norm(b.permute(0, 2, 3, 1)).permute(0, 3, 1, 2), rtol=1e-5, atol=1e-5)


def test_patches_overlap():
    embed = OverlapPatchEmbed(1, 4, 7, 4)
    image = torch.zeros(1, 1, 16, 16)
    image[0, 0, 5, 5] = 1  # within 3 pixels of the centres 4 and 8 of patches 1 and 2
    with torch.no_grad():
        tokens = embed.proj(image)[0].sum(0)
        assert embed(image).shape == (1, 4, 4, 4)
    assert sorted(map(tuple, tokens.nonzero().tolist())) == [(1, 1), (1, 2), (2, 1), (2, 2)]


def test_the_feed_forward_mixes_neighbours_before_the_activation():
    mlp, x = DepthwiseMlp(4, 8, 0.0).double(), torch.randn(1, 15, 4, dtype=torch.float64)
    maps = mlp.fc1(x).transpose(1, 2).unflatten(2, (3, 5))
    expected = mlp.fc2(torch.nn.functional.gelu(mlp.dwconv(maps)).flatten(2).transpose(1, 2))
    assert_close(mlp(x, (3, 5)), expected)


def test_a_file_without_its_stage_norms_is_refused(tmp_path):
    weights = build().state_dict()
    del weights['norms.1.bias']
    torch.save(weights, tmp_path / 'weights.pth')
    with pytest.raises(CheckpointError, match=r'missing: norms.1.bias \[16\]'):
        load_weights(build(), tmp_path / 'weights.pth')
