"""Pola-PVT equals the authors' model on their files, and also works at sizes where theirs does not."""

import pytest
import torch
from torch.testing import assert_close

from mmpola.backbones import PolaPVT
from mmpola.checkpoint.load import load_weights
from mmpola.layers import position_tables

SMALL = {'embed_dims': (16, 32, 40, 64), 'depths': (1, 2, 1, 1), 'num_heads': (1, 2, 5, 4), 'mlp_ratios': (2,) * 4}
STRIDES = (4, 8, 16, 32)


def relative_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    return ((found - expected).norm() / expected.norm()).item()


def randomised(model: PolaPVT) -> PolaPVT:
    """Add random numbers to every parameter: tables, powers and scales start at 0, which would hide errors."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return model


def images(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1), dtype=dtype)


@pytest.mark.parametrize('name', ['llll', 'llss', 'sr8421'])
def test_matches_the_authors_features_logits_and_gradients(name, golden, tmp_path):
    record = golden(f'pola_pvt_{name}')
    config = record['config']
    model = PolaPVT(
        {key: config[key] for key in SMALL},
        attn_types=config['attn_type'],
        alpha=config['alpha'],
        pola_sr_ratios=[int(digit) for digit in config['la_sr_ratios']],
        softmax_sr_ratios=config['sr_ratios'],
        pretrain_img_size=config['img_size'],
    )
    torch.save(record['checkpoint'], tmp_path / 'authors.pth')
    report = load_weights(model, tmp_path / 'authors.pth')
    assert set(report.dropped) == {'norm.weight', 'norm.bias', 'head.weight', 'head.bias'}

    model = model.double().eval()
    features = model(record['image_u8'].double() / 64 - 2)
    for found, expected in zip(features, record['features'], strict=True):
        assert relative_error(found, expected) < 1e-6

    head = {key: x.double() for key, x in record['checkpoint']['model'].items() if key.startswith('head.')}
    logits = features[-1].mean(dim=(2, 3)) @ head['head.weight'].T + head['head.bias']
    assert relative_error(logits, record['logits']) < 1e-12

    logits.square().sum().backward()
    parameters = dict(model.named_parameters())
    for key, expected in model.rename_weights(record['grads']).items():
        assert relative_error(parameters[key].grad, expected) < 1e-6, key


@pytest.mark.parametrize(
    ('arch', 'published'),
    [('tiny', 12_924_648), ('small', 23_157_224), ('medium', 39_965_672), ('large', 54_366_568)],
)
def test_has_the_published_number_of_parameters(arch, published):
    with torch.device('meta'):
        model = PolaPVT(arch)
    head, unused_norm = 512 * 1000 + 1000, 1024
    assert sum(x.numel() for x in model.parameters()) == published - head - unused_norm


@pytest.mark.parametrize('size', [(64, 96), (33, 47), (5, 3), (128, 512)])
@pytest.mark.parametrize(
    ('attn_types', 'ratios'), [('LLLL', (1, 1, 1, 1)), ('LLSS', (1, 1, 1, 1)), ('LSLL', (8, 4, 2, 1))]
)
def test_any_size_gives_maps_of_the_strides_and_a_gradient_for_every_parameter(attn_types, ratios, size):
    model = PolaPVT(SMALL, attn_types=attn_types, pola_sr_ratios=ratios, pretrain_img_size=64)
    features = randomised(model)(images(2, 3, *size))
    for found, dim, stride in zip(features, SMALL['embed_dims'], STRIDES, strict=True):
        assert found.shape == (2, dim, -(-size[0] // stride), -(-size[1] // stride))
    sum(x.square().mean() for x in features).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), name


@pytest.mark.parametrize('ratios', [(1, 1, 1, 1), (8, 4, 2, 1)])
@pytest.mark.parametrize('size', [128, 256, (64, 256), (72, 136)])
def test_resizing_tables_on_loading_equals_resizing_them_in_the_forward_pass(size, ratios, tmp_path):
    # At 128 and 256 a later stage has as many tokens as stage 1 had in training; at 64 x 256 stage 2 has. The number of
    # tokens therefore does not tell the grid that a table was learned on.
    learned = randomised(PolaPVT(SMALL, pola_sr_ratios=ratios, pretrain_img_size=64)).eval()
    torch.save(learned.state_dict(), tmp_path / 'learned.pth')
    resized = PolaPVT(SMALL, pola_sr_ratios=ratios, pretrain_img_size=size).eval()
    report = load_weights(resized, tmp_path / 'learned.pth')
    assert {entry.split()[0] for entry in report.resized} == set(position_tables(learned))
    x = images(1, 3, *(size if isinstance(size, tuple) else (size, size)))
    with torch.no_grad():
        for found, expected in zip(learned(x), resized(x), strict=True):
            assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_resized_tables_keep_their_place_in_the_map():
    model = PolaPVT(SMALL, pretrain_img_size=64, out_indices=(0,)).eval()
    with torch.no_grad():
        model.stages[0].pos_embed.unflatten(1, (16, 16))[:, :8].fill_(1.0)  # the upper half
    black = torch.zeros(1, 3, 128, 128)
    with torch.no_grad():
        tokens, grid = model.stem(black)
        model.stages[0].blocks = torch.nn.ModuleList()
        added = model(black)[0].flatten(2).transpose(1, 2) - tokens
    assert grid == (32, 32)
    rows = added.unflatten(1, grid).mean(dim=(0, 2, 3))
    assert_close(rows[:15], torch.ones(15))
    assert_close(rows[17:], torch.zeros(15))


def test_every_token_is_read_if_the_reduction_does_not_divide_the_map():
    model = randomised(PolaPVT(SMALL, pola_sr_ratios=(8, 4, 2, 1), pretrain_img_size=64)).double().eval()
    tokens = images(1, 9 * 12, 16, dtype=torch.float64).requires_grad_()
    model.stages[0].blocks[0].attn(tokens, (9, 12))[:, 0].sum().backward()  # one query attends to all keys
    assert (tokens.grad.abs().sum(dim=-1) > 0).all()


def test_leaves_out_later_stages_and_still_loads_the_whole_file(golden, tmp_path):
    record = golden('pola_pvt_llll')
    torch.save(record['checkpoint'], tmp_path / 'authors.pth')
    model = PolaPVT(SMALL, pretrain_img_size=64, out_indices=(1,))
    assert len(model.stages) == 2
    load_weights(model, tmp_path / 'authors.pth')
    (feature,) = model.double().eval()(record['image_u8'].double() / 64 - 2)
    assert relative_error(feature, record['features'][1]) < 1e-6


@pytest.mark.parametrize('name', ['pola_sr_ratios', 'softmax_sr_ratios'])
@pytest.mark.parametrize('ratios', [(8, 4, 2), (8, 4, 2, 0), '8421'])
def test_reduction_ratios_that_are_not_four_integers_are_refused(name, ratios):
    with pytest.raises(ValueError, match=f'{name}: expected four positive integers'):
        PolaPVT(SMALL, **{name: ratios})
