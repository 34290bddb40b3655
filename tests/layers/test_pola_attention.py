"""The linear attention layers: ranges of their parameters, positions on other grids, gradients, names."""

from functools import partial

import pytest
import torch

from mmpola.layers import PolaAttention, PolarityAttention, PowerAttention, ReducedPolaAttention, SpikyAttention

LAYERS = {
    'PolaAttention': PolaAttention,
    'ReducedPolaAttention': ReducedPolaAttention,
    'ReducedPolaAttention, stride 2': partial(ReducedPolaAttention, sr_ratio=2),
}
EVERY_LAYER = pytest.mark.parametrize('layer', LAYERS.values(), ids=LAYERS)


@EVERY_LAYER
def test_exponents_and_scales_stay_in_their_ranges(layer):
    attention = layer(8, 2, (4, 4), alpha=3)
    torch.nn.init.normal_(attention.power, std=10)
    torch.nn.init.normal_(attention.scale, std=10)
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
    attention, reduced = PolaAttention(8, 2, (4, 4)).double(), ReducedPolaAttention(8, 2, (4, 4)).double()
    weights = attention.state_dict()
    for kind in ('weight', 'bias'):
        q, k, v, gate = weights.pop(f'qkvg.{kind}').chunk(4)
        weights |= {f'qg.{kind}': torch.cat([q, gate]), f'kv.{kind}': torch.cat([k, v])}
    reduced.load_state_dict(weights)
    x = torch.randn(2, 15, 8, dtype=torch.float64)
    torch.testing.assert_close(reduced(x, (3, 5)), attention(x, (3, 5)))


def test_all_linear_attention_layers_share_one_base_class():
    for layer in (PolaAttention, ReducedPolaAttention, SpikyAttention):
        assert issubclass(layer, PolarityAttention)
    assert issubclass(PolaAttention, PowerAttention)
    assert issubclass(ReducedPolaAttention, PowerAttention)
    assert not issubclass(ReducedPolaAttention, PolaAttention)


@pytest.mark.parametrize(
    'build', [lambda: PolaAttention(8, 2, (4, 4), backend='tritn'), lambda: SpikyAttention(8, 2, backend='tritn')]
)
def test_an_unknown_backend_is_refused(build):
    with pytest.raises(ValueError) as raised:
        build()
    assert str(raised.value) == "backend: expected one of ['auto', 'triton', 'reference'], got 'tritn'"
