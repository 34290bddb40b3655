"""Effective receptive fields: exact ones of small networks, and tools/receptive_field.py."""

from itertools import pairwise

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from torch import nn

from mmpola import PolaSwin
from mmpola.apps.analysis import areas, draw_receptive_fields, effective_receptive_field
from tests.helpers.processes import run_script


def convolutions(depth):
    """Convolutions of 3 x 3 with positive weights."""
    layers = [
        nn.Conv2d(3, 4, 3, padding=1),
        *(nn.Conv2d(4, 4, 3, padding=1) for _ in range(depth - 1)),
    ]
    for layer in layers:
        layer.weight.data.abs_()
    return nn.Sequential(*layers)


def test_field_of_convolutions_is_their_square():
    model = convolutions(3)
    field = effective_receptive_field(model, torch.rand(2, 3, 15, 17))
    expected = np.zeros((15, 17), bool)
    expected[7 - 3 : 7 + 4, 8 - 3 : 8 + 4] = True
    assert np.array_equal(field > 0, expected)
    assert model.training
    assert model[0].weight.grad is None
    # The map is linear: the gradient is the product of the weights, for every image.
    single = effective_receptive_field(model, torch.rand(1, 3, 15, 17))
    np.testing.assert_allclose(field, single, rtol=1e-5)
    assert areas(field, [1]) == [49 / 255]


def test_gradients_of_opposite_signs_do_not_cancel():
    """A tap that reads red minus green has an absolute sum of 2; the centre reads all three."""
    conv = nn.Conv2d(3, 1, 3, padding=1, bias=False)
    nn.init.zeros_(conv.weight)
    with torch.no_grad():
        conv.weight[0, :, 1, 1] = 1.0
        conv.weight[0, 0, 1, 2] = 1.0
        conv.weight[0, 1, 1, 2] = -1.0
    field = effective_receptive_field(
        conv, torch.rand(1, 3, 7, 7) + torch.tensor([2.0, 0.0, 0.0])[:, None, None]
    )
    assert field[3, 4] / field[3, 3] == pytest.approx(2 / 3)


def test_areas_are_those_of_the_smallest_square_anywhere():
    field = np.zeros((8, 12))
    field[5:7, 9:11] = 1, 1
    field[0, 0] = 1
    assert areas(field, [0.2, 0.5, 0.8]) == [1 / 96, 4 / 96, 4 / 96]
    assert areas(np.ones((8, 12)), [0.25, 1]) == [25 / 96, 1]


def test_a_layer_norm_does_not_hide_the_field():
    arch = {'embed_dims': 16, 'depths': (1, 1, 1, 1), 'num_heads': (1, 1, 1, 1)}
    backbone = PolaSwin(arch, out_norm=True, drop_path_rate=0.0)
    images = torch.randn(1, 3, 96, 96)
    field = effective_receptive_field(backbone, images)
    inside = field[32:64, 32:64]  # the pixels of the central cell
    assert inside.min() > 1e-4 * inside.max()
    assert inside.mean() > 2 * field.mean()


def test_what_is_no_map_is_refused():
    for model, rule in (
        (nn.Flatten(), r'expected a map \[B, C, h, w\] as its last result, got \[1, 48\]'),
        (
            nn.Sequential(nn.Conv2d(3, 2, 1), nn.Threshold(1e9, -1.0)),
            'expected finite gradients, not all of them zero',
        ),
    ):
        with pytest.raises(ValueError, match=rule):
            effective_receptive_field(model, torch.rand(1, 3, 4, 4))


def test_panels_have_one_scale_and_their_areas_below():
    field = effective_receptive_field(convolutions(2), torch.rand(1, 3, 9, 9))
    figure = draw_receptive_fields({'one': field, 'ten times as large': 10 * field})
    one, ten, bar = figure.axes
    assert (one.get_title(), ten.get_title()) == ('one', 'ten times as large')
    assert np.array_equal(one.images[0].get_array(), ten.images[0].get_array())
    assert one.get_xlabel().splitlines()[-2:] == ['99% in 30.9%', 'of the area']
    assert bar.get_yscale() == 'log'


def test_the_texts_of_a_narrow_figure_do_not_overlap():
    field = effective_receptive_field(convolutions(2), torch.rand(1, 3, 9, 9))
    figure = draw_receptive_fields(
        dict.fromkeys(('Pola-PVT-T', 'PVT-T', 'Swin-T'), field), width=3.25
    )
    figure.draw_without_rendering()
    *panels, bar = figure.axes
    labels = [axes.xaxis.label.get_window_extent() for axes in panels]
    assert not any(left.overlaps(right) for left, right in pairwise(labels))
    for text in (
        *labels,
        *(axes.title.get_window_extent() for axes in panels),
        bar.yaxis.label.get_window_extent(),
    ):
        assert figure.bbox.x0 <= text.x0 < text.x1 <= figure.bbox.x1
        assert figure.bbox.y0 <= text.y0 < text.y1 <= figure.bbox.y1


def test_script_draws_models_side_by_side(photo, tmp_path, capsys):
    out = tmp_path / 'new' / 'fields.pdf'
    arguments = [
        'pola_deit_tiny',
        'swin_tiny_patch4_window7_224',
        '--size',
        '64',
        '--labels',
        'Pola-DeiT',
        'Swin',
    ]
    assert (
        run_script(
            'receptive_field', *arguments, '--images', photo, '--out', out, '--device', 'cpu'
        )
        == 0
    )
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(':')[0] for line in lines[-3:-1]] == ['Pola-DeiT', 'Swin']
    assert lines[-1] == f'wrote {out}'
    assert out.read_bytes().startswith(b'%PDF')


@pytest.mark.parametrize('model', ['pola_deit_tiny', 'resnet18'])
def test_weights_that_do_not_fit_are_refused(model, tmp_path, capsys):
    path = tmp_path / 'other.pth'
    torch.save(nn.Linear(2, 2).state_dict(), path)
    assert run_script('receptive_field', f'{model}={path}', '--out', tmp_path / 'fields.png') == 2
    assert f'error: {model}={path}: ' in capsys.readouterr().err


@pytest.mark.parametrize('name', ['swin_tiny_patch4_window7_224', 'resnet18'])
def test_a_classifier_of_timm_has_the_field_of_its_features(name):
    torch.manual_seed(0)
    model = timm.create_model(name)
    weights, image = model.state_dict(), torch.randn(1, 3, 224, 224)
    features = timm.create_model(name, features_only=True)
    features.load_state_dict(
        {
            key.replace('layers.', 'layers_'): weights[key.replace('layers_', 'layers.')]
            for key in weights
            if not key.startswith(('head', 'norm', 'fc'))
        }
    )
    np.testing.assert_allclose(
        effective_receptive_field(features, image),
        effective_receptive_field(model, image),
        rtol=1e-3,
        atol=1e-7,
    )


@pytest.mark.parametrize(
    ('arguments', 'error'),
    [
        (
            ['pola_swin_tny'],
            'MODEL: expected a name of timm.list_models() or of mmpola, got pola_swin_tny; did',
        ),
        (['resnet18', 'resnet18'], '--labels: expected 2 different ones, got resnet18, resnet18'),
        (['resnet18', '--size', '0'], '--size: expected at least 1, got 0'),
        (
            ['resnet18', '--cmap', 'virids'],
            '--cmap: expected a colour map of matplotlib, got virids; did',
        ),
        (['resnet18', '--dpi', '0'], '--dpi: expected a number from 10 to 1200, got 0'),
        (['pola_deit_tiny=absent.pth'], 'pola_deit_tiny=absent.pth: FileNotFoundError'),
        (
            ['resnet18', '--out', 'fields.jpg'],
            '--out: expected a file of the formats png, svg, pdf, got fields.jpg',
        ),
    ],
)
def test_script_refuses(arguments, error, tmp_path, capsys):
    assert run_script('receptive_field', '--out', tmp_path / 'fields.png', *arguments) == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith(f'error: {error}')
    assert not any(tmp_path.iterdir())


def test_script_overwrites_only_with_permission(tmp_path, capsys):
    out = tmp_path / 'fields.png'
    Image.new('RGB', (1, 1)).save(out)
    assert run_script('receptive_field', 'resnet18', '--out', out) == 2
    assert 'expected a new file' in capsys.readouterr().err
    options = [
        '--size',
        '32',
        '--number',
        '1',
        '--width-inches',
        '3',
        '--dpi',
        '100',
        '--overwrite',
    ]
    assert run_script('receptive_field', 'resnet18', '--out', out, *options) == 0
    assert Image.open(out).width == 300
