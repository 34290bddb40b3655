"""The attention block: E9 against per-head convolutions, positions on other grids, gradients."""

import torch
import torch.nn.functional as F

from mmpola.layers import PolaAttention, mix_and_gate


def test_mix_and_gate_is_one_small_kernel_for_every_head():
    batch, grid, heads, dim = 2, (5, 7), 3, 4
    tokens = grid[0] * grid[1]
    attended, values = torch.randn(2, batch, tokens, heads, dim, dtype=torch.float64)
    gate = torch.randn(batch, tokens, heads * dim, dtype=torch.float64)
    kernel = torch.nn.Conv2d(dim, dim, 5, padding=2, groups=dim).double()
    expected = torch.empty(batch, tokens, heads, dim, dtype=torch.float64)
    for head in range(heads):
        maps = values[:, :, head].transpose(1, 2).unflatten(2, grid)
        mixed = F.conv2d(maps, kernel.weight, kernel.bias, padding=2, groups=dim).flatten(2).transpose(1, 2)
        expected[:, :, head] = attended[:, :, head] + mixed
    torch.testing.assert_close(mix_and_gate(attended, values, gate, kernel, grid), expected.flatten(2) * gate)


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
