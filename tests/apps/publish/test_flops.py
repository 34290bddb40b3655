"""Multiply-accumulates of the published models and of a detector."""

import pytest
import torch
from mmengine.config import Config

from mmpola.apps.publish.flops import count_macs, countable_model
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
    assert count_macs(model, (size, size))[''] == pytest.approx(expected, rel=0.03)


def test_a_deformable_convolution_counts_like_an_ordinary_one():
    """On 14 x 14 tokens.

    The convolution of the offsets is dense, with 50 outputs per head and token.
    """
    counts = {}
    for mixing in (None, 'dwc', 'dcn'):
        with torch.device('meta'):
            counts[mixing] = count_macs(PolaDeiT('tiny', mixing=mixing).eval(), (224, 224))['']
    taps = 12 * 196 * 25 * 192 / 1e9
    assert counts['dwc'] - counts[None] == pytest.approx(taps)
    assert counts['dcn'] - counts['dwc'] == pytest.approx(50 * taps)


def test_flops_table_of_a_detector(tiny_config, capsys):
    assert run_script('get_flops', tiny_config, '--shape', 80, 96) == 0
    output = capsys.readouterr().out
    for part in ('backbone.stem', 'backbone.stages.3', 'neck', 'roi_head', 'total'):
        assert part in output


def test_flops_reach_the_mask_head(tiny_config):
    model = countable_model(Config.fromfile(tiny_config))
    macs = count_macs(model, (80, 96))
    assert macs['roi_head'] == pytest.approx(
        macs['roi_head.bbox_head'] + macs['roi_head.mask_head']
    )
    assert macs['roi_head.mask_head'] > 0
