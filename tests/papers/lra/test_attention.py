"""Attention on sequences: padding, the gate's initial values, rotation and dropout."""

import pytest
import torch
import torch.nn.functional as F

from mmpola.layers import rotary_tables
from mmpola.layers.initial_weights import GATE_INITS
from mmpola.papers.lra.attention import SEQUENCE_ATTENTION, PolaSequenceAttention

LENGTH, LENGTHS = 40, (24, 1, 13)


def layer(variant, length=LENGTH, **arguments):
    return SEQUENCE_ATTENTION[variant](16, 2, length, **arguments).double()


@pytest.mark.parametrize('variant', SEQUENCE_ATTENTION)
@pytest.mark.parametrize('tokens', [max(LENGTHS), LENGTH])
def test_padding_changes_nothing(variant, tokens):
    """A padded batch gives what each sample gives alone, with the default epsilon, however long the
    padding is.
    """
    attention = layer(variant)
    x = torch.randn(len(LENGTHS), tokens, 16, dtype=torch.float64)
    valid = torch.arange(tokens) < torch.tensor(LENGTHS)[:, None]
    padded = attention(x, valid)
    for sample, found, n in zip(x, padded, LENGTHS, strict=True):
        alone = attention(sample[None, :n], None)[0]
        # the convolution of the last tokens reaches into the padding, whose values are zero like
        # those beyond the end
        torch.testing.assert_close(found[:n], alone, rtol=0, atol=1e-10)


@pytest.mark.parametrize('variant', SEQUENCE_ATTENTION)
def test_gradients_of_one_sequence_are_half_of_those_of_it_twice(variant):
    attention = layer(variant).eval()
    x = torch.randn(1, LENGTH, 16, dtype=torch.float64)
    valid = torch.arange(LENGTH)[None] < 24
    gradients = []
    for number in (1, 2):
        output = attention(x.repeat(number, 1, 1), valid.repeat(number, 1))
        loss = output.square().sum() / number
        gradients.append(torch.autograd.grad(loss, list(attention.parameters())))
    torch.testing.assert_close(*gradients)


def test_a_sample_without_valid_tokens_has_finite_gradients():
    """A black picture, if tokens 0 are masked."""
    x = torch.randn(2, 8, 16, dtype=torch.float64, requires_grad=True)
    valid = torch.arange(8) < torch.tensor([5, 0])[:, None]
    for variant in SEQUENCE_ATTENTION:
        (grad,) = torch.autograd.grad(layer(variant)(x, valid).sum(), x)
        assert grad.isfinite().all(), variant
    softmax = layer('softmax')
    torch.testing.assert_close(softmax(x, valid)[1:], softmax(x[1:]))  # it attends to all


def test_linear_attention_is_its_equation():
    attention = layer('linear')
    x = torch.randn(1, 7, 16, dtype=torch.float64)
    q, k, v = (t.unflatten(-1, (2, 8)) for t in attention.qkv(x).chunk(3, -1))
    weights = torch.einsum('bnhd,bmhd->bhnm', F.elu(q) + 1, F.elu(k) + 1)
    expected = torch.einsum('bhnm,bmhd->bnhd', weights / weights.sum(-1, keepdim=True), v).flatten(
        2
    )
    torch.testing.assert_close(attention(x), attention.proj(expected), rtol=1e-5, atol=1e-7)


def test_alpha_bounds_the_exponents():
    attention = PolaSequenceAttention(16, 2, LENGTH, alpha=7)
    attention.feature_map.power.data.uniform_(-20, 20)
    exponent = attention.feature_map.map_for(torch.empty(0)).exponent
    assert exponent.min() >= 1
    assert 7.9 < exponent.max() <= 8


GATES = {
    'authors': (-0.125, 0.125, 0.125 / 3**0.5),  # nn.Linear's own: U(-1 / sqrt(C), 1 / sqrt(C))
    'kaiming': (-0.125, 0.125, 0.125 / 3**0.5),
    'zeros': (0, 0, 0),
    'normal': (-6, 6, 1),
    'uniform': (0, 1, 1 / 12**0.5),
    'ones': (1, 1, 0),
    'open': (0, 0, 0),
}
"""Lowest and highest weight of a gate of C = 64, and their standard deviation, by `gate_init`."""


@pytest.mark.parametrize('name', GATE_INITS)
def test_the_gates_initial_weight(name):
    low, high, std = GATES[name]
    weight = PolaSequenceAttention(64, 2, LENGTH, gate_init=name).gate.weight
    assert low <= weight.min() and weight.max() <= high
    assert weight.std().item() == pytest.approx(std, rel=0.05)


def test_an_open_gate_starts_as_one():
    gate = PolaSequenceAttention(64, 2, LENGTH, gate_init='open').gate
    assert torch.equal(gate(torch.randn(5, 64)), torch.ones(5, 64))


def test_an_unknown_initial_value_is_named():
    with pytest.raises(ValueError, match=r"^gate_init: expected .*'kaiming'.*, got 'one'$"):
        PolaSequenceAttention(16, 2, LENGTH, plus=True, gate_init='one')


def test_all_channels_of_a_sequence_rotate_with_the_position():
    cos, sin = rotary_tables((5,), 6, None, torch.float64)
    angle = (
        torch.arange(5.0, dtype=torch.float64)[:, None]
        * torch.tensor([1, 1, 0.01, 0.01, 1e-4, 1e-4]).double()
    )
    torch.testing.assert_close(cos, angle.cos())
    torch.testing.assert_close(sin, angle.sin())


def test_weights_of_softmax_attention_are_dropped_in_training_only():
    attention = layer('softmax', attn_drop=0.5)
    x = torch.randn(2, 8, 16, dtype=torch.float64)
    torch.manual_seed(0)
    first = attention(x)
    assert not torch.allclose(attention(x), first)
    attention.eval()
    assert torch.equal(attention(x), attention(x))
    plain = layer('softmax').eval()
    plain.load_state_dict(attention.state_dict())
    assert torch.equal(attention(x), plain(x))


@pytest.mark.parametrize('attn_drop', [-0.1, 1.0])
def test_a_dropout_rate_out_of_range_is_refused(attn_drop):
    with pytest.raises(ValueError, match=f'attn_drop: .* got {attn_drop}'):
        layer('softmax', attn_drop=attn_drop)
