"""The paper's argument without training: the tables of docs/paper.md, and theorem 1."""

import math

import numpy as np
import pytest
import torch

from mmpola.ops import PowerMap
from mmpola.ops.inputs import AttentionInputs
from mmpola.papers.analysis import attention_rows, positive_sequence_entropy
from mmpola.papers.analysis.statistics import correlation

TOKENS, HEADS, DIM = 256, 8, 32


def random_inputs(alpha):
    """Inputs of a layer that has just been made: its exponents are 1 + alpha / 2."""
    q, k, v = np.random.default_rng(0).standard_normal((3, 1, TOKENS, HEADS, DIM))
    exponents = torch.full((HEADS, DIM), 1 + alpha / 2, dtype=torch.float64)
    tensors = [torch.from_numpy(x) for x in (q, k, v)]
    return AttentionInputs(*tensors, PowerMap(exponents), None, None, 1e-6)


def products(inputs):
    """q k^T, [H, N, M]."""
    return inputs.q[0].transpose(0, 1) @ inputs.k[0].permute(1, 2, 0)


def measured(inputs):
    """Correlation with q k^T, share of the largest entropy and rank, by the kind of weights.

    The correlation is that of a query's weights of all keys, the mean over queries and heads.
    """
    found = {}
    for kind, weights in attention_rows(inputs)(torch.arange(TOKENS)).items():
        of_weights = correlation(weights, products(inputs)).mean().item()
        entropy = positive_sequence_entropy(weights).mean().item() / math.log(TOKENS)
        rank = torch.linalg.matrix_rank(weights).double().mean().item()
        found[kind] = (of_weights, entropy, rank)
    return found


def correlation_of_the_difference(inputs):
    """That of the same-signed products of features minus the opposite-signed ones."""
    q, k = inputs.q.transpose(1, 2), inputs.k.transpose(1, 2)
    psi, (same, _), (opposite, _) = inputs.feature_map.features(q, k, inputs.eps, paired=False)
    difference = (same - opposite)[0] @ psi[0].mT
    return correlation(difference, products(inputs)).mean().item()


def table(root, first_column):
    """The rows of a table of docs/paper.md, by the text of their first cell."""
    lines = (root / 'docs' / 'paper.md').read_text().splitlines()
    (start,) = [number for number, line in enumerate(lines) if line.startswith(first_column)]
    rows = {}
    for line in lines[start + 2 :]:
        if not line.startswith('|'):
            return rows
        name, *cells = [cell.strip() for cell in line.strip('|').split('|')]
        rows[name] = [float(cell) for cell in cells]
    return rows


def test_the_table_of_the_kinds_of_weights(root):
    found = measured(random_inputs(alpha=4))
    expected = table(root, '| weights |')
    kinds = {
        'elu + 1': 'linear',
        'ReLU': 'relu',
        'FLatten': 'focused',
        'same-signed': 'same',
        'opposite-signed': 'opposite',
        'softmax': 'softmax',
    }
    assert expected.keys() == kinds.keys()
    for name, cells in expected.items():
        of_weights, entropy, rank = found[kinds[name]]
        assert cells == [round(of_weights, 2), round(entropy, 3), rank], name


@pytest.mark.parametrize('alpha', [0, 1, 2, 3, 4, 5, 7])
def test_the_table_of_alpha(alpha, root):
    inputs = random_inputs(alpha)
    found = measured(inputs)
    difference = correlation_of_the_difference(inputs)
    of_same, entropy, rank = found['same']
    expected = [1 + alpha / 2, round(of_same, 2), round(difference, 2), round(entropy, 3)]
    assert table(root, '| α | exponent |')[str(alpha)] == expected  # noqa: RUF001
    assert rank == 2 * DIM


def test_without_a_power_both_streams_together_keep_every_product():
    """(x+ y+ + x- y-) - (x+ y- + x- y+) = x y, where ReLU keeps only the first term."""
    assert correlation_of_the_difference(random_inputs(alpha=0)) == pytest.approx(1, abs=1e-12)


def test_theorem_1_holds_for_random_rows_and_not_for_all():
    """Of g(x) = x^p applied to query and keys before their product, as in the operator."""
    q, k = torch.rand(2, 400, 32, dtype=torch.float64)
    plain = positive_sequence_entropy(q @ k.T)
    for power in (1.5, 2, 3, 5):
        assert (positive_sequence_entropy(q**power @ k.T**power) < plain).all()

    query = torch.tensor([1.0, 1.0])
    keys = torch.tensor([[3.0, 0.0], [2.0, 2.0]])
    before = positive_sequence_entropy(keys @ query)  # of 3, 4
    after = positive_sequence_entropy(keys**2 @ query**2)  # of 9, 8
    assert after > before
