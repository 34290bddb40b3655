"""Positive sequence entropy: its values, the theorem of the paper, and the rows of a layer."""

import math

import pytest
import torch

from mmpola.analysis.entropy import positive_sequence_entropy, row_entropies
from mmpola.analysis.weights import KINDS, attention_rows, without_rotary
from mmpola.ops.inputs import AttentionInputs
from tests.helpers.attention_inputs import draw, make_map, rotary_tables


def test_values():
    x = torch.tensor([[3.0, 3, 3, 3], [0, 7, 0, 0], [1, 1, 0, 0], [0, 0, 0, 0]])
    expected = torch.tensor([math.log(4), 0, math.log(2), math.nan])
    torch.testing.assert_close(positive_sequence_entropy(x), expected, equal_nan=True)


@pytest.mark.parametrize('draw_positive', [torch.rand, lambda *shape: torch.randn(*shape).exp()])
def test_a_power_above_one_lowers_the_entropy(draw_positive):
    """The paper's theorem for g(x) = x^p, whose first and second derivatives are positive; below one it is raised."""
    x = draw_positive(200, 50).double()
    entropies = torch.stack([positive_sequence_entropy(x**p) for p in (0.5, 1, 1.01, 1.5, 3, 5)])
    assert (entropies.diff(dim=0) < 0).all()


def test_entropy_of_rows_without_rotary_tables(monkeypatch):
    monkeypatch.setattr('mmpola.analysis.weights.CHUNK_ELEMENTS', 60)  # two rows of 3 heads x 9 keys at a time
    q, k, v = draw(batch=1, queries=9, keys=9)
    inputs = AttentionInputs(q, k, v, make_map('exp'), None, rotary_tables(9, 4), 1e-6)
    index = torch.tensor([4, 0, 8, 3, 1])
    found = row_entropies(inputs, index)
    rows = attention_rows(without_rotary(inputs))(index)
    assert tuple(found) == KINDS
    for kind, weights in rows.items():
        torch.testing.assert_close(found[kind], positive_sequence_entropy(weights), equal_nan=True)
        assert (found[kind].nan_to_num() <= math.log(9)).all()
