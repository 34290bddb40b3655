"""The linear attention layers: maps and tokens, the authors' weights, gradients, ablations."""

import re
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from mmpola.layers import (
    PolaAttention,
    PolaFormerPPAttention,
    PolaSpatialReductionAttention,
    RotarySoftmaxAttention,
)
from mmpola.ops import api
from mmpola.papers.ablations.attention import AblatedPolaAttention
from mmpola.papers.ablations.deformable_conv import DepthwiseDeformableConv
from tests.helpers.models import Launches


def without_table(layer):
    """Let a layer without a table of key positions take a `grid`, as those with one do."""
    return lambda *args, grid, **kwargs: layer(*args, **kwargs)


WITH_TABLE = {
    'joint': PolaAttention,
    'two projections': PolaSpatialReductionAttention,
    'stride 2': partial(PolaSpatialReductionAttention, sr_ratio=2),
}
"""Layers with `positional_encoding`, the table, and `alpha`."""
LAYERS = {
    **WITH_TABLE,
    'no table': without_table(PolaAttention),
    'polaformer_pp': without_table(PolaFormerPPAttention),
}
"""Every linear attention layer, called as layer(dim, num_heads, grid=..., backend=...)."""
EVERY_LAYER = pytest.mark.parametrize('layer', LAYERS.values(), ids=LAYERS)
EVERY_LAYER_WITH_TABLE = pytest.mark.parametrize('layer', WITH_TABLE.values(), ids=WITH_TABLE)
ABLATIONS = [
    {'gate': False},
    {'mixing': None},
    {'mixing': 'dcn'},
    {'polarity': False},
    {'gate': False, 'mixing': None},
]
EVERY_ABLATION = pytest.mark.parametrize('ablation', ABLATIONS, ids=str)


@EVERY_LAYER_WITH_TABLE
def test_exponents_and_scales_stay_in_their_ranges(layer):
    attention = layer(8, 2, grid=(4, 4), alpha=3)
    for parameter in attention.feature_map.parameters():
        torch.nn.init.normal_(parameter, std=10)
    feature_map = attention.feature_map.map_for(torch.empty(0))
    assert feature_map.exponent.shape == feature_map.scale.shape == (2, 4)
    assert (feature_map.exponent >= 1).all()
    assert (feature_map.exponent <= 4).all()
    assert (feature_map.scale > 0).all()


def test_polaformer_pp_normalises_inputs_if_asked():
    attention = PolaFormerPPAttention(8, 2, norm_layer=nn.LayerNorm).double()
    x = torch.randn(2, 8, 3, 4, dtype=torch.float64)
    torch.testing.assert_close(attention(1e4 * x), attention(x), rtol=1e-4, atol=1e-4)
    plain = PolaFormerPPAttention(8, 2).double()
    plain.load_state_dict(
        {key: tensor for key, tensor in attention.state_dict().items() if 'norm.' not in key}
    )
    normed = attention.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
    torch.testing.assert_close(attention(x), plain(normed))


@EVERY_LAYER
def test_no_gradient_of_a_parameter_fills_a_table_with_zeros_first(layer):
    """As that of an index would; a view has no such gradient."""
    output = layer(8, 2, grid=(4, 4))(torch.randn(2, 16, 8), (4, 4))
    with Launches() as launches:
        output.sum().backward()
    assert 'select_backward' not in launches


class Adapter(nn.Module):
    """Wrap a projection as adapters of low rank do: it has none of the attributes of nn.Linear."""

    def __init__(self, wrapped):
        super().__init__()
        self.wrapped = wrapped
        self.down = nn.Linear(wrapped.in_features, 1, bias=False)
        self.up = nn.Linear(1, wrapped.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x):
        return self.wrapped(x) + self.up(self.down(x))


@EVERY_LAYER
def test_projections_may_be_wrapped_by_adapters(layer):
    attention, x = layer(8, 2, grid=(4, 4)), torch.randn(2, 8, 3, 5)
    expected = attention(x)
    linear = [name for name, m in attention.named_children() if isinstance(m, nn.Linear)]
    assert 'proj' in linear
    for name in linear:
        setattr(attention, name, Adapter(attention.get_submodule(name)))
    output = attention(x)
    torch.testing.assert_close(output, expected)
    output.square().sum().backward()
    for name in linear:
        assert attention.get_submodule(name).up.weight.grad.any(), name
    with pytest.raises(ValueError, match=r'^x: .*C=8, got \[2, 6, 3, 5\]$'):
        attention(torch.randn(2, 6, 3, 5))


def test_both_projections_compute_the_same_attention():
    """Given the same weights and no reduction, Pola-PVT's layer equals Pola-Swin's."""
    attention = PolaAttention(8, 2, grid=(4, 4)).double()
    other = PolaSpatialReductionAttention(8, 2, grid=(4, 4)).double()
    weights = attention.state_dict()
    for kind in ('weight', 'bias'):
        q, k, v, gate = weights.pop(f'qkvg.{kind}').chunk(4)
        weights |= {f'qg.{kind}': torch.cat([q, gate]), f'kv.{kind}': torch.cat([k, v])}
    other.load_state_dict(weights)
    x = torch.randn(2, 15, 8, dtype=torch.float64)
    torch.testing.assert_close(other(x, (3, 5)), attention(x, (3, 5)))


@EVERY_LAYER
def test_an_unknown_backend_is_refused(layer):
    with pytest.raises(ValueError, match=r"^backend: .*got 'tritn'$"):
        layer(8, 2, grid=(4, 4), backend='tritn')


def drawn(layer, **arguments):
    """Build a layer in float64 with drawn powers, scales and key positions."""
    attention = layer(8, 2, grid=(4, 4), **arguments).double()
    for table in (*attention.feature_map.parameters(), attention.positional_encoding):
        torch.nn.init.normal_(table)
    return attention


@EVERY_ABLATION
def test_an_ablated_layer_trains_all_its_parameters_and_takes_an_empty_batch(ablation):
    attention = drawn(AblatedPolaAttention, **ablation)
    for batch in (2, 0):
        attention.zero_grad()
        output = attention(torch.randn(batch, 15, 8, dtype=torch.float64), (3, 5))
        assert output.shape == (batch, 15, 8)
        output.square().sum().backward()
        for name, parameter in attention.named_parameters():
            assert (parameter.grad.abs().sum() > 0) == (batch > 0), name


@EVERY_ABLATION
def test_an_ablated_layer_runs_under_autocast_and_in_half_precision(ablation):
    attention = AblatedPolaAttention(8, 2, grid=(4, 4), **ablation)
    x = torch.randn(1, 16, 8)
    expected = attention(x, (4, 4))
    with torch.autocast('cpu', torch.bfloat16):
        torch.testing.assert_close(attention(x, (4, 4)).float(), expected, rtol=0.1, atol=0.02)
    output = attention.bfloat16()(x.bfloat16(), (4, 4))
    assert output.dtype == torch.bfloat16
    torch.testing.assert_close(output.float(), expected, rtol=0.1, atol=0.02)


def literal(attention, x, grid):
    """Write the layer down with an [N, M] matrix of weights per stream and a padded map, on the
    training grid.
    """
    q, k, v, *gate = attention.qkvg(x).chunk(attention.qkvg.out_features // 8, dim=-1)
    learned = attention.feature_map
    exponent, scale = (
        1 + learned.alpha * learned.power.sigmoid()[0, :, 0],
        F.softplus(learned.scale),
    )
    q, k = q / scale, (k + attention.positional_encoding) / scale
    q, k, v = (t.unflatten(-1, (2, 4)).transpose(1, 2) for t in (q, k, v))  # [B, H, N, D]
    positive_q, negative_q, positive_k, negative_k = (
        t.relu() ** exponent[:, None] for t in (q, -q, k, -k)
    )
    if getattr(attention, 'polarity', True):
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
    mixing = getattr(attention, 'mixing', 'dwc')
    if mixing:
        conv = attention.dwc if mixing == 'dwc' else attention.dcn.conv
        maps = v.flatten(0, 1).transpose(1, 2).unflatten(2, grid)
        convolved = F.conv2d(maps, conv.weight, conv.bias, padding=2, groups=4).flatten(2)
        mixed = mixed + convolved.unflatten(0, (-1, 2)).permute(0, 3, 1, 2).flatten(2)
    return attention.proj(mixed * gate[0] if gate else mixed)


@pytest.mark.parametrize('ablation', [{}, *ABLATIONS], ids=str)
def test_equals_the_equations_written_literally(ablation):
    """The deformable convolution starts as an ordinary one."""
    attention = drawn(AblatedPolaAttention if ablation else PolaAttention, **ablation)
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


def test_a_layer_without_ablation_is_the_published_one():
    attention = drawn(PolaAttention)
    whole = AblatedPolaAttention(8, 2, grid=(4, 4)).double()
    whole.load_state_dict(attention.state_dict())
    x = torch.randn(2, 15, 8, dtype=torch.float64)
    torch.testing.assert_close(whole(x, (3, 5)), attention(x, (3, 5)))


@pytest.mark.parametrize(
    ('argument', 'value'), [('gate', 'no'), ('polarity', None), ('alpha', 0), ('mixing', 'conv')]
)
def test_wrong_ablations_are_refused(argument, value):
    with pytest.raises(ValueError, match=rf'^{argument}: .*got {value!r}$'):
        AblatedPolaAttention(8, 2, grid=(4, 4), **{argument: value})


@EVERY_LAYER
def test_a_map_is_its_tokens_on_their_grid(layer):
    attention, maps = layer(8, 2, grid=(4, 4)), torch.randn(2, 8, 3, 5)
    found = attention(maps)
    expected = attention(maps.flatten(2).mT, (3, 5)).mT.unflatten(2, (3, 5))
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    for memory_format in (torch.contiguous_format, torch.channels_last):
        same = attention.to(memory_format=memory_format)(maps.to(memory_format=memory_format))
        assert same.is_contiguous(memory_format=memory_format)
        torch.testing.assert_close(same, found)


@EVERY_LAYER
def test_tokens_without_a_grid_are_refused(layer):
    with pytest.raises(ValueError, match=r'^grid: .*got None$'):
        layer(8, 2, grid=(4, 4))(torch.randn(1, 16, 8))


@EVERY_LAYER
@pytest.mark.parametrize(
    ('shape', 'grid'),
    [
        ((1, 8, 4, 4), (4, 4)),  # a map with a grid
        ((16, 8), (4, 4)),
        ((1, 4, 8, 8), None),
        ((1, 16, 6), (4, 4)),
    ],
)
def test_an_input_that_does_not_fit_is_refused(layer, shape, grid):
    with pytest.raises(ValueError, match=rf'^x: .*C=8.*{re.escape(str(list(shape)))}'):
        layer(8, 2, grid=(4, 4))(torch.randn(shape), grid)


@EVERY_LAYER
@pytest.mark.parametrize('grid', [(4, 5), 16, (-4, -4), (16,)])
def test_a_grid_that_does_not_fit_is_refused(layer, grid):
    with pytest.raises(ValueError, match=rf'^grid: .*N = 16.*got {re.escape(str(grid))}'):
        layer(8, 2, grid=(4, 4))(torch.randn(1, 16, 8), grid)


def test_a_grid_that_does_not_fit_softmax_attention_is_refused():
    with pytest.raises(ValueError, match=r'^grid: .*N = 16, got \(1, 1\)$'):
        RotarySoftmaxAttention(8, 2)(torch.randn(1, 16, 8), (1, 1))


@EVERY_LAYER
def test_the_operators_do_not_check_again_what_a_layer_has_checked(layer, monkeypatch):
    for name in ('validate_attention', 'validate_mix_and_gate'):
        monkeypatch.setattr(api, name, lambda inputs: pytest.fail('checked twice'))
    layer(8, 2, grid=(4, 4))(torch.randn(1, 16, 8), (4, 4))


@EVERY_LAYER
@pytest.mark.parametrize(('dim', 'heads'), [(8, 3), (6, 2), (8, 0)])
def test_heads_of_an_odd_dimension_are_refused(layer, dim, heads):
    with pytest.raises(ValueError, match=rf'^num_heads: .*dim={dim}.*got {heads}$'):
        layer(dim, heads, grid=(4, 4))


GOLDEN = {
    'pola_swin_mixed': ('layers.0.blocks.0.', 'power', partial(PolaAttention, 8, 1, grid=(56, 56))),
    'pola_pvt_llll': (
        'block1.0.',
        'power',
        partial(PolaSpatialReductionAttention, 16, 1, grid=(16, 16)),
    ),
    'pola_pvt_sr8421': (
        'block1.0.',
        'power',
        partial(PolaSpatialReductionAttention, 16, 1, grid=(16, 16), sr_ratio=8),
    ),
    'polaformer_pp': ('layers.0.blocks.0.', 's1', partial(PolaFormerPPAttention, 16, 1)),
}
"""File -> name of a block, a parameter of its feature map, layer; test_golden.py has features."""


@pytest.mark.parametrize('name', GOLDEN)
def test_a_layer_takes_the_authors_names(name, golden):
    block, learned, layer = GOLDEN[name]
    prefix = f'{block}attn.'
    record = golden(name)['checkpoint']['model']
    weights = {key.removeprefix(prefix): x for key, x in record.items() if key.startswith(prefix)}
    attention = layer()
    attention.load_state_dict(weights)
    assert torch.equal(attention.proj.weight, weights['proj.weight'])
    assert torch.equal(getattr(attention.feature_map, learned), weights[learned])


def gate_of(attention, x):
    """Return the gate of tokens [B, N, C]."""
    return attention.get_submodule(attention.gate_projection)(x)[..., -attention.dim :]


@EVERY_LAYER
def test_an_open_gate_starts_as_one_and_all_else_as_the_authors(layer):
    weights = {}
    for gate_init in ('authors', 'open'):
        torch.manual_seed(0)
        weights[gate_init] = layer(8, 2, grid=(4, 4), gate_init=gate_init)
    x = torch.randn(2, 16, 8)
    assert torch.equal(gate_of(weights['open'], x), torch.ones(2, 16, 8))
    drawn = gate_of(weights['authors'], x)
    assert drawn.min() < 0 < drawn.max()
    name = weights['open'].gate_projection
    with torch.no_grad():
        for tensor in ('weight', 'bias'):
            opened = getattr(weights['open'].get_submodule(name), tensor)
            opened[-8:] = getattr(weights['authors'].get_submodule(name), tensor)[-8:]
    for key, tensor in weights['authors'].state_dict().items():
        assert torch.equal(tensor, weights['open'].state_dict()[key]), key


@EVERY_LAYER
@pytest.mark.parametrize(
    ('gate_init', 'low', 'high'),
    [
        ('kaiming', -0.125, 0.125),  # U(-1 / sqrt(C), 1 / sqrt(C))
        ('zeros', 0, 0),
        ('normal', -6, 6),
        ('uniform', 0, 1),
        ('ones', 1, 1),
    ],
)
def test_a_gate_takes_the_initial_weights_of_sequences(layer, gate_init, low, high):
    layers = []
    for name in ('authors', gate_init):
        torch.manual_seed(0)
        layers.append(layer(64, 2, grid=(4, 4), gate_init=name))
    authors, started = [x.get_submodule(x.gate_projection) for x in layers]
    gate = started.weight[-64:]
    assert low <= gate.min() <= low + 0.3 * (high - low)
    assert high - 0.3 * (high - low) <= gate.max() <= high
    assert torch.equal(started.weight[:-64], authors.weight[:-64])
    assert torch.equal(started.bias, authors.bias)


@EVERY_LAYER
def test_weights_load_over_an_open_gate(layer):
    authors = layer(8, 2, grid=(4, 4))
    opened = layer(8, 2, grid=(4, 4), gate_init='open')
    opened.load_state_dict(authors.state_dict())
    x = torch.randn(2, 8, 4, 4)
    assert torch.equal(opened(x), authors(x))


@EVERY_LAYER
def test_an_unknown_start_of_the_gate_is_named(layer):
    with pytest.raises(ValueError, match=r"^gate_init: expected .*'authors', 'open'.*, got 'one'"):
        layer(8, 2, grid=(4, 4), gate_init='one')


@EVERY_LAYER_WITH_TABLE
def test_a_gate_without_a_bias_cannot_be_opened(layer):
    with pytest.raises(ValueError, match=r"^gate_init: expected 'authors' with qkv_bias=False"):
        layer(8, 2, grid=(4, 4), gate_init='open', qkv_bias=False)
