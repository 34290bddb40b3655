"""Pola-DeiT: one stride, blocks that count as stages, resized tables, numbers of parameters, ablations, softmax."""

import pytest
import torch
from timm.models.vision_transformer import VisionTransformer
from torch.testing import assert_close

from mmpola.backbones import PolaDeiT
from mmpola.backbones.weight_names import to_released
from mmpola.checkpoint.load import load_weights
from mmpola.layers import position_tables

SMALL = {'embed_dims': 16, 'depth': 4, 'num_heads': 2}


def build(**arguments):
    return PolaDeiT(SMALL, **{'pretrain_img_size': 64, 'drop_path_rate': 0.0, **arguments})


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
        tables = sum(x.numel() for key, x in model.named_parameters() if key in position_tables(model))
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
    assert sum(x.numel() for x in ablated.parameters()) - sum(x.numel() for x in whole.parameters()) == parameters


def test_softmax_blocks_are_a_deit_without_class_token():
    model = build(attn_types='S').double().eval()
    deit = VisionTransformer(
        64, embed_dim=16, depth=4, num_heads=2, class_token=False, global_pool='avg', fc_norm=False, num_classes=0
    )
    deit = deit.double().eval()
    weights = model.state_dict()
    for key in [key for key in weights if '.attn.q.' in key]:
        weights[key.replace('.q.', '.qkv.')] = torch.cat([weights.pop(key), weights.pop(key.replace('.q.', '.kv.'))])
    released = to_released(weights, PolaDeiT.released_names)
    deit.load_state_dict({key.replace('norm3.', 'norm.'): x for key, x in released.items()})
    x = torch.randn(2, 3, 64, 64, dtype=torch.float64)
    assert_close(model(x)[0].flatten(2).mT, deit.forward_features(x))


@pytest.mark.parametrize('size', [(64, 96), (33, 47), (5, 3), (512, 683)])
def test_returns_one_map_of_stride_16(size):
    with torch.no_grad():
        (x,) = build().eval()(torch.randn(2, 3, *size))
    assert x.shape == (2, 16, -(-size[0] // 16), -(-size[1] // 16))
    assert torch.isfinite(x).all()


@pytest.mark.parametrize('out_norm', [False, True])
@pytest.mark.parametrize('out_indices', [None, (1,), (0, 2, 3)])
def test_builds_only_the_blocks_that_it_uses_and_trains_all_of_them(out_indices, out_norm):
    model = build(out_indices=out_indices, out_norm=out_norm)
    assert len(model.stages) == (out_indices or (3,))[-1] + 1
    maps = model(torch.randn(2, 3, 64, 96))
    assert len(maps) == len(out_indices or (3,))
    sum((x * torch.randn_like(x)).sum() for x in maps).backward()
    assert [key for key, p in model.named_parameters() if p.grad is None] == []


@pytest.mark.parametrize('size', [128, (48, 160)])
def test_resizing_tables_on_loading_equals_resizing_them_in_the_forward_pass(size, tmp_path):
    learned = build().eval()
    with torch.no_grad():
        for key in position_tables(learned):
            learned.get_parameter(key).normal_()
    torch.save(learned.state_dict(), tmp_path / 'learned.pth')
    resized = build(pretrain_img_size=size).eval()
    report = load_weights(resized, tmp_path / 'learned.pth')
    assert {entry.split()[0] for entry in report.resized} == set(position_tables(learned))
    assert 'stem.pos_embed' in position_tables(learned)
    x = torch.randn(1, 3, *(size if isinstance(size, tuple) else (size, size)))
    with torch.no_grad():
        assert_close(learned(x)[0], resized(x)[0], rtol=1e-4, atol=1e-4)


def test_leaves_out_later_blocks_and_still_loads_the_whole_file(tmp_path):
    whole = build(out_indices=(1, 3), out_norm=False).eval()
    torch.save(whole.state_dict(), tmp_path / 'whole.pth')
    part = build(out_indices=(1,), out_norm=False).eval()
    report = load_weights(part, tmp_path / 'whole.pth')
    assert {key.split('.')[1] for key in report.dropped} == {'2', '3'}
    x = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        assert_close(part(x)[0], whole(x)[0])


@pytest.mark.parametrize(
    ('arguments', 'message'),
    [
        ({'out_indices': (4,)}, 'out_indices: expected ascending stages out of [0, 1, 2, 3], got (4,)'),
        ({'frozen_stages': 5}, 'frozen_stages: expected -1 ... 4, got 5'),
        ({'attn_types': 'LS'}, "attn_types: expected one letter of 'LS' or a string of 4 of them per stage, got 'LS'"),
        ({'mixing': 'conv'}, "mixing: expected one of ['dwc', 'dcn', None], got 'conv'"),
        ({'arch': 'huge'}, "arch: expected one of ['tiny', 'small', 'base'] or a dict, got 'huge'"),
    ],
)
def test_wrong_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError) as raised:
        PolaDeiT(**{'arch': SMALL, **arguments})
    assert str(raised.value) == message
