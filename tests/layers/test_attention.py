"""The linear attention layers: ranges of their parameters, positions on other grids, gradients, names, ablations."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F

from mmpola.layers import DepthwiseDeformableConv, PolaAttention, PolaPlusAttention

LAYERS = {
    'joint': PolaAttention,
    'two projections': partial(PolaAttention, joint=False),
    'stride 2': partial(PolaAttention, sr_ratio=2),
}
EVERY_LAYER = pytest.mark.parametrize('layer', LAYERS.values(), ids=LAYERS)
ABLATIONS = [{'gate': False}, {'mixing': None}, {'mixing': 'dcn'}, {'polarity': False}]
EVERY_ABLATION = pytest.mark.parametrize('ablation', ABLATIONS, ids=str)


@EVERY_LAYER
def test_exponents_and_scales_stay_in_their_ranges(layer):
    attention = layer(8, 2, (4, 4), alpha=3)
    for parameter in attention.feature_map.parameters():
        torch.nn.init.normal_(parameter, std=10)
    feature_map = attention.feature_map()
    assert feature_map.exponent.shape == feature_map.scale.shape == (2, 4)
    assert (feature_map.exponent >= 1).all()
    assert (feature_map.exponent <= 4).all()
    assert (feature_map.scale > 0).all()


@EVERY_LAYER
def test_every_parameter_gets_a_gradient_on_another_grid(layer):
    attention = layer(8, 2, (4, 4))
    torch.nn.init.normal_(attention.positional_encoding)
    output = attention(torch.randn(2, 15, 8), (3, 5))
    assert output.shape == (2, 15, 8)
    output.square().sum().backward()
    for name, parameter in attention.named_parameters():
        assert parameter.grad.abs().sum() > 0, name


@EVERY_LAYER
def test_half_precision_keeps_its_dtype(layer):
    attention = layer(8, 2, (4, 4)).bfloat16()
    assert attention(torch.randn(1, 16, 8, dtype=torch.bfloat16), (4, 4)).dtype == torch.bfloat16


def test_both_projections_compute_the_same_attention():
    """Given the same weights and no reduction, Pola-PVT's layer equals Pola-Swin's."""
    attention, other = (PolaAttention(8, 2, (4, 4), joint=joint).double() for joint in (True, False))
    weights = attention.state_dict()
    for kind in ('weight', 'bias'):
        q, k, v, gate = weights.pop(f'qkvg.{kind}').chunk(4)
        weights |= {f'qg.{kind}': torch.cat([q, gate]), f'kv.{kind}': torch.cat([k, v])}
    other.load_state_dict(weights)
    x = torch.randn(2, 15, 8, dtype=torch.float64)
    torch.testing.assert_close(other(x, (3, 5)), attention(x, (3, 5)))


@pytest.mark.parametrize(
    'build', [lambda: PolaAttention(8, 2, (4, 4), backend='tritn'), lambda: PolaPlusAttention(8, 2, backend='tritn')]
)
def test_an_unknown_backend_is_refused(build):
    with pytest.raises(ValueError) as raised:
        build()
    assert str(raised.value) == "backend: expected one of ['auto', 'triton', 'torch'], got 'tritn'"


def drawn(layer, **arguments):
    """Build a layer in float64 with drawn powers, scales and key positions."""
    attention = layer(8, 2, (4, 4), **arguments).double()
    for table in (*attention.feature_map.parameters(), attention.positional_encoding):
        torch.nn.init.normal_(table)
    return attention


@EVERY_LAYER
@EVERY_ABLATION
def test_an_ablated_layer_trains_all_its_parameters(layer, ablation):
    attention = drawn(layer, **ablation)
    output = attention(torch.randn(2, 15, 8, dtype=torch.float64), (3, 5))
    assert output.shape == (2, 15, 8)
    output.square().sum().backward()
    for name, parameter in attention.named_parameters():
        assert parameter.grad.abs().sum() > 0, name


@EVERY_ABLATION
def test_an_ablated_layer_runs_under_autocast_and_in_half_precision(ablation):
    attention, x = PolaAttention(8, 2, (4, 4), **ablation), torch.randn(1, 16, 8)
    expected = attention(x, (4, 4))
    with torch.autocast('cpu', torch.bfloat16):
        torch.testing.assert_close(attention(x, (4, 4)).float(), expected, rtol=0.1, atol=0.02)
    output = attention.bfloat16()(x.bfloat16(), (4, 4))
    assert output.dtype == torch.bfloat16
    torch.testing.assert_close(output.float(), expected, rtol=0.1, atol=0.02)


def literal(attention, x, grid):
    """Write the layer down with an [N, M] matrix of weights per stream and a padded map, on the training grid."""
    q, k, v, *gate = attention.qkvg(x).chunk(attention.qkvg.out_features // 8, dim=-1)
    learned = attention.feature_map
    exponent, scale = 1 + learned.alpha * learned.power.sigmoid()[0, :, 0], F.softplus(learned.scale)
    q, k = q / scale, (k + attention.positional_encoding) / scale
    q, k, v = (t.unflatten(-1, (2, 4)).transpose(1, 2) for t in (q, k, v))  # [B, H, N, D]
    positive_q, negative_q, positive_k, negative_k = (t.relu() ** exponent[:, None] for t in (q, -q, k, -k))
    if attention.polarity:
        same = positive_q @ positive_k.mT + negative_q @ negative_k.mT
        opposite = positive_q @ negative_k.mT + negative_q @ positive_k.mT
    else:
        same = opposite = positive_q @ positive_k.mT
    tokens = k.shape[2]
    streams = [
        similarity / (similarity.sum(-1, keepdim=True) + 1e-6 * tokens) @ values
        for similarity, values in zip((same, opposite), v.chunk(2, dim=-1), strict=True)
    ]
    mixed = torch.cat(streams, dim=-1).transpose(1, 2).flatten(2)
    if attention.mixing:
        conv = attention.dwc if attention.mixing == 'dwc' else attention.dcn.conv
        maps = v.flatten(0, 1).transpose(1, 2).unflatten(2, grid)
        convolved = F.conv2d(maps, conv.weight, conv.bias, padding=2, groups=4).flatten(2)
        mixed = mixed + convolved.unflatten(0, (-1, 2)).permute(0, 3, 1, 2).flatten(2)
    return attention.proj(mixed * gate[0] if gate else mixed)


@pytest.mark.parametrize('ablation', [{}, *ABLATIONS], ids=str)
def test_equals_the_equations_written_literally(ablation):
    """The deformable convolution starts as an ordinary one."""
    attention = drawn(PolaAttention, **ablation)
    x = torch.randn(2, 16, 8, dtype=torch.float64)
    torch.testing.assert_close(attention(x, (4, 4)), literal(attention, x, (4, 4)))


def test_equal_offsets_of_all_taps_move_the_map():
    conv = DepthwiseDeformableConv(4, 3).double()
    x = torch.randn(2, 20, 8, dtype=torch.float64)
    maps = x.unflatten(1, (4, 5))
    below = torch.cat([maps[:, 1:], torch.zeros_like(maps[:, :1])], dim=1).flatten(1, 2)
    expected = conv(below, (4, 5))
    with torch.no_grad():
        conv.offset.bias[0::2] = 1.0  # rows; the odd entries are columns
    # In the first row the taps above the moved map still read the map's first row.
    torch.testing.assert_close(conv(x, (4, 5))[:, 5:], expected[:, 5:])


@EVERY_LAYER
@pytest.mark.parametrize(
    ('arguments', 'message'),
    [
        ({'gate': 'no'}, "gate: expected True or False, got 'no'"),
        ({'polarity': None}, 'polarity: expected True or False, got None'),
        ({'mixing': 'conv'}, "mixing: expected one of ['dwc', 'dcn', None], got 'conv'"),
    ],
)
def test_wrong_ablations_are_refused(layer, arguments, message):
    with pytest.raises(ValueError) as raised:
        layer(8, 2, (4, 4), **arguments)
    assert str(raised.value) == message
