"""Statistics of a layer: entropy, known gates, ranks of whole matrices."""

import math
from dataclasses import replace

import pytest
import torch

from mmpola.layers import PolaAttention, PolaFormerPPAttention, PolaSpatialReductionAttention
from mmpola.ops.inputs import AttentionInputs
from mmpola.ops.reference import convolve_tokens
from mmpola.papers.analysis.attention_weights import WEIGHT_KINDS, attention_rows
from mmpola.papers.analysis.capture import observe
from mmpola.papers.analysis.statistics import (
    RANK_KINDS,
    convolution_rows,
    correlation,
    effective_rank,
    effective_ranks,
    gate_statistics,
    positive_sequence_entropy,
    principal_components,
    row_entropies,
)
from tests.helpers import attention
from tests.helpers.models import OneLayer

GRID = (5, 6)
LAYERS = {
    'one kernel for all heads': lambda: OneLayer(PolaAttention(24, 3, grid=GRID)),
    'a kernel per channel': lambda: OneLayer(PolaFormerPPAttention(24, 3)),
}


def test_values_of_the_entropy():
    x = torch.tensor([[3.0, 3, 3, 3], [0, 7, 0, 0], [1, 1, 0, 0], [0, 0, 0, 0]])
    expected = torch.tensor([math.log(4), 0, math.log(2), math.nan])
    torch.testing.assert_close(positive_sequence_entropy(x), expected, equal_nan=True)


@pytest.mark.parametrize(
    'chunk', [60, 1]
)  # two rows of 3 heads x 9 keys at a time, and one, which has more
def test_entropy_of_rows_without_rotary_tables(chunk, monkeypatch):
    monkeypatch.setattr('mmpola.papers.analysis.statistics.CHUNK_WEIGHTS', chunk)
    q, k, v = attention.draw(batch=1, queries=9, keys=9)
    inputs = AttentionInputs(
        q, k, v, attention.make_map('exp'), None, attention.rotary_tables(9, 4), 1e-6
    )
    index = torch.tensor([4, 0, 8, 3, 1])
    found = row_entropies(inputs, index)
    rows = attention_rows(replace(inputs, rotary=None))(index)
    assert tuple(found) == WEIGHT_KINDS
    for kind, weights in rows.items():
        torch.testing.assert_close(found[kind], positive_sequence_entropy(weights), equal_nan=True)
        assert (found[kind].nan_to_num() <= math.log(9)).all()


def test_means_and_correlations_of_each_head():
    """Head 0: the opposite-signed half is 2 minus the same-signed one. Head 1: both are equal."""
    same = torch.randn(50, 2, 3)
    opposite = torch.stack([2 - same[:, 0], same[:, 1]], dim=1)
    gate = torch.cat([same, opposite], dim=-1).flatten(1)[None]  # [1, 50, 2 heads x (3 + 3)]
    found = gate_statistics(gate, heads=2)
    torch.testing.assert_close(
        torch.from_numpy(found.mean), torch.stack([same.mean((0, 2)), opposite.mean((0, 2))])
    )
    torch.testing.assert_close(torch.from_numpy(found.std[0]), same.std((0, 2), correction=0))
    assert found.correlation == pytest.approx([-1, 1])
    assert found.token_correlation == pytest.approx([-1, 1])
    assert found.components.shape == (2, 50, 2)


def test_correlation_is_pearsons():
    x, y = torch.randn(2, 40, dtype=torch.float64)
    assert correlation(x, y) == pytest.approx(torch.corrcoef(torch.stack([x, y]))[0, 1].item())


def test_principal_components_of_a_plane_explain_everything():
    axes = torch.linalg.qr(torch.randn(6, 6)).Q[:2]
    plane = torch.randn(100, 2) * torch.tensor([3.0, 1.0])
    projected, explained = principal_components(plane @ axes + 5)
    assert explained.sum() == pytest.approx(1, abs=1e-5)
    assert explained[0] > explained[1]
    distances = torch.cdist(plane, plane)
    torch.testing.assert_close(torch.cdist(projected, projected), distances, rtol=1e-3, atol=1e-2)


def test_values_of_the_effective_rank():
    values = torch.tensor([[1.0, 1, 1, 1], [5, 0, 0, 0]])
    torch.testing.assert_close(effective_rank(values), torch.tensor([4.0, 1.0]))


@pytest.mark.parametrize('index', [torch.arange(30), torch.tensor([29, 0, 7])])
def test_rows_of_a_convolution(index):
    kernels, values = torch.randn(2, 5, 5), torch.randn(30)
    expected = convolve_tokens(values.expand(2, -1).mT[None], kernels.unsqueeze(1), None, GRID)[
        0, index
    ]
    rows, tokens = convolution_rows(kernels, GRID, index)
    torch.testing.assert_close(rows @ values[tokens], expected.mT)


@pytest.mark.parametrize('name', LAYERS)
def test_ranks_are_those_of_the_whole_matrices(name):
    model = LAYERS[name]()
    torch.nn.init.normal_(
        model.conv.weight, std=0.02
    )  # so that attention and convolution are of similar size
    (layer,) = observe(model, torch.randn(1, 24, *GRID), lambda layer: layer).values()
    found = effective_ranks(layer, rows=30, channels=4)
    weights = attention_rows(layer.attention, RANK_KINDS)(torch.arange(30))
    for kind, ranks in found.attention.items():
        for head in range(3):
            values = torch.linalg.svdvals(weights[kind][head].double())
            assert ranks[head] == pytest.approx(effective_rank(values).item(), rel=1e-4)
    assert tuple(found.attention) == RANK_KINDS
    kernels = model.conv.weight[:, 0].double()
    assert found.rows == 30
    for stream, kind in enumerate(('same', 'opposite')):
        for head in range(3):
            attention = weights[kind][head].double()
            channels = [(head * 8 + stream * 4 + d) % len(kernels) for d in range(4)]
            mixed = attention + convolution_rows(kernels[channels], GRID, torch.arange(30))[0]
            expected = effective_rank(torch.linalg.svdvals(mixed)).mean().item()
            assert found.mixing[stream, head] == pytest.approx(expected, rel=1e-5)
    assert effective_ranks(layer, rows=11, channels=1).mixing.max() <= 11


def test_a_layer_that_reduces_its_keys_has_no_square_mixing_matrix():
    model = OneLayer(PolaSpatialReductionAttention(24, 3, grid=GRID, sr_ratio=2))
    (layer,) = observe(model, torch.randn(1, 24, *GRID), lambda layer: layer).values()
    assert (layer.grid, layer.key_grid) == (GRID, (3, 3))
    ranks = effective_ranks(layer, rows=30, channels=4)
    assert ranks.mixing is None
    assert all((of_heads <= 9).all() for of_heads in ranks.attention.values())
