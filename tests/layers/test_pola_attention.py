"""The attention block: ranges of its parameters, positions on other grids, gradients."""

import torch

from mmpola.layers import PolaAttention


def test_exponents_and_scales_follow_their_ranges():
    attention = PolaAttention(8, 2, (4, 4), alpha=3)
    torch.nn.init.normal_(attention.power, std=10)
    torch.nn.init.normal_(attention.scale, std=10)
    feature_map = attention.feature_map()
    assert feature_map.exponent.shape == feature_map.scale.shape == (2, 4)
    assert (feature_map.exponent >= 1).all()
    assert (feature_map.exponent <= 4).all()
    assert (feature_map.scale > 0).all()


def test_every_parameter_learns_on_a_grid_it_was_not_trained_on():
    attention = PolaAttention(8, 2, (4, 4))
    torch.nn.init.normal_(attention.positional_encoding)
    output = attention(torch.randn(2, 15, 8), (3, 5))
    assert output.shape == (2, 15, 8)
    output.square().sum().backward()
    for name, parameter in attention.named_parameters():
        assert parameter.grad.abs().sum() > 0, name


def test_half_precision_keeps_its_dtype():
    attention = PolaAttention(8, 2, (4, 4)).bfloat16()
    assert attention(torch.randn(1, 16, 8, dtype=torch.bfloat16), (4, 4)).dtype == torch.bfloat16
