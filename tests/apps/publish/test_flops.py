"""Multiply-accumulates of the published models, and the sizes at which configs are counted."""

import pytest
import torch
from mmengine.config import Config

from mmpola.apps.publish.flops import count_macs, count_model, input_size
from mmpola.backbones import PolaDeiT, PolaFormerPP, PolaPVT, PolaSwin
from mmpola.backbones.classifier import Classifier
from tests.helpers.processes import run_script


@pytest.mark.parametrize(
    ('backbone', 'arch', 'size', 'expected'),
    [
        (PolaPVT, 'tiny', 224, 2.27),
        (PolaPVT, 'large', 224, 11.55),
        (PolaSwin, 'tiny', 224, 4.68),
        (PolaSwin, 'base', 384, 47.33),
        (PolaFormerPP, 'b0', 224, 0.67),
        (PolaFormerPP, 'b5', 224, 17.74),
    ],
)
def test_gmacs_of_the_released_classifiers(backbone, arch, size, expected):
    """Expected values were counted on the authors' code, with softmax products."""
    arguments = {'window_size': 12, 'pretrain_img_size': size} if size == 384 else {}
    with torch.device('meta'):
        model = Classifier(backbone, 1000, arguments={'arch': arch, **arguments}).eval()
    assert count_macs(model, (size, size)) == pytest.approx(expected * 1e9, rel=0.03)


def test_a_deformable_convolution_counts_like_an_ordinary_one():
    """On 14 x 14 tokens.

    The convolution of the offsets is dense, with 50 outputs per head and token.
    """
    counts = {}
    for mixing in (None, 'dwc', 'dcn'):
        with torch.device('meta'):
            counts[mixing] = count_macs(PolaDeiT('tiny', mixing=mixing).eval(), (224, 224))
    taps = 12 * 196 * 25 * 192
    assert counts['dwc'] - counts[None] == taps
    assert counts['dcn'] - counts['dwc'] == 50 * taps


@pytest.mark.parametrize(
    ('config', 'size'),
    [
        ('imagenet_pola_pvt_t', (224, 224)),
        ('imagenet_pola_swin_b_384', (384, 384)),
        ('upernet_pola_swin_t_160k', (512, 512)),
        ('mask_rcnn_pola_swin_t_1x', (800, 1280)),
        ('lra_text_softmax', (4096,)),
    ],
)
def test_a_config_is_counted_at_its_own_size(config, size, root):
    assert input_size(Config.fromfile(root / 'configs' / f'{config}.py')) == size


def test_the_script_counts_a_detector_with_its_region_heads(tiny_config, capsys):
    assert run_script('get_flops', tiny_config, '--shape', 80, 96) == 0
    parameters, macs = count_model(Config.fromfile(tiny_config), (80, 96))
    expected = f'{tiny_config} at 80 x 96: {parameters:,} parameters, {macs / 1e9:.2f} GMACs\n'
    assert capsys.readouterr().out == expected
