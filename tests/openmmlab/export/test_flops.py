"""Multiply-accumulates of the published models, and the sizes at which configs are counted."""

import pytest
import torch
from mmengine.config import Config
from mmengine.model import BaseModel
from mmengine.registry import MODELS

from mmpola.backbones import PolaDeiT, PolaFormerPP, PolaPVT, PolaSwin
from mmpola.backbones.classifier import Classifier
from mmpola.layers import PolaAttention
from mmpola.openmmlab.export.flops import count_macs, count_model
from mmpola.openmmlab.export.size import input_size
from tests.helpers.configs import shrink
from tests.helpers.processes import run_script
from tests.helpers.refusals import refusal


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


@pytest.mark.parametrize(('dim', 'heads', 'side'), [(64, 1, 16), (96, 3, 14), (128, 4, 8)])
def test_a_layer_counts_like_equation_10_of_the_paper(dim, heads, side):
    """But for the two denominators, which it leaves out, and the gate, which is no product."""
    with torch.device('meta'):
        layer = PolaAttention(dim, num_heads=heads, dwc_kernel_size=5)
    tokens = side * side
    projections = 5 * tokens * dim**2
    streams = 4 * tokens * dim * (dim // heads)
    convolution = 5**2 * tokens * dim
    gate = tokens * dim
    equation_10 = projections + streams + convolution + gate
    denominators = 4 * tokens * dim
    assert count_macs(layer, (side, side), channels=dim) == equation_10 - gate + denominators


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


@pytest.mark.parametrize('name', ['dino_pola_swin_t_1x', 'mask2former_pola_swin_t_50e'])
def test_a_forward_pass_that_reads_values_is_counted_on_the_cpu(name, root, shapes, tmp_path):
    cfg = shrink(Config.fromfile(root / 'configs' / f'{name}.py'), shapes, tmp_path)
    small = count_model(cfg, (64, 64))
    large = count_model(cfg, (128, 128))
    assert small[0] == large[0]
    assert large[1] > 1.5 * small[1]


@MODELS.register_module()
class OfPairs(BaseModel):
    """A model that one image is not enough for."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))

    def forward(self, inputs, data_samples=None, mode='tensor'):
        first, second = inputs
        return first * self.weight - second


def test_what_cannot_be_counted_is_one_line():
    message = refusal(count_model, Config({'model': {'type': 'OfPairs'}}), (8, 9))
    assert message.startswith('model: OfPairs cannot be counted on one sample of [8, 9]: ')
    assert message.endswith('ValueError: not enough values to unpack (expected 2, got 1)')
