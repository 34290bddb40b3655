"""Observing the linear attention layers of every backbone, and what is refused."""

from dataclasses import replace

import pytest
import torch

from mmpola.backbones import PolaDeiT, PolaFormerPP, PolaPVT, PolaSwin
from mmpola.messages import UsageError
from mmpola.ops.api import BACKENDS
from mmpola.ops.reference import polarity_attention_reference
from mmpola.papers.analysis import (
    analyze_layer,
    attention_rows,
    choose_layers,
    linear_layers,
    observe,
)
from tests.helpers.configs import SMALL_ARCHS, WIDTHS

BACKBONES = {
    'PolaSwin': (
        lambda: PolaSwin(SMALL_ARCHS['mmpola.PolaSwin']),
        ['stages.0.blocks.0.attn', 'stages.1.blocks.0.attn'],
    ),
    'PolaPVT': (
        lambda: PolaPVT(WIDTHS, attn_types='LLSS', pola_sr_ratios=(2, 1, 1, 1)),
        ['stages.0.blocks.0.attn', 'stages.1.blocks.0.attn'],
    ),
    'PolaFormerPP': (
        lambda: PolaFormerPP(SMALL_ARCHS['mmpola.PolaFormerPP']),
        ['stages.0.blocks.0.attn', 'stages.1.blocks.0.attn'],
    ),
    'PolaDeiT': (
        lambda: PolaDeiT({'embed_dims': 16, 'depth': 1, 'num_heads': 2}, out_indices=(0,)),
        ['stages.0.blocks.0.attn'],
    ),
}


@pytest.mark.parametrize('name', BACKBONES)
def test_weights_of_every_backbone_give_what_its_layers_attended(name):
    build, names = BACKBONES[name]
    model, image = build().train(), torch.randn(1, 3, 70, 52)

    def largest_error(layer):
        index = torch.arange(layer.grid[0] * layer.grid[1])
        rows = attention_rows(layer.attention, ('same', 'opposite'))(index).values()
        values = layer.attention.v[0].transpose(0, 1).chunk(2, dim=-1)
        attended = torch.cat([weights @ x for weights, x in zip(rows, values, strict=True)], dim=-1)
        return (attended.transpose(0, 1) - layer.mixing.attended[0]).abs().max().item()

    errors = observe(model, image, largest_error)
    assert list(errors) == list(linear_layers(model)) == names
    assert max(errors.values()) < 1e-6
    assert model.training


def test_observing_changes_no_output_and_stops_after_an_error():
    model = PolaSwin(SMALL_ARCHS['mmpola.PolaSwin']).eval()
    image, maps = torch.randn(1, 3, 64, 64), []
    model.register_forward_hook(lambda module, inputs, output: maps.append(output))
    with torch.no_grad():
        model(image)
    observe(model, image, lambda layer: None)
    for before, observed in zip(*maps, strict=True):
        torch.testing.assert_close(observed, before, rtol=0, atol=0)
    with pytest.raises(ZeroDivisionError):
        observe(model, image, lambda layer: 1 / 0)
    model(image)  # nothing divides any more


def test_the_analysis_does_not_depend_on_the_backend(monkeypatch):
    model, image = PolaPVT(WIDTHS).double(), torch.randn(1, 3, 64, 64, dtype=torch.float64)

    def analyzed():
        return observe(
            model,
            image,
            lambda layer: analyze_layer(layer, [(1, 1)]),
            ['stages.0.blocks.0.attn', 'stages.3.blocks.0.attn'],
        )

    found = analyzed()
    plain = replace(BACKENDS[-1], polarity_attention=polarity_attention_reference)
    monkeypatch.setattr('mmpola.ops.api.BACKENDS', (plain,))
    for name, layer in analyzed().items():
        for kind, weights in layer.maps.items():
            assert weights == pytest.approx(found[name].maps[kind], rel=1e-5)
        for kind, entropy in layer.entropy.items():
            assert entropy == pytest.approx(found[name].entropy[kind], rel=1e-5)
        assert layer.gate.mean == pytest.approx(found[name].gate.mean, rel=1e-5)
        assert layer.rank.mixing == pytest.approx(found[name].rank.mixing, rel=1e-5)


def test_what_is_refused():
    model = PolaSwin(SMALL_ARCHS['mmpola.PolaSwin'])
    assert choose_layers(model, ['stages.1.blocks.0.attn'] * 2) == ['stages.1.blocks.0.attn']
    ablated = PolaDeiT({'embed_dims': 16, 'depth': 1, 'num_heads': 2}, out_indices=(0,), gate=False)
    with pytest.raises(UsageError, match=r'got PolaDeiT without any, only ablated ones$'):
        choose_layers(ablated, None)
    with pytest.raises(ValueError, match=r'^images: expected one image'):
        observe(model, torch.randn(2, 3, 64, 64), lambda layer: layer)
