"""The rows of the operator's attention weights, and those of other attention."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from mmpola.ops import PowerMap, polarity_attention
from mmpola.ops.inputs import AttentionInputs
from mmpola.papers.analysis.attention_weights import (
    WEIGHT_KINDS,
    attention_rows,
    sample_tokens,
)
from mmpola.papers.lra.attention import EluSequenceAttention
from tests.helpers.attention import draw, make_map, rotary_tables

CASES = {
    'power': ('power', 7, True, False),
    'power without scale': ('power without scale', 7, False, False),
    'exp': ('exp', 7, False, False),
    'exp with shifts': ('exp', 7, False, False),
    'exp with rotary tables': ('exp', 5, False, True),
}


def inputs_of(case):
    """Inputs for one image: 5 queries, 3 heads of 4 channels, positions or rotary tables."""
    kind, keys, positions, rotary = CASES[case]
    q, k, v = draw(batch=1, keys=keys, std=30.0 if case == 'exp with shifts' else 1.0)
    position = torch.randn(keys, 3, 4, dtype=torch.float64) if positions else None
    tables = rotary_tables(keys, 4) if rotary else None
    return AttentionInputs(q, k, v, make_map(kind), position, tables, 1e-6)


@pytest.mark.parametrize('case', CASES)
def test_weights_times_values_are_the_operators_output(case):
    inputs = inputs_of(case)
    output = polarity_attention(
        inputs.q,
        inputs.k,
        inputs.v,
        inputs.feature_map,
        key_position=inputs.key_position,
        rotary=inputs.rotary,
        eps=inputs.eps,
    )
    index = torch.tensor([4, 0, 2])
    same, opposite = attention_rows(inputs, ('same', 'opposite'))(index).values()  # [H, R, M]
    values = inputs.v[0].transpose(0, 1).chunk(2, dim=-1)  # [H, M, D/2] of each stream
    found = torch.cat([same @ values[0], opposite @ values[1]], dim=-1)
    torch.testing.assert_close(found, output[0, index].transpose(0, 1))


@pytest.mark.parametrize('case', [case for case in CASES if 'rotary' not in case])
def test_rows_are_distributions_up_to_epsilon(case):
    inputs = inputs_of(case)
    rows = attention_rows(replace(inputs, eps=1e-30))(torch.arange(5))
    assert tuple(rows) == WEIGHT_KINDS
    for kind, weights in rows.items():
        assert weights.shape == (3, 5, 7)
        assert (weights >= 0).all()
        if kind != 'relu':  # whose rows may be zero
            torch.testing.assert_close(weights.sum(-1), torch.ones(3, 5, dtype=torch.float64))
    for weights in attention_rows(inputs)(torch.arange(5)).values():
        assert (weights.sum(-1) < 1 + 1e-12).all()
    torch.testing.assert_close(rows['both'], (rows['same'] + rows['opposite']) / 2)


def test_other_attention_for_the_same_queries_and_keys():
    inputs = inputs_of('power without scale')
    rows = attention_rows(inputs)(torch.arange(5))
    q, k, v = (x.transpose(1, 2) for x in (inputs.q, inputs.k, inputs.v))
    torch.testing.assert_close(rows['softmax'] @ v[0], F.scaled_dot_product_attention(q, k, v)[0])
    elu = EluSequenceAttention(12, 3, 7).attend(inputs.q, inputs.q, inputs.k, inputs.v, None)
    torch.testing.assert_close(
        (rows['linear'] @ v[0]).transpose(0, 1).flatten(1), elu[0], rtol=1e-5, atol=1e-5
    )

    ones = torch.ones(3, 4, dtype=torch.float64)
    positive = AttentionInputs(
        inputs.q.abs(), inputs.k.abs(), inputs.v, PowerMap(ones), None, None, 1e-6
    )
    rows = attention_rows(positive)(torch.arange(5))
    torch.testing.assert_close(rows['relu'], rows['same'])  # without negative parts and powers


def flatten_features(x, focusing_factor=3):
    """What a new FocusedLinearAttention of FLatten makes of queries or keys [B, N, C]."""
    scale = F.softplus(torch.zeros(x.shape[-1], dtype=x.dtype))
    x = (F.relu(x) + 1e-6) / scale
    length = x.norm(dim=-1, keepdim=True)
    x = x**focusing_factor
    return x / x.norm(dim=-1, keepdim=True) * length


def test_flattens_weights_for_the_same_queries_and_keys():
    """Lengths are those of all heads together."""
    inputs = replace(inputs_of('power without scale'), eps=1e-30)
    rows = attention_rows(inputs)(torch.arange(5))
    q, k = (flatten_features(x.flatten(2)).unflatten(2, (3, 4))[0] for x in (inputs.q, inputs.k))
    products = torch.einsum('nhd,mhd->hnm', q, k)
    torch.testing.assert_close(rows['focused'], products / products.sum(-1, keepdim=True))


def test_sampled_tokens_are_evenly_spaced():
    assert sample_tokens(5, 9).tolist() == [0, 1, 2, 3, 4]
    assert sample_tokens(10, 4).tolist() == [0, 3, 6, 9]
    assert len(set(sample_tokens(2**25 + 1, 256).tolist())) == 256
    assert sample_tokens(2**25 + 1, 256)[-1] == 2**25
    assert math.isclose(sample_tokens(66600, 256).float().mean(), 66599 / 2, rel_tol=1e-3)
