"""Pola-Swin equals the authors' model: features, logits and gradients of the golden files, parameter counts."""

import pytest
import torch
import torch.nn.functional as F

from mmpola.backbones import PolaSwin, pola_swin
from mmpola.checkpoint.load import load_weights

ATTN_TYPES = {
    'pola_swin_llss': 'LLSS',
    'pola_swin_llll': 'LLLL',
    'pola_swin_mixed': ('L', 'L', 'LLS', 'S'),
}


def relative_error(ours, expected):
    return ((ours - expected).norm() / expected.norm()).item()


@pytest.mark.parametrize('name', ATTN_TYPES)
def test_matches_the_authors_features_logits_and_gradients(name, golden, tmp_path):
    record = golden(name)
    config, weights = record['config'], record['checkpoint']['model']
    torch.save(record['checkpoint'], tmp_path / 'authors.pth')
    model = PolaSwin(
        {'embed_dims': config['embed_dim'], 'depths': config['depths'], 'num_heads': config['num_heads']},
        attn_types=ATTN_TYPES[name],
        alpha=config['alpha'],
        mlp_ratio=config['mlp_ratio'],
        out_norm=False,
    )
    load_weights(model, tmp_path / 'authors.pth')
    model.double().eval()

    features = model(record['image_u8'].double() / 64 - 2)
    for ours, expected in zip(features, record['features'], strict=True):
        assert relative_error(ours, expected) < 1e-5

    tokens = features[-1].flatten(2).transpose(1, 2)
    head = {key: x.double() for key, x in weights.items() if key.startswith(('norm.', 'head.'))}
    pooled = F.layer_norm(tokens, tokens.shape[-1:], head['norm.weight'], head['norm.bias']).mean(1)
    logits = F.linear(pooled, head['head.weight'], head['head.bias'])
    assert relative_error(logits, record['logits']) < 1e-5

    logits.square().sum().backward()
    parameters = dict(model.named_parameters())
    for key, expected in model.rename_weights(record['grads']).items():
        assert relative_error(parameters[key].grad, expected) < 1e-5, key


@pytest.mark.parametrize(
    ('arch', 'arguments', 'parameters'),
    [
        ('tiny', {}, 29_285_696),
        ('small', {}, 50_603_600),
        ('base', {}, 89_137_864),
        ('base', {'pretrain_img_size': 384, 'window_size': 12}, 91_599_304),
        ('tiny', {'attn_types': 'SSSS'}, 28_288_354),  # Swin-T
    ],
)
def test_has_the_published_number_of_parameters(arch, arguments, parameters):
    with torch.device('meta'):
        model = PolaSwin(arch, out_norm=False, **arguments)
    dim = model.embed_dims[-1]
    head = 2 * dim + (dim + 1) * 1000  # the classification model's final norm and linear layer
    assert sum(p.numel() for p in model.parameters()) + head == parameters


@pytest.mark.parametrize(
    ('arguments', 'message'),
    [
        ({'arch': 'huge'}, f"arch: expected one of {list(pola_swin.ARCHS)} or a dict, got 'huge'"),
        ({'out_indices': (5,)}, 'out_indices: expected ascending stages out of [0, 1, 2, 3], got (5,)'),
        ({'window_size': 0}, 'window_size: expected at least 1, got 0'),
        ({'backend': 'tritn'}, "backend: expected one of ['auto', 'triton', 'torch'], got 'tritn'"),
        ({'frozen_stages': 5}, 'frozen_stages: expected -1 ... 4, got 5'),
        ({'attn_types': 'LLS'}, "attn_types: expected 4 entries, one per stage, got 'LLS'"),
        (
            {'attn_types': ('L', 'L', 'LS', 'S')},
            "attn_types: expected one letter of 'LS' or a string of 6 of them per stage, got 'LS'",
        ),
        (
            {'arch': {'embed_dims': 16, 'depths': (1, 1, 1, 1), 'num_heads': (3, 2, 4, 8)}},
            'embed_dims: expected multiples of num_heads, got 16 channels and 3 heads',
        ),
        (
            {'arch': {'embed_dims': 6, 'depths': (1, 1, 1, 1), 'num_heads': (2, 2, 4, 8)}},
            'num_heads: expected an even head dimension (values split into two streams), got 6 // 2 = 3',
        ),
        (
            {'arch': {'embed_dim': 16, 'depths': (1, 1, 1, 1), 'num_heads': (1, 2, 4, 8)}},
            "arch: expected a dict with the keys ['embed_dims', 'depths', 'num_heads'], "
            "got ['embed_dim', 'depths', 'num_heads']",
        ),
        (
            {'init_cfg': {'type': 'Kaiming'}},
            "init_cfg: expected None or dict(type='Pretrained', checkpoint=PATH), got {'type': 'Kaiming'}",
        ),
    ],
)
def test_wrong_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError) as raised:
        PolaSwin(**arguments)
    assert str(raised.value) == message
