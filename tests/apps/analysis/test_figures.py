"""Charts of all layers: their legends name everything that is drawn."""

import pytest
import torch
from matplotlib.legend import Legend

from mmpola.apps.analysis import analyze_layer, observe
from mmpola.apps.analysis.figures import (
    draw_entropy,
    draw_gates,
    draw_parameters,
    draw_rank,
    save_figure,
)
from mmpola.backbones import PolaPVT

STREAMS = ['same-signed', 'opposite-signed']


@pytest.fixture(scope='module')
def layers():
    """Analyses of a small backbone's layers, which have two heads."""
    arch = {
        'embed_dims': (16,) * 4,
        'depths': (1,) * 4,
        'num_heads': (2,) * 4,
        'mlp_ratios': (1,) * 4,
    }
    model = PolaPVT(arch, pretrain_img_size=64)
    return list(
        observe(
            model, torch.randn(1, 3, 64, 64), lambda layer: analyze_layer(layer, [(0, 0)])
        ).values()
    )


def legends(figure):
    """The entries of all legends of a figure."""
    return [[text.get_text() for text in legend.get_texts()] for legend in figure.findobj(Legend)]


def test_legends_name_dots_and_colours(layers):
    means, correlations, components = legends(draw_gates(layers))
    assert means == [*STREAMS, 'single heads']
    assert correlations == ['of paired channels', "of the tokens' means", 'single heads']
    assert components == STREAMS
    assert legends(draw_entropy(layers))[0][-1] == 'single heads'
    (ranks,) = legends(draw_rank(layers))
    assert ranks == [
        'polarity-aware, and convolution',
        'softmax',
        'linear, ReLU only',
        'linear, elu + 1',
        'polarity-aware, each stream',
        'single heads',
    ]
    assert legends(draw_parameters(layers)) == [['mean', 'single channels']]


def test_texts_of_a_pdf_stay_texts(layers, tmp_path):
    save_figure(draw_entropy(layers), tmp_path / 'photo', 'entropy')
    assert b'/FontFile2' in (tmp_path / 'photo' / 'entropy.pdf').read_bytes()
