"""Charts of all layers: their legends name everything that is drawn."""

import numpy as np
import pytest
import torch
from matplotlib.legend import Legend
from PIL import Image

from mmpola.apps.analysis import analyze_layer, observe
from mmpola.apps.analysis.charts import draw_entropy, draw_gates, draw_parameters, draw_rank
from mmpola.apps.analysis.geometry import Geometry
from mmpola.apps.analysis.maps import AnalyzedImage, draw_maps
from mmpola.apps.analysis.saving import Style, save_figure
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
    assert legends(draw_rank(layers)) == [
        ['attention and convolution', 'attention', 'single heads, each stream']
    ]


def test_ticks_of_parameters_have_no_offset(layers):
    for axes in draw_parameters(layers).axes:
        assert not axes.yaxis.get_major_formatter().get_useOffset()


@pytest.mark.parametrize(('suffix', 'live'), [('pdf', b'/FontFile2'), ('svg', b'<text')])
def test_texts_of_a_saved_figure_stay_texts(layers, tmp_path, suffix, live):
    path = tmp_path / f'entropy.{suffix}'
    save_figure(draw_entropy(layers), path, Style())
    assert live in path.read_bytes()


def test_style_of_a_saved_figure(layers, tmp_path):
    scene = AnalyzedImage(
        np.zeros((60, 90, 3), np.uint8), [(0, 0)], Geometry((1, 1), (0, 0), (60, 90))
    )
    figure = draw_maps(scene, layers[0], 4)
    assert figure.get_suptitle()
    for _ in range(2):  # as for two formats
        save_figure(
            figure, tmp_path / 'maps.png', Style(dpi=100, colour_map='magma', width=7, title=False)
        )
    assert Image.open(tmp_path / 'maps.png').width == 700
    assert not figure.get_suptitle()
    assert {image.get_cmap().name for axes in figure.axes for image in axes.images} == {
        'gray',
        'magma',
    }
