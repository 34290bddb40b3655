"""PolaMultiheadAttention: equations, masks, the weights of nn.MultiheadAttention, and its places in
torch and mmcv.
"""

import pytest
import torch
import torch.nn.functional as F
from mmcv.cnn.bricks.transformer import MultiheadAttention
from torch import nn

from mmpola.layers import PolaMultiheadAttention


def build(*args, **kwargs):
    """Build a layer in float64 with drawn parameters."""
    attention = PolaMultiheadAttention(*args, batch_first=True, **kwargs).double()
    for parameter in attention.parameters():
        nn.init.normal_(parameter, std=0.5)
    return attention


def draw(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def literal(attention, query, key, value, weight):
    """Write the layer down with [N, M] weights, of which those of a key are multiplied by `weight`
    [B, M].
    """
    projections = attention.in_proj_weight
    if projections is None:
        projections = attention.q_proj_weight, attention.k_proj_weight, attention.v_proj_weight
    else:
        projections = projections.chunk(3)
    q, k, v = (
        F.linear(x, w, b).unflatten(-1, (2, 4)).transpose(1, 2)
        for x, w, b in zip(
            (query, key, value), projections, attention.in_proj_bias.chunk(3), strict=True
        )
    )
    learned = attention.feature_map.map_for(q)
    q, k = (x / learned.scale[:, None] for x in (q, k))
    positive_q, negative_q, positive_k, negative_k = (
        x.relu() ** learned.exponent[:, None] for x in (q, -q, k, -k)
    )
    same = positive_q @ positive_k.mT + negative_q @ negative_k.mT
    opposite = positive_q @ negative_k.mT + negative_q @ positive_k.mT
    weights = [x * weight[:, None, None] for x in (same, opposite)]
    streams = [
        w / (w.sum(-1, keepdim=True) + 1e-6) @ half
        for w, half in zip(weights, v.chunk(2, -1), strict=True)
    ]
    attended = torch.cat(streams, dim=-1).transpose(1, 2).flatten(2)
    return attention.out_proj(
        attended if attention.gate is None else attended * attention.gate(query)
    )


@pytest.mark.parametrize('arguments', [{}, {'gate': True}, {'kdim': 6, 'vdim': 10}], ids=str)
def test_equals_the_equations_written_literally(arguments):
    attention = build(8, 2, **arguments)
    query, key, value = (
        draw(2, 5, 8),
        draw(2, 7, arguments.get('kdim', 8)),
        draw(2, 7, arguments.get('vdim', 8)),
    )
    added = draw(2, 7)
    added[0, 2:4] = -torch.inf
    added -= added.amax(-1, keepdim=True)  # which only changes what epsilon adds
    for mask, weight in (
        (None, torch.ones(2, 7)),
        (added == -torch.inf, added != -torch.inf),
        (added, added.exp()),
    ):
        found, weights = attention(query, key, value, mask)
        assert weights is None
        torch.testing.assert_close(found, literal(attention, query, key, value, weight))


@pytest.mark.parametrize('float_mask', [False, True])
@pytest.mark.parametrize('arguments', [{}, {'gate': True}, {'kdim': 6, 'vdim': 10}], ids=str)
def test_padded_keys_change_no_output_and_no_gradient(arguments, float_mask):
    """Whatever they hold; nor does it matter whether they are there."""
    attention = build(8, 2, **arguments)
    shapes = [(2, 5, 8), (2, 9, attention.kdim), (2, 9, attention.vdim)]
    mask = torch.arange(9).expand(2, 9) >= 6
    if float_mask:
        mask = draw(2, 9).masked_fill(mask, -torch.inf)
    finite = [draw(*shape) for shape in shapes]
    broken = [x.clone() for x in finite]
    for x in broken[1:]:
        x[:, 6] = torch.nan
        x[:, 7] = torch.inf

    def gradients(inputs):
        inputs = [x.requires_grad_() for x in inputs]
        output, _ = attention(*inputs, mask)
        leaves = [*inputs, *attention.parameters()]
        return [output, *torch.autograd.grad(output.square().sum(), leaves)]

    found = gradients(broken)
    torch.testing.assert_close(found, gradients(finite))
    for of_padding in (found[2][:, 6:], found[3][:, 6:]):
        assert not of_padding.any()
    query, *shorter = finite[0], finite[1][:, :6], finite[2][:, :6]
    alone, _ = attention(query, *shorter, mask[:, :6])
    torch.testing.assert_close(found[0], alone, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize('float_mask', [False, True])
def test_a_sample_without_keys_attends_to_nothing_and_has_gradients_of_zero(float_mask):
    attention = build(8, 2)
    x = draw(2, 5, 8).requires_grad_()
    mask = torch.tensor([[True], [False]]).expand(2, 5)
    if float_mask:
        mask = torch.zeros(2, 5, dtype=torch.float64).masked_fill(mask, -torch.inf)
        mask.requires_grad_()
    leaves = [x, *attention.parameters()]
    if float_mask:
        leaves.append(mask)
    output, _ = attention(x, x, x, mask)
    nothing = attention.out_proj.bias.expand(5, 8)
    torch.testing.assert_close(output[0], nothing, rtol=0, atol=0)
    gradients = torch.autograd.grad(output.square().sum(), leaves)
    assert all(gradient.isfinite().all() for gradient in gradients)
    assert not gradients[0][0].any()
    assert gradients[0][1].any()


@pytest.mark.parametrize('constant', [-1e4, -20.0, 100.0])
def test_a_constant_added_to_all_keys_changes_nothing(constant):
    attention = build(8, 2)
    x, mask = draw(2, 5, 8), draw(2, 5)
    torch.testing.assert_close(attention(x, x, x, mask + constant)[0], attention(x, x, x, mask)[0])


def test_layouts_agree():
    attention = build(8, 2)
    x, mask = draw(3, 5, 8), torch.rand(3, 5) < 0.3
    expected, _ = attention(x, x, x, mask)
    for sample, of_sample, alone in zip(x, mask, expected, strict=True):
        torch.testing.assert_close(attention(sample, sample, sample, of_sample)[0], alone)
    attention.batch_first = False
    torch.testing.assert_close(
        attention(*[x.transpose(0, 1)] * 3, mask)[0], expected.transpose(0, 1)
    )


@pytest.mark.parametrize(
    ('name', 'value'),
    [
        ('need_weights', True),
        ('attn_mask', torch.zeros(5, 5)),
        ('is_causal', True),
        ('key_padding_mask', torch.zeros(5, 2)),
        ('key_padding_mask', torch.zeros(2, 5).long()),
    ],
)
def test_what_linear_attention_cannot_do_is_refused(name, value):
    x = torch.randn(2, 5, 8)
    with pytest.raises((TypeError, ValueError), match=f'^{name}: expected .*, got [^\n]*$'):
        PolaMultiheadAttention(8, 2, batch_first=True)(x, x, x, **{name: value})


@pytest.mark.parametrize(
    'shapes',
    [
        [(1, 2, 5, 8)] * 3,
        [(8,)] * 3,
        [(5, 8), (2, 5, 8), (2, 5, 8)],
        [(2, 5, 8), (2, 9, 6), (2, 9, 8)],
        [(2, 5, 8), (2, 9, 8), (2, 8, 8)],
        [(2, 5, 8), (3, 5, 8), (3, 5, 8)],
    ],
    ids=str,
)
def test_shapes_that_do_not_fit_each_other_are_refused(shapes):
    with pytest.raises(ValueError, match=r'^query, key, value: expected '):
        PolaMultiheadAttention(8, 2, batch_first=True)(*map(torch.randn, shapes))


def test_a_mask_of_unbatched_keys_has_one_axis():
    query, key = draw(5, 8), draw(7, 8)
    with pytest.raises(ValueError, match=r'^key_padding_mask: expected \[7\].*got \[1, 7\]$'):
        build(8, 2)(query, key, key, draw(1, 7))


@pytest.mark.filterwarnings('ignore:.*nested tensors is in prototype')
def test_an_encoder_that_is_built_already_needs_its_switch():
    encoder = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 1
    ).eval()
    encoder.layers[0].self_attn = PolaMultiheadAttention(8, 2, batch_first=True)
    x, padding = torch.randn(2, 5, 8), torch.arange(5).expand(2, 5) >= 3
    with torch.no_grad():
        with pytest.raises(ValueError, match=r'^query: .* set encoder.use_nested_tensor = False$'):
            encoder(x, src_key_padding_mask=padding)
        encoder.use_nested_tensor = False
        assert encoder(x, src_key_padding_mask=padding).isfinite().all()


@pytest.mark.parametrize('arguments', [{}, {'kdim': 6, 'vdim': 10}, {'bias': False}], ids=str)
def test_takes_the_weights_of_softmax_attention(arguments):
    softmax, attention = (
        nn.MultiheadAttention(8, 2, **arguments),
        PolaMultiheadAttention(8, 2, **arguments),
    )
    nn.init.normal_(attention.feature_map.power)
    power = attention.feature_map.power.clone()
    nn.Sequential(attention).load_state_dict(nn.Sequential(softmax).state_dict())
    for name, x in softmax.state_dict().items():
        assert torch.equal(attention.state_dict()[name], x), name
    assert torch.equal(attention.feature_map.power, power)


def test_only_a_whole_feature_map_may_be_missing():
    attention = PolaMultiheadAttention(8, 2)
    for absent in ('out_proj.weight', 'feature_map.power'):
        weights = attention.state_dict()
        del weights[absent]
        with pytest.raises(RuntimeError, match=absent):
            attention.load_state_dict(weights)


@pytest.mark.parametrize('as_stack', [False, True])
def test_transformer_layers_of_torch_run_it_in_eval_mode_too(as_stack):
    """The fused inference of nn.TransformerEncoderLayer would compute softmax attention with its
    weights.
    """
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    layer.self_attn = PolaMultiheadAttention(8, 2, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False) if as_stack else layer
    x, mask = torch.randn(2, 5, 8), torch.arange(5) >= torch.tensor([[5], [3]])
    expected = encoder(x, src_key_padding_mask=mask)
    with torch.inference_mode():
        torch.testing.assert_close(encoder.eval()(x, src_key_padding_mask=mask), expected)
    decoder = nn.TransformerDecoderLayer(8, 2, 16, batch_first=True)
    decoder.multihead_attn = PolaMultiheadAttention(8, 2, batch_first=True)
    assert decoder(torch.randn(2, 3, 8), x, memory_key_padding_mask=mask).shape == (2, 3, 8)


def test_runs_in_the_wrapper_of_mmcv():
    wrapper = MultiheadAttention(8, 2, batch_first=True)
    wrapper.attn = PolaMultiheadAttention(8, 2, batch_first=wrapper.attn.batch_first)
    x, mask = torch.randn(2, 5, 8), torch.arange(5) >= torch.tensor([[5], [3]])
    expected = x + PolaMultiheadAttention.forward(wrapper.attn, *[x.transpose(0, 1)] * 3, mask)[
        0
    ].transpose(0, 1)
    torch.testing.assert_close(wrapper(x, key_padding_mask=mask), expected)


def test_dropout_is_of_training():
    attention, x = PolaMultiheadAttention(8, 2, dropout=0.5), torch.randn(4, 2, 8)
    assert not torch.equal(attention(x, x, x)[0], attention(x, x, x)[0])
    attention.eval()
    assert torch.equal(attention(x, x, x)[0], attention(x, x, x)[0])
