"""The effective rank of the token mixing, compared with singular values of whole matrices."""

import pytest
import torch

from mmpola.analysis.capture import observe
from mmpola.analysis.rank import convolution_rows, effective_rank, effective_ranks
from mmpola.analysis.weights import attention_rows
from mmpola.layers import PolaAttention, PolaPlusAttention, rotary_tables
from mmpola.ops.reference import convolve_tokens
from tests.helpers.analysis import OneLayer

GRID = (5, 6)
LAYERS = {
    'one kernel for all heads': lambda: OneLayer(PolaAttention(24, 3, GRID), GRID),
    'a kernel per channel': lambda: OneLayer(
        PolaPlusAttention(24, 3), GRID, rotary_tables(GRID, 16, None, torch.float32)
    ),
}


def test_values():
    values = torch.tensor([[1.0, 1, 1, 1], [5, 0, 0, 0]])
    torch.testing.assert_close(effective_rank(values), torch.tensor([4.0, 1.0]))


@pytest.mark.parametrize('index', [torch.arange(30), torch.tensor([29, 0, 7])])
def test_rows_of_a_convolution(index):
    kernels, values = torch.randn(2, 5, 5), torch.randn(30)
    expected = convolve_tokens(values.expand(2, -1).mT[None], kernels.unsqueeze(1), None, GRID)[0, index]
    rows, tokens = convolution_rows(kernels, GRID, index)
    torch.testing.assert_close(rows @ values[tokens], expected.mT)


@pytest.mark.parametrize('name', LAYERS)
def test_ranks_are_those_of_the_whole_matrices(name):
    model = LAYERS[name]()
    torch.nn.init.normal_(model.conv.weight, std=0.02)  # so that attention and convolution are of similar size
    (layer,) = observe(model, torch.randn(1, 24, *GRID), lambda layer: layer).values()
    found = effective_ranks(layer, rows=30, channels=4)
    weights = attention_rows(layer.attention, ('same', 'opposite'))(torch.arange(30))
    kernels = model.conv.weight[:, 0].double()
    assert found.rows == 30
    for stream, kind in enumerate(('same', 'opposite')):
        for head in range(3):
            attention = weights[kind][head].double()
            expected = effective_rank(torch.linalg.svdvals(attention)).item()
            assert found.attention[stream, head] == pytest.approx(expected, rel=1e-5)
            assert found.attention_rows[stream, head] == pytest.approx(expected, rel=1e-4)
            channels = [(head * 8 + stream * 4 + d) % len(kernels) for d in range(4)]
            mixed = attention + convolution_rows(kernels[channels], GRID, torch.arange(30))[0]
            expected = effective_rank(torch.linalg.svdvals(mixed)).mean().item()
            assert found.mixing_rows[stream, head] == pytest.approx(expected, rel=1e-5)
    assert effective_ranks(layer, rows=11, channels=1).mixing_rows.max() <= 11


def test_a_layer_that_reduces_its_keys_has_no_square_mixing_matrix():
    model = OneLayer(PolaAttention(24, 3, GRID, sr_ratio=2), GRID)
    (layer,) = observe(model, torch.randn(1, 24, *GRID), lambda layer: layer).values()
    assert (layer.grid, layer.key_grid) == (GRID, (3, 3))
    ranks = effective_ranks(layer, rows=30, channels=4)
    assert ranks.mixing_rows is None
    assert (ranks.attention <= 9).all()
