"""Charts of all layers: their legends name everything that is drawn."""

import numpy as np
import pytest
import torch
from matplotlib.legend import Legend

from mmpola.backbones import PolaPVT
from mmpola.papers.analysis import analyze_layer, observe
from mmpola.papers.analysis.figures import (
    draw_entropy,
    draw_gates,
    draw_parameters,
    draw_rank,
    draw_sorted,
    save_figure,
)

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
        'linear, FLatten',
        'linear, elu + 1',
        'polarity-aware, each stream',
        'single heads',
    ]
    assert legends(draw_parameters(layers)) == [['mean', 'single channels']]


def test_sorted_weights_fall_and_are_those_of_the_maps(layers):
    figure = draw_sorted(layers)
    ((*kinds,),) = legends(figure)
    assert kinds == [
        'same-signed stream',
        'opposite-signed stream',
        'polarity-aware, both streams',
        'linear, elu + 1',
        'linear, FLatten',
        'softmax',
    ]
    panels = figure.axes[: len(layers)]
    for axes, layer in zip(panels, layers, strict=True):
        softmax = layer.maps['softmax'][0]  # [H, h, w]
        keys = softmax[0].size
        (line,) = [line for line in axes.lines if line.get_label() == 'softmax']
        ranks, weights = line.get_data()
        assert (ranks[0], ranks[-1]) == (1, keys)
        assert (np.diff(weights) <= 0).all()
        largest = [head.max() for head in softmax]
        smallest = [head.min() for head in softmax]
        assert weights[0] == pytest.approx(keys * np.mean(largest))
        assert weights[-1] == pytest.approx(keys * np.mean(smallest))


def test_texts_of_a_pdf_stay_texts(layers, tmp_path):
    save_figure(draw_entropy(layers), tmp_path / 'photo', 'entropy')
    assert b'/FontFile2' in (tmp_path / 'photo' / 'entropy.pdf').read_bytes()
